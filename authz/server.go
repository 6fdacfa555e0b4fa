package authz

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/structpb"

	"keyway/config"
	"keyway/domain"
	"keyway/envoy"
	"keyway/journal"
	"keyway/telemetry"
	"keyway/wire"
)

const (
	// recvBytes is the largest check request: the largest body that config
	// allows (64 MiB) and room for headers.
	recvBytes = 65 << 20
	// DefaultBodyBytes bounds the request bodies that an instance has let in
	// and that may still wait in front of the egress side (rule 2 of ARCHITECTURE §1).
	DefaultBodyBytes = 256 << 20
	// bodyHold is how long an admitted body that is to be patched counts:
	// Envoy gives up on the egress side after 5 s.
	bodyHold = 6 * time.Second
	// checkTimeout ends a check that nobody waits for any more; a store that
	// does not answer is noticed long before.
	checkTimeout = 4 * time.Second
)

// KeyChanges tells which keys have changed: fn gets the hash, or "" when
// changes may have been missed. It blocks until ctx ends.
type KeyChanges interface {
	WatchKeys(ctx context.Context, fn func(hash string)) error
}

// Options are what a Server needs; all of it is mandatory but Credentials, BodyBytes,
// KeyTTL, StopTimeout, JournalFile, JournalBytes, Now and Random.
type Options struct {
	Config       *config.Holder
	Keys         Keys
	KeyChanges   KeyChanges
	Reservations Reservations
	Calibrations Calibrations
	Cooldowns    Cooldowns
	ChannelStats ChannelStats
	Rates        Rates
	StoredIDs    StoredIDs
	// Listener is where Envoy connects; the Server closes it.
	Listener net.Listener
	// Credentials are those of the listener's connections; nil is plain text.
	Credentials credentials.TransportCredentials
	Health      *telemetry.Health
	Registerer  prometheus.Registerer
	Logger      *slog.Logger
	// BodyBytes bounds request bodies in flight; 0 is DefaultBodyBytes.
	BodyBytes int64
	// KeyTTL is how long a key's record is used without being read again, also
	// where no invalidation arrives; 0 is DefaultKeyTTL, which is the most.
	KeyTTL time.Duration
	// StopTimeout bounds the wait for running checks at the stop; 0 is 5 s.
	StopTimeout time.Duration
	// JournalFile keeps optimistic admissions until the store is back; without one
	// policies that allow them refuse.
	JournalFile string
	// JournalBytes bounds it; 0 is DefaultJournalBytes.
	JournalBytes int64
	Now          func() time.Time
	Random       func() float64
}

// Server is the authz service.
type Server struct {
	authv3.UnimplementedAuthorizationServer

	config       *config.Holder
	keyChanges   KeyChanges
	reservations Reservations
	stored       StoredIDs
	listener     net.Listener
	creds        credentials.TransportCredentials
	health       *telemetry.Health
	logger       *slog.Logger
	metrics      *metrics
	stopTimeout  time.Duration
	now          func() time.Time
	random       func() float64

	keys        *keyCache
	refunds     *refunds
	bodies      *bodyBudget
	calibration *calibration
	outage      *outage
	lending     *lending
	// journal is nil until Run has opened it, and where there is none.
	journal      atomic.Pointer[journal.Journal[domain.Decision]]
	journalFile  string
	journalBytes int64
	// What is wrong for many requests is logged now and then.
	unknown, unwritten complaint

	channelHealth *health
}

// New makes a Server; it does no I/O. Its errors are a KeyTTL out of bounds and
// those of the cache.
func New(o Options) (*Server, error) {
	if o.KeyTTL < 0 || o.KeyTTL > DefaultKeyTTL {
		return nil, fmt.Errorf("keys may be cached for at most %s, not for %s", DefaultKeyTTL, o.KeyTTL)
	}
	if o.KeyTTL == 0 {
		o.KeyTTL = DefaultKeyTTL
	}
	keys, err := newKeyCache(o.Keys, o.KeyTTL)
	if err != nil {
		return nil, fmt.Errorf("make key cache: %w", err)
	}
	s := &Server{
		journalFile: o.JournalFile, journalBytes: o.JournalBytes,
		config: o.Config, keyChanges: o.KeyChanges, reservations: o.Reservations, stored: o.StoredIDs,
		listener: o.Listener, creds: o.Credentials, health: o.Health, logger: o.Logger,
		stopTimeout: o.StopTimeout, now: o.Now, random: o.Random,
		keys:   keys,
		bodies: &bodyBudget{limit: o.BodyBytes},

		calibration: &calibration{from: o.Calibrations},
		outage:      newOutage(),
	}
	m := newMetrics(o.Registerer, s.journalSize)
	s.metrics = m
	s.refunds = newRefunds(o.Reservations, o.Logger, m.refundsDropped.Inc)
	if s.journalBytes == 0 {
		s.journalBytes = DefaultJournalBytes
	}
	s.channelHealth = &health{
		from: o.Cooldowns, stats: o.ChannelStats, channels: s.channels, metrics: m,
		now: func() time.Time { return s.now() }, changed: make(chan struct{}, 1),
	}
	if s.stopTimeout == 0 {
		s.stopTimeout = 5 * time.Second
	}
	if s.now == nil {
		s.now = time.Now
	}
	s.lending = newLending(o.Rates, o.Logger, s.now, m.notesDropped.Inc)
	s.lending.answered = func() { s.outage.over(s.now()) }
	if s.random == nil {
		s.random = rand.Float64
	}
	if s.bodies.limit == 0 {
		s.bodies.limit = DefaultBodyBytes
	}
	return s, nil
}

