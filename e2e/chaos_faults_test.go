package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"keyway/e2e/fakeprovider"
)

const (
	// faultGrace is how long after its end a fault still explains an error:
	// calls that waited for the service fail by their own timeouts until then.
	faultGrace = 2 * time.Second
	// quiet is the pause between a fault's grace and the next fault, in which
	// no error is allowed.
	quiet = 3 * time.Second
	// restartLimit is how long a killed service may take to serve again.
	restartLimit = 30 * time.Second
)

// faultLog remembers when services were stopped or dead.
type faultLog struct {
	mu      sync.Mutex
	windows []faultWindow
}

type faultWindow struct {
	name string
	from time.Time
	// to is zero while it lasts.
	to time.Time
	// harmless faults explain nothing: the service is not on a request's path.
	harmless bool
}

func (l *faultLog) begin(w faultWindow) (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.from = time.Now()
	l.windows = append(l.windows, w)
	at := len(l.windows) - 1
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.windows[at].to = time.Now()
	}
}

func (l *faultLog) add(w faultWindow) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.windows = append(l.windows, w)
}

// during is how long the time between from and to lay in faults and their
// grace; 0 says that no fault explains what happened then.
func (l *faultLog) during(from, to time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	var sum time.Duration
	for _, w := range l.windows {
		end := w.to.Add(faultGrace)
		if w.to.IsZero() {
			end = to
		}
		if w.harmless || w.from.After(to) || end.Before(from) {
			continue
		}
		sum += time.Duration(min(to.UnixNano(), end.UnixNano()) - max(from.UnixNano(), w.from.UnixNano()) + 1)
	}
	return sum
}

func (l *faultLog) report(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.windows) == 0 {
		return
	}
	var out strings.Builder
	for _, w := range l.windows {
		fmt.Fprintf(&out, " %s %s for %.1fs;", w.from.Format("15:04:05"), w.name, w.to.Sub(w.from).Seconds())
	}
	t.Logf("faults:%s", out.String())
}

// breakServices stops and kills services one at a time until ctx ends: the
// whole deck in a new order each time, so that a short run meets all of it.
func (c *chaos) breakServices(ctx context.Context, rng *rand.Rand) {
	brief := func() time.Duration { return time.Second + upTo(rng, 2*time.Second) }
	deck := []func(){
		func() { c.freeze(ctx, "extproc", brief()) },
		// Longer than Envoy waits for an answer.
		func() { c.freeze(ctx, "extproc", 6*time.Second) },
		func() { c.freeze(ctx, "authz", brief()) },
		func() { c.freeze(ctx, "store", brief()) },
		func() { c.freeze(ctx, "xds", brief()) },
		func() { c.freeze(ctx, "worker", brief()) },
		func() { c.kill("extproc") },
		func() { c.kill("authz") },
		func() { c.kill("worker") },
	}
	for {
		rng.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		for _, fault := range deck {
			if !rest(ctx, quiet) {
				return
			}
			fault()
			if !rest(ctx, faultGrace) {
				return
			}
		}
	}
}

const (
	// storeLook is how often watchStore asks, storeSlow the answer that is late
	// enough for the services to take the store for gone (they look for 70 ms).
	storeLook = 10 * time.Millisecond
	storeSlow = 40 * time.Millisecond
)

// watchStore notes, until ctx ends, when the store itself did not answer in
// time though nobody had stopped it: on a crowded machine, or with a slow
// disk, refusing requests then is right.
func (c *chaos) watchStore(ctx context.Context) {
	for rest(ctx, storeLook) {
		asked := time.Now()
		err := c.stack.store.Ping(ctx)
		if took := time.Since(asked); took > storeSlow && err == nil {
			c.slow.add(faultWindow{name: "slow store", from: asked, to: time.Now()})
		}
	}
}

// rest passes d; false when ctx ended first.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// offPath are the services that no request waits for.
func offPath(name string) bool { return name == "xds" || name == "worker" }

// freeze stops a service's process for d.
func (c *chaos) freeze(ctx context.Context, name string, d time.Duration) {
	r, err := c.readyNow()
	if err != nil {
		c.judge.fail("freeze %s: %v", name, err)
		return
	}
	end := c.faults.begin(faultWindow{name: "freeze " + name, harmless: offPath(name)})
	defer end()
	if err := syscall.Kill(r.PIDs[name], syscall.SIGSTOP); err != nil {
		c.judge.fail("freeze %s: %v", name, err)
	}
	rest(ctx, d)
	if err := syscall.Kill(r.PIDs[name], syscall.SIGCONT); err != nil {
		c.judge.fail("thaw %s: %v", name, err)
	}
}

// kill ends a service as a crash does, and waits for its successor.
func (c *chaos) kill(name string) {
	r, err := c.readyNow()
	if err != nil {
		c.judge.fail("kill %s: %v", name, err)
		return
	}
	end := c.faults.begin(faultWindow{name: "kill " + name, harmless: offPath(name)})
	defer end()
	if err := syscall.Kill(r.PIDs[name], syscall.SIGKILL); err != nil {
		c.judge.fail("kill %s: %v", name, err)
	}
	back := poll(restartLimit, func() bool {
		now, err := c.readyNow()
		return err == nil && now.PIDs[name] != r.PIDs[name] && answers(now.Services[name].ReadyURL)
	})
	if !back {
		c.judge.fail("%s was not back %s after it was killed", name, restartLimit)
	}
}

// answers reports whether a readiness page says 200.
func answers(url string) bool {
	quick := http.Client{Timeout: time.Second}
	resp, err := quick.Get(url)
	if err != nil {
		return false
	}
	_ = resp.Body.Close() // only the status counts
	return resp.StatusCode == http.StatusOK
}

// extraChannel is a channel that comes, moves between the faces, and goes
// during a run.
const extraChannel = "extra"

// vary changes, until ctx ends, what must never hurt a request: the
// configuration, the pace of handshakes, and a provider that answers too early.
func (c *chaos) vary(ctx context.Context, rng *rand.Rand) {
	provider := c.stack.provider
	defer func() {
		provider.Face("c").Reset()
		provider.Face("tlsa").SetHandshakeDelay(0)
		provider.Face("tlsb").SetHandshakeDelay(0)
	}()
	for rest(ctx, 500*time.Millisecond+upTo(rng, time.Second)) {
		switch rng.IntN(4) {
		case 0, 1:
			face := []string{"tlsa", "tlsb"}[rng.IntN(2)]
			provider.Face(face).SetHandshakeDelay(upTo(rng, 2*time.Second))
		case 2:
			status := []int{200, 429, 500}[rng.IntN(3)]
			provider.Face("c").Script(fakeprovider.Script{Early: true, Status: status})
			rest(ctx, 500*time.Millisecond+upTo(rng, time.Second))
			provider.Face("c").Reset()
		}
		if err := c.push(rng); err != nil {
			c.judge.fail("push configuration: %v", err)
		}
	}
}

// push writes the configuration with or without the extra channel, at another
// provider and with other slots each time.
func (c *chaos) push(rng *rand.Rand) error {
	var v configValues
	if rng.IntN(3) > 0 {
		face := faceNames[rng.IntN(len(faceNames))]
		v.ExtraChannels = fmt.Sprintf(`  - {name: %s, provider: %s, secret: "file:%s/%s.sk", priority: 1, slots: %d, models: [{name: m, upstream: m-at-%s}, {name: m-h2}]}`,
			extraChannel, face, c.stack.dir, face, 100+rng.IntN(1000), extraChannel)
	}
	return c.stack.writeConfig(v)
}
