package extproc

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"keyway/domain"
	"keyway/wire"
)

// answer is the head of a response on its way to the client.
type answer struct {
	status int
	// headers are lower-case.
	headers map[string][]string
	// ended: there is no body.
	ended bool
	// fromUpstream is false for an answer that Envoy made itself.
	fromUpstream bool
	// relayed: the relay called the channels, and has reported what failed.
	relayed bool
	// committed is the status that the client has already; 0 for none.
	committed int
	// attempts is how many attempts ran, as Envoy counts them.
	attempts int
	// unanswered: Envoy made it because the last attempt got no answer.
	unanswered bool
	// notes are what the verdict scripts noted of attempts; see readNotes.
	notes string
}

func (a answer) header(name string) string {
	if v := a.headers[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// shown is the status that the client gets of the answer, or of the error that stands for it.
func (a answer) shown(dialect domain.Dialect, replace *domain.Error) int {
	switch {
	case a.committed != 0:
		return a.committed
	case replace != nil:
		return wire.Status(dialect, replace.Code)
	}
	return a.status
}

// readAs is the operation as which an answer is read; read is false for one in
// which nothing is of interest. A stored response that is streamed is watched for
// its end, not for what it cost. Where the content type says nothing, only what
// is text can be told from the rest.
func readAs(api domain.API, format wire.Format) (as domain.API, read bool) {
	switch {
	case api == domain.APIStored:
		return domain.APIResponses, format == wire.FormatSSE
	case api.Free(), api.IsRaw():
		return api, false
	case format == wire.FormatUnknown:
		return api, api.Streams() || api == domain.APIEmbeddings || api == domain.APIRerank
	}
	return api, true
}

// bodyFormat is the form of a body as its content type says it.
func bodyFormat(a answer) wire.Format {
	media, _, _ := strings.Cut(a.header("content-type"), ";")
	switch strings.ToLower(strings.TrimSpace(media)) {
	case "text/event-stream":
		return wire.FormatSSE
	case "application/json":
		return wire.FormatJSON
	}
	return wire.FormatUnknown
}

// These stand for a good status with nothing behind it, or with a page for
// people, such as that of a proxy before the provider.
var (
	errEmpty = &domain.Error{Code: domain.CodeUpstream, Message: "The provider sent an empty answer. Try again."}
	errPage  = &domain.Error{Code: domain.CodeUpstream, Message: "A web page came in place of the provider's answer. Try again."}
)

// worthless is the error that stands for a good answer which cannot be what a
// text request asked for; nil for all others.
func (a answer) worthless() *domain.Error {
	switch {
	case a.ended && a.status == http.StatusOK:
		return errEmpty
	case strings.HasPrefix(strings.ToLower(a.header("content-type")), "text/html"):
		return errPage
	}
	return nil
}

// replacement is the error that stands for an upstream's answer which must not
// be shown: a refusal of our own credential or account names it, and would have
// the client look at its own, and a body that is not JSON breaks SDKs. why is
// what the answer says of the channel.
func replacement(a answer, why domain.CooldownReason) *domain.Error {
	switch {
	case !a.fromUpstream:
		return nil
	case a.status == 401 || a.status == 403:
		return &domain.Error{
			Code:    domain.CodeUpstream,
			Message: "The provider refused the gateway's own credential for this model. Give your operator the request id.",
		}
	case why == domain.ReasonQuota:
		return &domain.Error{
			Code:    domain.CodeUpstream,
			Message: "The gateway's own account at the provider of this model is exhausted. Give your operator the request id.",
		}
	case a.status < 400:
		// A client would send its key along to wherever it leads.
		return domain.Errorf(domain.CodeUpstream, "The provider answered with a redirect (%d), which this gateway does not follow. Try again.", a.status)
	}
	if bodyFormat(a) != wire.FormatUnknown && !a.ended {
		return nil
	}
	e := domain.Errorf(domain.CodeUpstream, "The provider answered with status %d. Try again.", a.status)
	switch {
	case a.status == 429:
		e.Code, e.RetryAfter = domain.CodeRateLimited, time.Second
	case a.status == 413:
		e.Code, e.Message = domain.CodeTooLarge, "The provider refused the request body as too large. Send a smaller one."
	case a.status == 404:
		e.Code, e.Message = domain.CodeNotFound, "The provider does not know what this request asks for."
	case a.status < 500:
		e.Code, e.Message = domain.CodeInvalidRequest, "The provider refused the request. Check its parameters."
	}
	e.NoRetry = a.status < 500 && a.status != 429
	return e
}

// strippedHeaders are those that the client must not see; those in set are
// replaced.
func strippedHeaders(headers map[string][]string, set []wire.Header) []string {
	var out []string
	for name := range headers {
		if wire.StripResponseHeader(name) && !slices.ContainsFunc(set, func(h wire.Header) bool { return h.Name == name }) {
			out = append(out, name)
		}
	}
	return out
}

// plain: the body is as it was written.
func (a answer) plain() bool {
	encoding := a.header("content-encoding")
	return encoding == "" || strings.EqualFold(encoding, "identity")
}

// waitHeaders are those that may say how long to leave the channel alone.
func (a answer) waitHeaders() []wire.Header {
	var list []wire.Header
	for name, values := range a.headers {
		if wire.TellsWait(name) {
			list = append(list, wire.Header{Name: name, Value: values[0]})
		}
	}
	return list
}
