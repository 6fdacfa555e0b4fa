package xds

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/envoy"
)

// secretPoll is how often the SKs of native channels are read again: a rotated
// one reaches the Envoys about so much later, and changes no cluster.
const secretPoll = time.Second

// errNoResolver: a program that serves no native channel needs none.
var errNoResolver = errors.New("this control plane resolves no secrets")

// build makes Envoy's resources, but none with SKs that whoever reaches the
// listener could ask for.
func (p *plane) build(cfg *keywayv1.Config) (envoy.Resources, error) {
	res, err := p.opts.Build(cfg)
	if err != nil || len(res.Secrets) == 0 || p.opts.Credentials != nil || onThisMachine(p.opts.ListenXDS) {
		return res, err
	}
	var native []string
	for _, ch := range cfg.GetChannels() {
		if _, ok := res.Secrets[envoy.SecretOf(ch.GetName())]; ok {
			native = append(native, ch.GetName())
		}
	}
	return envoy.Resources{}, fmt.Errorf(
		"channels with egress: native (%s): whoever reaches %s could ask for their secret keys; give xds --tls-cert, --tls-key and --tls-ca, or a --listen that is a Unix socket or a loopback address",
		strings.Join(native, ", "), p.opts.ListenXDS)
}

// onThisMachine reports whether nothing but processes of this machine reaches address.
func onThisMachine(address string) bool {
	if strings.HasPrefix(address, unixScheme) {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// readSecrets serves the SKs of res, and notes which channels have none. What
// cannot be read any more is served as empty, so that no Envoy goes on using it.
func (p *plane) readSecrets(res envoy.Resources) error {
	resolve := p.opts.ResolveSecret
	if resolve == nil {
		resolve = func(string) (string, error) { return "", errNoResolver }
	}
	served := make(map[string]*tlsv3.Secret, len(res.Secrets))
	lost := make(map[string]bool)
	for name, ref := range res.Secrets {
		value, err := resolve(ref)
		if err != nil {
			lost[name] = true
			if !p.lost[name] {
				p.logger.Error("a channel has no credential and is withheld", "secret", name, "error", err)
			}
			if p.secrets.versions[name] == "" {
				continue
			}
		}
		served[name] = envoy.Secret(name, value)
	}
	p.lost = lost
	p.secretsDue = time.Now().Add(secretPoll)
	if _, err := put(p.secrets, served); err != nil {
		return fmt.Errorf("push secrets: %w", err)
	}
	return nil
}

// withSecret are the clusters of res that may be served: a cluster never goes
// out before its secret.
func (p *plane) withSecret(res envoy.Resources) map[string]*clusterv3.Cluster {
	if len(p.lost) == 0 {
		return res.Clusters
	}
	out := maps.Clone(res.Clusters)
	maps.DeleteFunc(out, func(name string, _ *clusterv3.Cluster) bool { return p.withoutSecret(name) })
	return out
}

// withoutSecret reports whether the SK of a channel's cluster cannot be read.
func (p *plane) withoutSecret(cluster string) bool {
	channel, ok := envoy.ChannelOf(cluster)
	return ok && p.lost[envoy.SecretOf(channel)]
}

// refreshSecrets reads the SKs again when that is due. A channel that has its
// credential back is rolled out like a new one.
func (p *plane) refreshSecrets(now time.Time) error {
	if len(p.resources.Secrets) == 0 || now.Before(p.secretsDue) {
		return nil
	}
	before := p.lost
	if err := p.readSecrets(p.resources); err != nil {
		return err
	}
	for name := range before {
		if !p.lost[name] {
			p.logger.Info("a channel has its credential again", "secret", name)
			return p.begin(p.accepted, p.resources, absentIsDone)
		}
	}
	return nil
}

// dropSecrets stops serving the SKs of channels whose clusters are gone.
func (p *plane) dropSecrets(clusters []string) error {
	var names []string
	for _, cluster := range clusters {
		if channel, ok := envoy.ChannelOf(cluster); ok && p.secrets.versions[envoy.SecretOf(channel)] != "" {
			names = append(names, envoy.SecretOf(channel))
		}
	}
	if err := p.secrets.remove(slices.Compact(names)); err != nil {
		return fmt.Errorf("remove secrets: %w", err)
	}
	return nil
}
