package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"keyway/cmd/keyway/supervise"
	"keyway/envoy"
)

// The processes of a region, by the names that ready.json uses.
const (
	procStore        = "store"
	procFakeProvider = "fakeprovider"
	procXDS          = "xds"
	procAuthz        = "authz"
	procExtproc      = "extproc"
	procWorker       = "worker"
	procEnvoy        = "envoy"
)

// stopOrder is the order in which `keyway up` stops (ARCHITECTURE §9). It is
// not the start order reversed: Envoy goes first and lets running requests end;
// then no check can come, so authz goes; extproc settles what was still open;
// the worker, last of those that write, carries the settlements into the
// ledger; xds has nothing to drain; provider and store have no user left.
var stopOrder = []string{procEnvoy, procAuthz, procExtproc, procWorker, procXDS, procFakeProvider, procStore}

// Deadlines of a stop, after which a process is killed.
const (
	stopService = 15 * time.Second // authz, extproc and worker finish what they hold
	stopStore   = 10 * time.Second // the append-only file is flushed
	stopHard    = 3 * time.Second  // xds and the fake provider have nothing to save
	stopEnvoy   = 2 * time.Second  // beyond --stop-grace
	stopMargin  = 3 * time.Second  // between a service's own limit and its end
)

// step is one act of the start: most start a process and wait for it.
type step func(ctx context.Context, children *supervise.Supervisor) error

func startStep(spec supervise.Spec) step {
	return func(ctx context.Context, children *supervise.Supervisor) error { return children.Start(ctx, spec) }
}

// steps are the acts in their order: whom the next process needs comes first,
// and Envoy last, when everyone can answer it. The demo key goes into state.
func (r *region) steps(state *readiness) []step {
	var steps []step
	if r.parts.StoreURL == "" {
		steps = append(steps, startStep(r.storeSpec()))
	}
	return append(steps,
		func(ctx context.Context, _ *supervise.Supervisor) error { return r.ensureKey(ctx, state) },
		startStep(r.providerSpec()),
		startStep(r.ownSpec(procXDS, r.AdminPort, "--config", r.configFile, "--listen", r.socket(procXDS),
			"--state", filepath.Join(r.State, "xds.version"))),
		startStep(r.ownSpec(procAuthz, r.AuthzPort, append(r.regionArgs(procAuthz), r.authzArgs()...)...)),
		startStep(r.ownSpec(procExtproc, r.ExtprocPort, append(r.regionArgs(procExtproc), r.extprocArgs()...)...)),
		startStep(r.ownSpec(procWorker, r.WorkerPort, "--ledger", r.Ledger)),
		func(context.Context, *supervise.Supervisor) error { return r.writeEnvoyConfig() },
		startStep(r.envoySpec()),
	)
}

// ownSpec is a service of this binary.
func (r *region) ownSpec(name string, port int, args ...string) supervise.Spec {
	spec := supervise.Spec{
		Name: name, Path: r.binary, LogFile: r.log(name), StopWithin: stopService,
		Args: append([]string{name, "--metrics", localAddr(port), "--log-level", r.LogLevel}, args...),
		// The store's URL may hold a password; an argument is everybody's to read.
		Env:   []string{envStore + "=" + r.ownStoreURL()},
		Ready: answers200(serviceAt(port).ReadyURL),
	}
	if name == procXDS {
		spec.StopWithin = stopHard
	}
	return spec
}

// regionArgs are the arguments that authz and extproc share.
func (r *region) regionArgs(name string) []string {
	return []string{
		"--listen", r.socket(name), "--xds", r.socket(procXDS), "--region", r.config.GetRegion(),
		"--cache", filepath.Join(r.State, name+".config"), "--stop-limit", (stopService - stopMargin).String(),
	}
}

func (r *region) authzArgs() []string {
	return []string{"--journal", filepath.Join(r.State, "authz.journal")}
}

func (r *region) extprocArgs() []string {
	return []string{"--journal", filepath.Join(r.State, "extproc.journal"), "--relay", r.socket(sockRelay), "--egress", r.socket(sockEgress)}
}

// The sockets that are no process's own.
const (
	sockRelay  = "relay"
	sockEgress = "egress"
)

// sockStore is the file of the store's socket.
const sockStore = "store.sock"

func (r *region) providerSpec() supervise.Spec {
	return supervise.Spec{
		Name: procFakeProvider, Path: r.binary, LogFile: r.log(procFakeProvider), StopWithin: stopHard,
		Args:  []string{procFakeProvider, "--listen", localAddr(r.ProviderPort)},
		Ready: answers200(localURL(r.ProviderPort) + "/_open"),
	}
}

func (r *region) storeURL() string {
	if r.parts.StoreURL != "" {
		return r.parts.StoreURL
	}
	return fmt.Sprintf("redis://%s/0", localAddr(r.StorePort))
}

// ownStoreURL is the store's URL for our services: a store that runs here as well
// is reached over a socket, which costs both sides less than a connection.
func (r *region) ownStoreURL() string {
	if r.parts.StoreURL != "" {
		return r.parts.StoreURL
	}
	return (&url.URL{Scheme: "unix", Path: r.run(sockStore)}).String()
}

