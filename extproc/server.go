package extproc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"keyway/config"
	"keyway/domain"
	"keyway/envoy"
	"keyway/journal"
	"keyway/secret"
	"keyway/telemetry"
)

const (
	// recvBytes is the largest message: a buffered request body of the largest
	// size that config allows (64 MiB).
	recvBytes = 65 << 20
	// DefaultJournalBytes bounds the journal: some 50 000 settlements.
	DefaultJournalBytes = 64 << 20
)

// Secrets resolves references to SKs ("env:NAME", "file:PATH").
type Secrets interface {
	Resolve(ref string) (secret.Secret, error)
}

// Options are what a Server needs; all of it is mandatory but Credentials, JournalBytes,
// StopTimeout and Now.
type Options struct {
	Config      *config.Holder
	Store       Store
	Calibration Calibrator
	StoredIDs   StoredIDs
	Cooldowns   Cooldowns
	Learner     ChannelLearner
	Probes      Probes
	Followings  Followings
	Secrets     Secrets
	// Listener is where Envoy connects; the Server closes it.
	Listener net.Listener
	// Credentials are those of its connections; nil is plain text.
	Credentials credentials.TransportCredentials
	// Relay is where Envoy calls the relay; nil has none. The Server closes it.
	Relay net.Listener
	// Egress is where the relay and the probes call channels, and where is asked for
	// responses in the background, "unix:/path"; without it there is none of these.
	// Probes and Followings are mandatory with it.
	Egress     string
	Health     *telemetry.Health
	Registerer prometheus.Registerer
	Logger     *slog.Logger
	// JournalFile holds settlements while the store is away.
	JournalFile string
	// JournalBytes bounds it; 0 is DefaultJournalBytes.
	JournalBytes int64
	// StopTimeout is how long running streams may go on at the stop; 0 is 30 s.
	StopTimeout time.Duration
	Now         func() time.Time
}

// Server is the extproc service.
type Server struct {
	extprocv3.UnimplementedExternalProcessorServer
	accesslogv3.UnimplementedAccessLogServiceServer

	config      *config.Holder
	channels    *channels
	store       Store
	storedIDs   StoredIDs
	secrets     Secrets
	listener    net.Listener
	creds       credentials.TransportCredentials
	health      *telemetry.Health
	logger      *slog.Logger
	metrics     *metrics
	journalFile string
	journalSize int64
	stopTimeout time.Duration
	now         func() time.Time

	leases        *leases
	ends          *ends
	recent        *recent
	journal       *journal.Journal[domain.Settlement]
	calibration   *calibration
	evidence      *evidence
	relay         *relay // nil for none
	relayListener net.Listener
	prober        *prober     // nil for none
	background    *background // nil for none
	// watches counts streams whose settlement is still due.
	watches sync.WaitGroup
	// quiet is closed once the stop has begun and nothing is held any more.
	quiet chan struct{}
}

// New makes a Server; it does no I/O.
func New(o Options) (*Server, error) {
	s := &Server{
		config: o.Config, store: o.Store, storedIDs: o.StoredIDs, secrets: o.Secrets, listener: o.Listener, creds: o.Credentials,
		health: o.Health, logger: o.Logger,
		journalFile: o.JournalFile, journalSize: o.JournalBytes, stopTimeout: o.StopTimeout, now: o.Now,
		leases: newLeases(o.Store, o.Logger), ends: newEnds(), recent: newRecent(),
		calibration: newCalibration(o.Calibration), quiet: make(chan struct{}),
	}
	if s.journalFile == "" {
		return nil, errors.New("extproc needs a journal file")
	}
	if s.journalSize == 0 {
		s.journalSize = DefaultJournalBytes
	}
	if s.stopTimeout == 0 {
		s.stopTimeout = 30 * time.Second
	}
	if s.now == nil {
		s.now = time.Now
	}
	s.channels = newChannels(s.now)
	o.Config.OnChange(s.channels.follow)
	s.metrics = newMetrics(o.Registerer, func() float64 { return float64(s.leases.len()) }, func() float64 {
		if s.journal == nil {
			return 0
		}
		return float64(s.journal.Len())
	})
	e := &evidence{book: o.Cooldowns, learner: o.Learner, now: s.now, logger: s.logger, metrics: s.metrics}
	e.bounds = func() domain.CooldownBounds {
		if snap := o.Config.Load(); snap != nil {
			return snap.Cooldown
		}
		return domain.CooldownBounds{First: config.DefaultCooldownFirst, Least: config.DefaultCooldownMin, Most: config.DefaultCooldownMax}
	}
	s.evidence = e.init()
	if o.Egress == "" {
		if o.Relay != nil {
			return nil, errors.New("the relay needs the address of Envoy's egress listener")
		}
		return s, nil
	}
	egress, err := newEgressClient(o.Egress)
	if err != nil {
		return nil, fmt.Errorf("make client of channels: %w", err)
	}
	s.prober = &prober{store: o.Probes, egress: egress, config: o.Config, evidence: s.evidence, metrics: s.metrics, logger: s.logger}
	s.background = newBackground(s, egress, o.Followings)
	if o.Relay != nil {
		s.relay, s.relayListener = &relay{server: s, egress: egress, bodies: semaphore.NewWeighted(relayBodies)}, o.Relay
	}
	return s, nil
}

