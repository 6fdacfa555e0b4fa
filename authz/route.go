package authz

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"keyway/config"
	"keyway/domain"
	"keyway/routing"
	"keyway/wire"
)

// StoredIDs knows which channel made what a request continues.
type StoredIDs interface {
	// Recall finds what made id for identity; domain.ErrNotFound where this
	// identity made nothing of that name.
	Recall(ctx context.Context, identity, id string) (domain.StoredID, error)
}

// The reasons for which a channel is left out, besides those of its health.
const (
	leftDialect = "does not speak the dialect of the request"
	leftPinned  = "did not make what the request continues"
	leftKey     = "the key may not use the model"
	leftPlace   = "more candidates than a request may have"
	leftNative  = "a native channel with slots is only ever the first choice"
	leftOut     = "out of order until its operator acts (%s)"
	leftTrial   = "being tried by another request"
	leftCooling = "cooling for %s (%s)"
)

// pick is one channel that may serve a request, and as what.
type pick struct {
	channel domain.Channel
	model   domain.Model
	// trial: its cooldown is over, and one request may try it.
	trial bool
}

// route is where a request may go.
type route struct {
	// picks are in the order in which they are tried, maxCandidates at most.
	picks []pick
	// standings are all channels of the model and of its fallbacks.
	standings []domain.Standing
	// spoken: some channel of the model itself speaks the dialect.
	spoken bool
	// soonest is when the first channel that cools may be tried; zero is never.
	soonest time.Time
}

// models are those that may be dispatched, that of the first pick first.
func (r route) models() []domain.Model {
	var list []domain.Model
	for _, p := range r.picks {
		if len(list) == 0 || list[len(list)-1].Name != p.model.Name {
			list = append(list, p.model)
		}
	}
	return list
}

// ask is what a request asks of routing.
type ask struct {
	snap  *config.Snapshot
	key   domain.VirtualKey
	api   domain.API
	model domain.Model
	// pinned is the only channel that can serve, because it made what the
	// request continues; "" is any.
	pinned string
	// stored is what the path names, made by the pinned channel; zero for none.
	stored domain.StoredID
	// affinity and session name what should stay on one channel: a cached prompt, or
	// whoever speaks. "" is none.
	affinity, session string
}

// resolve finds the model behind a name that a client sent: an alias leads to
// its model or, for some identities, to its canary. ok is false for one that
// does not exist and for one that the key may not use.
func resolve(snap *config.Snapshot, key domain.VirtualKey, name string) (m domain.Model, ok bool) {
	if a, isAlias := snap.Aliases[name]; isAlias {
		name = a.Model
		if canary, known := snap.Models[a.Canary]; known && key.MayUse(canary) && routing.Share(a.Name, key.Identity)*100 < float64(a.Percent) {
			return canary, true
		}
	}
	m, ok = snap.Models[name]
	return m, ok && key.MayUse(m)
}

// route ranks the channels of the model, and behind them those of its
// fallbacks, each model by its own strategy.
func (s *Server) route(a ask) route {
	var r route
	fallbacks := a.model.Fallbacks
	if a.api == domain.APIStored {
		fallbacks = nil // what is stored is there as it is
	}
	for i, name := range append([]string{a.model.Name}, fallbacks...) {
		model, ok := a.snap.Models[name]
		if !ok || model.PassesRaw() != a.api.IsRaw() {
			continue
		}
		if i > 0 && !a.key.MayUse(model) {
			r.standings = append(r.standings, domain.Standing{Model: name, LeftOut: leftKey})
			continue
		}
		most := maxCandidates
		if i == 0 && len(fallbacks) > 0 {
			most-- // the last resort has a place
		}
		s.add(&r, a, model, most)
	}
	return r
}

