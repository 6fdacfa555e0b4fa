package authz

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"keyway/config"
	"keyway/domain"
	"keyway/wire"
)

// operation is what a request line asks for.
type operation struct {
	api domain.API
	// resource is the model or the stored response that the path names; "" for none.
	resource string
	// path is the client's, without the query.
	path string
}

// operationOf finds what a request asks for.
func operationOf(snap *config.Snapshot, r Request) (operation, error) {
	path := pathOf(r.Target)
	op := operation{path: path}
	if api, ok := domain.APIForPath(path); ok {
		op.api = api
		return op, r.only(http.MethodPost)
	}
	if name, ok := domain.ModelAtPath(path); ok {
		name, err := url.PathUnescape(name)
		if err != nil {
			return op, errNotServed
		}
		op.api, op.resource = domain.APIModels, name
		return op, r.only(http.MethodGet)
	}
	if id, action, ok := domain.StoredAtPath(path); ok {
		op.api, op.resource = domain.APIStored, id
		if plain, _ := domain.PlainPath(path); !plain {
			return op, errNotServed
		}
		return op, r.only(storedMethods[action]...)
	}
	for _, raw := range snap.Raw {
		if !domain.Within(path, raw.Path) {
			continue
		}
		if plain, _ := domain.PlainPath(path); !plain || domain.IsMetered(path) {
			return op, errNotServed
		}
		op.api, op.resource = domain.APIRawOpenAI, raw.Model
		if dialectOf(r) == domain.DialectAnthropic {
			op.api = domain.APIRawAnthropic
		}
		return op, r.only(http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete)
	}
	return op, errNotServed
}

// storedMethods are what may be done with a stored response, and with what of it.
var storedMethods = map[string][]string{
	"":            {http.MethodGet, http.MethodDelete},
	"cancel":      {http.MethodPost},
	"input_items": {http.MethodGet},
}

var errNotServed = &domain.Error{
	Code: domain.CodeNotFound, NoRetry: true,
	Message: "This gateway does not serve this path; check the base URL of your SDK.",
}

// only refuses every other method.
func (r Request) only(methods ...string) error {
	for _, m := range methods {
		if r.Method == m {
			return nil
		}
	}
	return &domain.Error{
		Code: domain.CodeMethod, NoRetry: true, Message: "Use " + strings.Join(methods, " or ") + " for this path.",
	}
}

// dialectOf is the dialect in which a request is answered. Where the path does
// not tell, the header does that Anthropic's SDKs always send.
func dialectOf(r Request) domain.Dialect {
	path := pathOf(r.Target)
	if _, ok := domain.APIForPath(path); !ok && r.Headers["anthropic-version"] != "" {
		return domain.DialectAnthropic
	}
	return domain.DialectForPath(path)
}

// read finds what a request asks for: in its body, or in its path where that says
// it all. made is the stored response that the path names.
func (s *Server) read(ctx context.Context, op operation, r Request, key domain.VirtualKey) (peek *wire.Request, made domain.StoredID, err error) {
	switch {
	case op.api.IsRaw():
		q := &wire.Request{API: op.api, Model: op.resource, N: 1}
		q.Units[domain.ToolCall] = 1
		return q, made, nil
	case op.api == domain.APIStored:
		if made, err = s.recall(ctx, key, storedRef{id: op.resource}); err != nil {
			return nil, made, err
		}
		_, query, _ := strings.Cut(r.Target, "?")
		streams := slices.Contains(strings.Split(wire.CleanQuery(op.api, query), "&"), "stream=true")
		return &wire.Request{API: op.api, Model: made.Model, N: 1, Stream: streams}, made, nil
	}
	peek, err = wire.PeekBody(op.api, r.Headers["content-type"], r.Body)
	return peek, made, err
}

// target is the path below the provider's base URL, with the query that may pass.
func (op operation) target(r Request) string {
	path := strings.TrimPrefix(op.path, domain.APIVersionPrefix)
	_, query, _ := strings.Cut(r.Target, "?")
	if q := wire.CleanQuery(op.api, query); q != "" {
		path += "?" + q
	}
	return path
}

// models answers a request for the models that the key may use.
func (op operation) models(snap *config.Snapshot, key domain.VirtualKey, r Request) ([]byte, error) {
	dialect := dialectOf(r)
	if op.resource != "" {
		if !usable(snap, key, op.resource, dialect) {
			return nil, op.unknown(op.resource)
		}
		return wire.ModelEntry(dialect, op.resource), nil
	}
	var names []string
	for _, name := range snap.ModelNames {
		if usable(snap, key, name, dialect) {
			names = append(names, name)
		}
	}
	page, err := pageOf(r.Target)
	if err != nil {
		return nil, err
	}
	return wire.ModelList(dialect, names, page), nil
}

// usable reports whether a request of the key for a name would find a channel.
func usable(snap *config.Snapshot, key domain.VirtualKey, name string, dialect domain.Dialect) bool {
	m, ok := resolve(snap, key, name)
	return ok && !m.PassesRaw() && slices.ContainsFunc(m.Channels, func(channel string) bool {
		c, ok := snap.Channels[channel]
		return ok && c.Provider.Speaks(dialect)
	})
}

// unknown is the same whether a model does not exist or the key may not use it.
func (op operation) unknown(name string) error {
	switch {
	case op.api.IsRaw():
		return errNotServed
	case op.api == domain.APIStored:
		return unknownID(storedRef{id: op.resource})
	}
	return &domain.Error{
		Code: domain.CodeModelNotFound, NoRetry: true, Param: "model",
		Message: fmt.Sprintf("The model %q does not exist or this API key may not use it.", clip(name)),
	}
}

// The vendor's own bounds of a page.
const (
	defaultPage = 20
	largestPage = 1000
)

func pageOf(target string) (wire.ModelPage, error) {
	_, query, _ := strings.Cut(target, "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		return wire.ModelPage{}, domain.Errorf(domain.CodeInvalidRequest, "The query of the request cannot be read. Send it as the SDKs do.")
	}
	page := wire.ModelPage{After: values.Get("after_id"), Before: values.Get("before_id"), Limit: defaultPage}
	if text := values.Get("limit"); text != "" {
		page.Limit, err = strconv.Atoi(text)
		if err != nil || page.Limit < 1 || page.Limit > largestPage {
			return wire.ModelPage{}, &domain.Error{
				Code: domain.CodeInvalidRequest, Param: "limit", Message: "The parameter limit must be an integer from 1 to 1000.",
			}
		}
	}
	return page, nil
}