// Run serves until ctx ends: then it turns unready, lets streams run to the
// deadline, settles what is open and lands the journal as far as the store answers.
func (s *Server) Run(ctx context.Context) error {
	j, err := openJournal(s.journalFile, s.journalSize)
	if err != nil {
		err = errors.Join(err, s.listener.Close())
		if s.relay != nil {
			err = errors.Join(err, s.relayListener.Close())
		}
		return err
	}
	s.journal = j
	if n := j.Len(); n > 0 {
		s.logger.Info("journal holds settlements of an earlier run", slog.Int("count", n))
	}
	for _, waiting := range j.Waiting() {
		s.keepOpen(waiting.Decision)
	}
	replay := s.newReplay()
	server := telemetry.NewGRPC(recvBytes, s.creds)
	extprocv3.RegisterExternalProcessorServer(server, s)
	accesslogv3.RegisterAccessLogServiceServer(server, s)
	stopping := make(chan struct{})
	endUpkeep := s.upkeep(ctx, stopping, replay)
	err = telemetry.ServeGRPC(ctx, telemetry.ServeGRPCOptions{
		Server: server, Listener: s.listener, Health: s.health, StopLimit: s.stopTimeout,
		Stopping: func() { close(stopping) },
		Background: []func(context.Context) error{
			func(context.Context) error { return s.runRelay(stopping) },
			func(ctx context.Context) error { s.awaitQuiet(ctx, stopping); return nil },
			func(ctx context.Context) error {
				if s.prober != nil {
					s.prober.run(ctx)
				}
				return nil
			},
		},
	})
	// What is still open is settled by the exits of the streams' handlers.
	s.watches.Wait()
	endUpkeep()
	replay.Drain(context.Background())
	if n := s.journal.Len(); n > 0 {
		s.logger.Warn("settlements stay in the journal for the next start", slog.Int("count", n))
	}
	return errors.Join(err, s.journal.Close())
}

// upkeep does what open requests need for as long as there are any, which is
// beyond the end of gRPC: streams of the relay may outlive it, and without their
// leases would be swept. The function that it returns ends it.
func (s *Server) upkeep(ctx context.Context, stopping <-chan struct{}, replay *journal.Replay[domain.Settlement]) (end func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	for _, run := range []func(context.Context){s.leases.run, replay.Run, s.calibration.run, s.evidence.run} {
		running.Go(func() { run(ctx) })
	}
	if s.background != nil {
		running.Go(func() { s.background.run(ctx, stopping) })
	}
	return func() {
		cancel()
		running.Wait()
	}
}

// runRelay serves the relay, where there is one, until the stop begins; its
// streams go on beside those of the watch.
func (s *Server) runRelay(stopping <-chan struct{}) error {
	if s.relay == nil {
		return nil
	}
	return s.relay.run(s.relayListener, stopping, s.stopTimeout)
}

// Process implements envoy.service.ext_proc.v3.ExternalProcessor for both sides.
func (s *Server) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	md, _ := metadata.FromIncomingContext(stream.Context())
	decision, err := envoy.DecodeDecision(first(md, envoy.HeaderDecision))
	known := err == nil
	if err != nil && !errors.Is(err, domain.ErrNotFound) {
		s.logger.Error("stream without a readable decision", telemetry.Err(err))
	}
	switch side := first(md, envoy.HeaderSide); side {
	case envoy.SideEgress:
		return s.processEgress(stream, egressStream{
			decision: decision, known: known,
			channel: first(md, envoy.HeaderChannel), baseURL: first(md, envoy.HeaderUpstream), attempt: first(md, envoy.HeaderAttempt),
			notes: first(md, envoy.HeaderAttempts),
		})
	case envoy.SideWatch:
		return s.processWatch(stream, watchStream{decision: decision, known: known, notes: first(md, envoy.HeaderAttempts)})
	default:
		return fmt.Errorf("stream of unknown side %q", side)
	}
}

func first(md metadata.MD, key string) string {
	if v := md.Get(key); len(v) > 0 {
		return v[0]
	}
	return ""
}