// add ranks the channels of one model behind those that r has.
func (s *Server) add(r *route, a ask, model domain.Model, most int) {
	channels := make([]domain.Channel, 0, len(model.Channels))
	options := make([]routing.Option, 0, len(model.Channels))
	trials := make([]bool, 0, len(model.Channels))
	table, now := s.channelHealth.table(), s.now()
	for _, name := range model.Channels {
		c, ok := a.snap.Channels[name]
		if !ok {
			continue
		}
		h := table.of(c, model.HealthClass(a.api), now)
		o := routing.Option{
			Channel: c.Name, Priority: c.Priority, Weight: c.Weight, Cost: c.Cost, Slots: c.Slots,
			ErrorRate: h.ErrorRate, TTFT: h.TTFT, InUse: h.InUse, WindowLeft: h.QuotaLeft, WindowEnds: h.QuotaEnds,
		}
		switch {
		case !c.Provider.Speaks(a.api.Dialect()):
			o.LeftOut = leftDialect
		case a.pinned != "" && a.pinned != c.Name:
			o.LeftOut = leftPinned
		case h.State == domain.HealthOut:
			o.LeftOut = fmt.Sprintf(leftOut, h.Reason)
		case h.State == domain.HealthCooling:
			o.LeftOut = fmt.Sprintf(leftCooling, h.Until.Sub(now).Round(time.Millisecond), h.Reason)
			until := h.Until
			if h.OnTrial { // which as a rule takes much less than its lease
				o.LeftOut, until = leftTrial, now.Add(min(trialWait, until.Sub(now)))
			}
			if r.soonest.IsZero() || until.Before(r.soonest) {
				r.soonest = until
			}
		}
		r.spoken = r.spoken || model.Name == a.model.Name && o.LeftOut != leftDialect
		channels, options, trials = append(channels, c), append(options, o), append(trials, h.State == domain.HealthTrial)
	}
	choice := routing.Choice{Strategy: model.Strategy, Affinity: a.affinity, Random: s.random}
	if choice.Affinity == "" && model.Strategy == domain.StrategySticky {
		choice.Affinity = a.session
	}
	for _, ranked := range routing.Rank(options, choice) {
		standing := domain.Standing{
			Channel: channels[ranked.Index].Name, Model: model.Name,
			Score: ranked.Score, LeftOut: options[ranked.Index].LeftOut, Note: ranked.Note,
		}
		switch {
		case standing.LeftOut != "":
		case len(r.picks) >= most:
			standing.LeftOut = leftPlace
		case len(r.picks) > 0 && channels[ranked.Index].Egress == domain.EgressNative && channels[ranked.Index].Slots > 0:
			standing.LeftOut = leftNative
		default:
			r.picks = append(r.picks, pick{channels[ranked.Index], model, trials[ranked.Index]})
		}
		if len(r.standings) < maxStandings {
			r.standings = append(r.standings, standing)
		}
	}
}

// maxStandings bounds what is kept of a route for those who ask why.
const maxStandings = 24

// affinityOf names the cached prompt that a request wants to find again.
func affinityOf(key domain.VirtualKey, peek *wire.Request) string {
	if peek.PromptCacheKey == "" {
		return ""
	}
	return key.ID + " " + peek.PromptCacheKey
}

// headerSession names a session in the requests of some clients. Others call it
// session_id: Envoy drops every header with an underscore before we see it.
const headerSession = "x-session-id"

// sessionOf names the session or the end user that a request is for, as far as
// the client says so. It is the client's word: good enough to choose among
// channels that may all serve, and for nothing else.
func sessionOf(key domain.VirtualKey, headers map[string]string, peek *wire.Request) string {
	session := cmp.Or(headers[headerSession], peek.Session)
	if session == "" {
		return ""
	}
	return key.ID + " " + session
}

// storedRef names what a provider keeps; field is where the request says so, ""
// for its path.
type storedRef struct{ field, id string }

