package extproc

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"keyway/domain"
	"keyway/envoy"
	"keyway/secret"
	"keyway/wire"
)

// attempt is one call to a channel that is about to go out.
type attempt struct {
	decision domain.Decision
	// number is 1-based.
	number int
	// channel is the one whose cluster Envoy has chosen, baseURL where that leads.
	channel string
	baseURL string
	// headers are the client's, lower-case, as an earlier attempt may have left them.
	headers map[string][]string
}

// egressPlan is what an attempt sends in place of what the client sent.
type egressPlan struct {
	set     []wire.Header
	remove  []string
	patches []domain.Patch
}

func keepsHeader(name string) bool {
	if strings.HasPrefix(name, ":") {
		return true
	}
	if slices.Contains(envoy.PerChannelHeaders, name) {
		return false
	}
	for _, kept := range envoy.KeptHeaders {
		if name == kept || (strings.HasSuffix(kept, "-") && strings.HasPrefix(name, kept)) {
			return true
		}
	}
	return false
}

// plan decides what one attempt sends. The header map is shared by all
// attempts of a request, so every attempt removes and sets everything.
func (s *Server) plan(ctx context.Context, a attempt) (egressPlan, error) {
	candidate, ok := a.decision.Candidate(a.number)
	if !ok || candidate.Channel != a.channel {
		return egressPlan{}, fmt.Errorf("attempt %d went to channel %q, which the decision does not name there", a.number, a.channel)
	}
	if a.decision.Background && s.background == nil {
		return egressPlan{}, errNoBackground
	}
	channel, err := s.channels.find(ctx, channelAt{a.channel, a.baseURL})
	if err != nil {
		return egressPlan{}, err
	}
	sk, err := s.secrets.Resolve(channel.SecretRef)
	if err != nil {
		return egressPlan{}, fmt.Errorf("resolve the credential of channel %q: %w", a.channel, err)
	}
	if err := s.takeSlot(ctx, a); err != nil {
		return egressPlan{}, err
	}
	p := egressPlan{patches: candidate.Patches}
	p.set = egressHeaders(a, channel, sk)
	set := make(map[string]bool, len(p.set))
	for _, h := range p.set {
		set[h.Name] = true
	}
	for name := range a.headers {
		if !keepsHeader(name) && !set[name] {
			p.remove = append(p.remove, name)
		}
	}
	for _, name := range wire.CredentialHeaders {
		if _, sent := a.headers[name]; !sent && !set[name] {
			p.remove = append(p.remove, name)
		}
	}
	return p, nil
}

// egressHeaders are the headers of one attempt that Keyway itself says.
func egressHeaders(a attempt, channel domain.Channel, sk secret.Secret) []wire.Header {
	provider := channel.Provider
	headers := []wire.Header{
		{Name: ":path", Value: provider.BasePath + a.decision.Path},
		{Name: ":authority", Value: provider.Authority},
		{Name: "accept-encoding", Value: "identity"},
		// An earlier attempt may have left the length of its own patched body.
		{Name: "content-length", Value: strconv.FormatInt(a.decision.BodyLen, 10)},
	}
	if a.decision.API.Dialect() == domain.DialectAnthropic {
		headers = append(headers, wire.Header{Name: "x-api-key", Value: sk.Reveal()})
		if len(a.headers["anthropic-version"]) == 0 {
			headers = append(headers, wire.Header{Name: "anthropic-version", Value: provider.AnthropicVersion})
		}
		if betas := a.headers["anthropic-beta"]; len(betas) > 1 {
			headers = append(headers, wire.Header{Name: "anthropic-beta", Value: strings.Join(betas, ",")})
		}
		return headers
	}
	headers = append(headers, wire.Header{Name: "authorization", Value: "Bearer " + sk.Reveal()})
	if channel.Organization != "" {
		headers = append(headers, wire.Header{Name: "openai-organization", Value: channel.Organization})
	}
	if channel.Project != "" {
		headers = append(headers, wire.Header{Name: "openai-project", Value: channel.Project})
	}
	return headers
}

// errNoSlot ends a request whose fallback channel is full: a local reply of an
// upstream filter is final, so there is no third channel to try.
var errNoSlot = &domain.Error{
	Code: domain.CodeRateLimited, RetryAfter: time.Second,
	Message: "The provider failed and the next channel is busy; try again in a second.",
}

// takeSlot moves the slot from the former attempt's channel to this one's.
func (s *Server) takeSlot(ctx context.Context, a attempt) error {
	candidate, _ := a.decision.Candidate(a.number)
	if former, ok := a.decision.Candidate(a.number - 1); ok && (former.Slots > 0 || candidate.Slots > 0) {
		ctx, cancel := context.WithTimeout(ctx, storeTimeout)
		defer cancel()
		taken, err := s.store.MoveSlot(ctx, domain.SlotMove{RequestID: a.decision.RequestID, From: former, To: candidate, Lease: a.decision.Lease})
		if err != nil {
			return fmt.Errorf("move slot to channel %q: %w", candidate.Channel, err)
		}
		if !taken {
			return errNoSlot
		}
	}
	if a.decision.Lease > 0 { // else it holds nothing: it is a question of our own
		s.leases.hold(leaseOf(a.decision, candidate), s.now().Add(a.decision.FirstByteLimit+firstByteMargin))
	}
	return nil
}

// firstByteMargin is added to the first-byte limit for the time between the
// attempt's start and its answer's arrival at the watch side.
const firstByteMargin = 10 * time.Second

func leaseOf(d domain.Decision, c domain.Candidate) domain.Lease {
	l := domain.Lease{RequestID: d.RequestID, Identity: d.Identity, Holds: d.Holds, TTL: d.Lease, Unreserved: d.Unreserved}
	if c.Slots > 0 {
		l.Channel = c.Channel
	}
	return l
}