// storeSpec runs the store as production does (ARCHITECTURE §6): nothing is
// evicted, every write is logged.
func (r *region) storeSpec() supervise.Spec {
	return supervise.Spec{
		Name: procStore, Path: r.parts.Store, LogFile: r.log(procStore), StopWithin: stopStore,
		Args: []string{
			"--bind", loopback, "--port", strconv.Itoa(r.StorePort),
			"--unixsocket", r.run(sockStore), "--unixsocketperm", "700", "--dir", r.Data, "--daemonize", "no",
			"--maxmemory-policy", "noeviction", "--appendonly", "yes", "--appendfsync", "everysec", "--save", "",
		},
		Ready: answersPing(localAddr(r.StorePort)),
	}
}

func (r *region) envoySpec() supervise.Spec {
	ready := answers200(localURL(r.EnvoyPort) + "/ready")
	return supervise.Spec{
		Name: procEnvoy, Path: r.parts.Envoy, LogFile: r.log(procEnvoy), StopWithin: r.StopGrace + stopEnvoy,
		Args: []string{
			"--config-path", r.envoyConfig(), "--reject-unknown-dynamic-fields", "--log-level", "warning",
			"--concurrency", strconv.Itoa(r.Concurrency),
			"--drain-time-s", strconv.Itoa(int(r.config.GetLimits().GetDrainTime().AsDuration().Seconds())),
			// Hot restart would need a number of its own for every Envoy of the
			// machine, and leaves shared memory behind when one is killed.
			"--disable-hot-restart",
		},
		Ready: func(ctx context.Context) error {
			if err := ready(ctx); err != nil {
				return err
			}
			return accepts(ctx, r.ingress())
		},
		BeforeStop: r.drainEnvoy,
	}
}

// ingress is where a client on this machine reaches the listener.
func (r *region) ingress() string {
	host := r.config.GetListener().GetAddress()
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = loopback
	}
	return net.JoinHostPort(host, strconv.Itoa(r.Port))
}

func (r *region) envoyConfig() string { return r.run("envoy.yaml") }

// writeEnvoyConfig writes the bootstrap that envoySpec names.
func (r *region) writeEnvoyConfig() error {
	b, err := envoy.Bootstrap(envoy.BootstrapOptions{
		NodeID: "envoy-0", Region: r.config.GetRegion(), Admin: localAddr(r.EnvoyPort),
		XDS: r.socket(procXDS), Authz: r.socket(procAuthz), Extproc: r.socket(procExtproc),
		Relay: r.socket(sockRelay), Egress: r.socket(sockEgress),
	})
	if err != nil {
		return fmt.Errorf("build Envoy bootstrap: %w", err)
	}
	text, err := renderBootstrap(b, "yaml")
	if err != nil {
		return err
	}
	return writeFile(r.envoyConfig(), text)
}

// activeRequests is Envoy's gauge of requests that clients wait for.
const activeRequests = "http." + envoy.ListenerIngress + ".downstream_rq_active"

// drainEnvoy closes the door to new connections and waits until no request
// runs, at most --stop-grace: Envoy itself ends at once at a signal.
func (r *region) drainEnvoy(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, r.StopGrace)
	defer cancel()
	admin := localURL(r.EnvoyPort)
	for _, path := range []string{"/healthcheck/fail", "/drain_listeners"} {
		if _, err := call(ctx, http.MethodPost, admin+path); err != nil {
			return // An Envoy that does not answer cannot be drained.
		}
	}
	for {
		stats, err := call(ctx, http.MethodGet, admin+"/stats?filter="+activeRequests)
		if err != nil || !strings.Contains(stats, activeRequests) || strings.Contains(stats, activeRequests+": 0") {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// maxAnswer bounds what is read of an answer to a probe.
const maxAnswer = 64 << 10

func call(ctx context.Context, method, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	if err != nil {
		return "", fmt.Errorf("make request: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return "", fmt.Errorf("read answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s answers %s: %s", url, resp.Status, strings.TrimSpace(string(body)))
	}
	return string(body), nil
}

// The readiness of each kind of process.

func answers200(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := call(ctx, http.MethodGet, url)
		return err
	}
}

func accepts(ctx context.Context, address string) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// answersPing waits for PONG: a store that still loads its data accepts
// connections and answers with an error.
func answersPing(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		defer conn.Close()
		if deadline, ok := ctx.Deadline(); ok {
			if err := conn.SetDeadline(deadline); err != nil {
				return err
			}
		}
		if _, err := conn.Write([]byte("PING\r\n")); err != nil {
			return err
		}
		answer := make([]byte, 64)
		n, err := conn.Read(answer)
		if err != nil {
			return err
		}
		if !strings.HasPrefix(string(answer[:n]), "+PONG") {
			return fmt.Errorf("store answers %q", answer[:n])
		}
		return nil
	}
}