// Run serves until ctx ends: then it turns unready, sends Envoy's connections
// away, lets running checks end and gives back what is uncertain. A check that
// was on its way when the stop began is served as any other: refused, it would
// be the one that a restart fails.
func (s *Server) Run(ctx context.Context) error {
	defer s.keys.close()
	if err := s.openJournal(); err != nil {
		return errors.Join(err, s.listener.Close())
	}
	server := telemetry.NewGRPC(recvBytes, s.creds)
	authv3.RegisterAuthorizationServer(server, s)
	err := telemetry.ServeGRPC(ctx, telemetry.ServeGRPCOptions{
		Server: server, Listener: s.listener, Health: s.health, StopLimit: s.stopTimeout,
		Background: []func(context.Context) error{
			func(ctx context.Context) error { s.refunds.run(ctx); return nil },
			func(ctx context.Context) error { s.calibration.run(ctx); return nil },
			func(ctx context.Context) error { s.channelHealth.run(ctx); return nil },
			s.channelHealth.follow,
			func(ctx context.Context) error { s.lending.run(ctx); return nil },
			s.followKeys,
			s.replay,
		},
	})
	return errors.Join(err, s.closeJournal())
}

func (s *Server) journalSize() (entries int, bytes int64) {
	j := s.journal.Load()
	if j == nil {
		return 0, 0
	}
	return j.Len(), j.Size()
}

// followKeys drops cached keys that have changed.
func (s *Server) followKeys(ctx context.Context) error {
	if err := s.keyChanges.WatchKeys(ctx, s.keys.drop); err != nil && ctx.Err() == nil {
		return fmt.Errorf("watch key changes: %w", err)
	}
	return nil
}

// channels are those of the configuration in force.
func (s *Server) channels() map[string]domain.Channel {
	snap := s.config.Load()
	if snap == nil {
		return nil
	}
	return snap.Channels
}

// Check implements envoy.service.auth.v3.Authorization.
func (s *Server) Check(ctx context.Context, req *authv3.CheckRequest) (*authv3.CheckResponse, error) {
	start := time.Now()
	r := requestOf(req)
	admitted, err := s.admit(ctx, r)
	s.metrics.observe(err, time.Since(start))
	if err != nil {
		return s.denied(r, err), nil
	}
	if admitted.Answer != nil {
		return s.answered(r, admitted.Answer), nil
	}
	response, err := admittedResponse(admitted)
	if err != nil {
		// Nothing has gone out yet: what was reserved goes back.
		s.refunds.add(admitted.Decision)
		s.lending.putBack(admitted.Decision.Holds)
		return s.denied(r, err), nil
	}
	return response, nil
}