// pinned finds the channel that made what the request continues or asks for; ""
// when it continues nothing. An id that this identity did not make goes
// nowhere: it may be another's, at the same provider's account.
func (s *Server) pinned(ctx context.Context, a ask, peek *wire.Request) (string, error) {
	if !a.api.Continues() {
		return a.stored.Channel, nil
	}
	channel := ""
	for _, ref := range []storedRef{{"previous_response_id", peek.PreviousResponseID}, {"conversation", peek.Conversation}} {
		if ref.id == "" {
			continue
		}
		made, err := s.recall(ctx, a.key, ref)
		switch {
		case err != nil:
			return "", err
		case channel != "" && channel != made.Channel:
			return "", &domain.Error{
				Code: domain.CodeInvalidRequest, NoRetry: true, Param: ref.field,
				Message: "The previous response and the conversation are kept by different providers; send one of them.",
			}
		}
		channel = made.Channel
	}
	return channel, nil
}

func (s *Server) recall(ctx context.Context, key domain.VirtualKey, ref storedRef) (domain.StoredID, error) {
	made, err := s.stored.Recall(ctx, key.Identity, ref.id)
	switch {
	case errors.Is(err, domain.ErrNotFound):
		return domain.StoredID{}, unknownID(ref)
	case err != nil:
		return domain.StoredID{}, errStoreAway
	}
	return made, nil
}

func unknownID(ref storedRef) *domain.Error {
	e := &domain.Error{
		Code: domain.CodeNotFound, NoRetry: true, Param: ref.field,
		Message: fmt.Sprintf("Nothing is known under the id %q: it does not exist, was made by another account, or too long ago.", clip(ref.id)),
	}
	if ref.field != "" {
		e.Message = fmt.Sprintf("Nothing is known under the %s %q: it does not exist, was made by another account, or too long ago. Send the whole input instead.", ref.field, clip(ref.id))
	}
	return e
}

// unroutable says at the time now why no channel can serve.
func (a ask) unroutable(r route, name string, now time.Time) *domain.Error {
	_, exists := a.snap.Channels[a.pinned]
	switch {
	case a.stored.ID != "" && !r.stands(a.pinned):
		return unknownID(storedRef{id: a.stored.ID})
	case a.pinned != "" && !exists:
		return &domain.Error{
			Code: domain.CodeNotFound, NoRetry: true, Param: "previous_response_id",
			Message: "What this request continues was made by a channel that this gateway no longer has. Send the whole input instead.",
		}
	case len(a.model.Channels) == 0 && len(r.picks) == 0 && !r.spoken:
		// Its channels are withheld, all of them: the name is right.
		return resting(r.soonest, now, 0)
	case !r.spoken:
		return &domain.Error{
			Code: domain.CodeModelNotFound, NoRetry: true, Param: "model",
			Message: fmt.Sprintf("The model %q is not served over this API; no channel speaks the %s dialect.", clip(name), a.api.Dialect()),
		}
	case a.pinned != "" && !r.stands(a.pinned):
		return &domain.Error{
			Code: domain.CodeNotFound, NoRetry: true, Param: "model",
			Message: fmt.Sprintf("What this request continues was made by a channel that does not serve the model %q. Use the model that made it, or send the whole input.", clip(name)),
		}
	}
	return resting(r.soonest, now, 0)
}

// stands reports whether channel serves any of the models at all.
func (r route) stands(channel string) bool {
	return slices.ContainsFunc(r.standings, func(s domain.Standing) bool { return s.Channel == channel && s.LeftOut != leftDialect })
}

// notices are the headers that an answer of a deprecated model has.
func notices(m domain.Model) []wire.Header {
	if m.State != domain.ModelDeprecated {
		return nil
	}
	list := []wire.Header{{Name: headerNotice, Value: fmt.Sprintf("The model %s is deprecated.", m.Name)}}
	if m.Notice != "" {
		list[0].Value = m.Notice
	}
	if !m.Sunset.IsZero() {
		list = append(list, wire.Header{Name: headerSunset, Value: m.Sunset.Format(http.TimeFormat)})
	}
	return list
}

const (
	headerNotice = "x-keyway-notice"
	// headerSunset is the standard's name (RFC 8594) for the time after which a
	// resource is expected to answer no more.
	headerSunset = "sunset"
)