// admit bounds the bodies in flight around the check.
func (s *Server) admit(ctx context.Context, r Request) (Admitted, error) {
	size := int64(len(r.Body))
	if !s.bodies.take(size) {
		return Admitted{}, errOverload
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	admitted, err := s.check(ctx, r)
	if err == nil && patched(admitted.Decision) {
		time.AfterFunc(bodyHold, func() { s.bodies.give(size) })
	} else {
		s.bodies.give(size)
	}
	return admitted, err
}

// patched reports whether the egress service may have to hold the body.
func patched(d domain.Decision) bool {
	for _, c := range d.Candidates {
		if len(c.Patches) > 0 && c.Egress != domain.EgressNative {
			return true
		}
	}
	return false
}

func requestOf(req *authv3.CheckRequest) Request {
	line := req.GetAttributes().GetRequest().GetHttp()
	body := line.GetRawBody()
	if body == nil {
		body = []byte(line.GetBody())
	}
	return Request{
		ID: line.GetHeaders()["x-request-id"], Method: line.GetMethod(), Target: line.GetPath(),
		Headers: line.GetHeaders(), Body: body,
	}
}

// denied writes the refusal in the client's dialect.
func (s *Server) denied(r Request, err error) *authv3.CheckResponse {
	e := domain.AsError(err)
	var known *domain.Error
	if !errors.As(err, &known) {
		s.logger.Error("check failed", telemetry.RequestID(r.ID), telemetry.Err(err))
	}
	dialect := dialectOf(r)
	headers := wire.ErrorHeaders(dialect, e)
	if e.Limit != nil {
		headers = append(headers, wire.LimitHeaders(dialect, nil, domain.Admission{Refusal: e.Limit}, s.now())...)
	}
	headers = append(headers, wire.RequestIDHeaders(dialect, r.ID)...)
	return reply(wire.Status(dialect, e.Code), headers, wire.ErrorBody(dialect, e, r.ID))
}

// answered is an answer of the gateway's own. To Envoy it is a refusal with status 200.
func (s *Server) answered(r Request, body []byte) *authv3.CheckResponse {
	headers := append([]wire.Header{{Name: "content-type", Value: "application/json"}}, wire.RequestIDHeaders(dialectOf(r), r.ID)...)
	return reply(http.StatusOK, headers, body)
}

// reply ends a request here.
func reply(httpStatus int, headers []wire.Header, body []byte) *authv3.CheckResponse {
	return &authv3.CheckResponse{
		Status: &status.Status{Code: int32(code.Code_PERMISSION_DENIED)},
		HttpResponse: &authv3.CheckResponse_DeniedResponse{DeniedResponse: &authv3.DeniedHttpResponse{
			Status:  &typev3.HttpStatus{Code: typev3.StatusCode(httpStatus)},
			Headers: headerOptions(headers),
			Body:    string(body),
		}},
	}
}

func pathOf(target string) string {
	for i := range len(target) {
		if target[i] == '?' {
			return target[:i]
		}
	}
	return target
}

func headerOptions(headers []wire.Header) []*corev3.HeaderValueOption {
	out := make([]*corev3.HeaderValueOption, len(headers))
	for i, h := range headers {
		out[i] = &corev3.HeaderValueOption{
			Header:       &corev3.HeaderValue{Key: h.Name, Value: h.Value},
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		}
	}
	return out
}

// admittedResponse hands the decision to Envoy.
func admittedResponse(a Admitted) (*authv3.CheckResponse, error) {
	encoded, err := envoy.EncodeDecision(a.Decision)
	if err != nil {
		return nil, err
	}
	native, err := envoy.Native(a.Decision)
	if err != nil {
		return nil, err
	}
	groups := make([]*structpb.Value, len(a.Decision.Candidates))
	for i, c := range a.Decision.Candidates {
		groups[i] = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
			"name": structpb.NewStringValue(c.Channel),
			"clusters": structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{
				structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
					"cluster_name": structpb.NewStringValue(envoy.ClusterOf(c.Channel)),
					"weight":       structpb.NewNumberValue(1),
				}}),
			}}),
		}})
	}
	limits := []wire.Header{
		{Name: envoy.HeaderMaxRetries, Value: fmt.Sprint(len(a.Decision.Candidates) - 1)},
		{Name: envoy.HeaderPerTryTimeout, Value: fmt.Sprint(a.Decision.FirstByteLimit.Milliseconds())},
	}
	if a.Relay {
		// The relay goes from channel to channel, and says when it has waited enough.
		limits = []wire.Header{{Name: envoy.HeaderRelay, Value: "1"}}
	}
	return &authv3.CheckResponse{
		Status: &status.Status{Code: int32(code.Code_OK)},
		HttpResponse: &authv3.CheckResponse_OkResponse{OkResponse: &authv3.OkHttpResponse{
			Headers:              headerOptions(limits),
			HeadersToRemove:      wire.CredentialHeaders,
			ResponseHeadersToAdd: headerOptions(a.Headers),
		}},
		DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			envoy.MetadataGroups:   structpb.NewListValue(&structpb.ListValue{Values: groups}),
			envoy.MetadataDialect:  structpb.NewStringValue(string(a.Decision.API.Dialect())),
			envoy.MetadataDecision: structpb.NewStringValue(encoded),
			envoy.MetadataNative:   structpb.NewStringValue(native),
		}},
	}, nil
}
