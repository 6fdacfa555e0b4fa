package xds

import (
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/envoy"
)

// Options of a control plane. ConfigFile, ListenXDS and Registerer are needed.
type Options struct {
	// ConfigFile is the desired state of the region, YAML; it is followed.
	ConfigFile string
	// StateFile keeps the version and content last published, so that
	// versions never go back and a change made while the control plane was
	// away is rolled out in order; "" keeps nothing.
	StateFile string
	// ListenXDS is "host:port" or "unix:/path".
	ListenXDS string
	// Credentials are those of its connections, which have to keep everyone out but
	// Envoys and services; nil is plain text. Then SKs are served only where none
	// but processes of this machine reach ListenXDS.
	Credentials credentials.TransportCredentials
	// OnListen is called once with the bound address before the first stream; may be nil.
	OnListen func(net.Addr)
	// Logger is slog.Default when nil.
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	// Build makes the Envoy resources; default envoy.Build.
	Build func(*keywayv1.Config) (envoy.Resources, error)
	// ResolveSecret turns the reference of a native channel's SK into the SK; an
	// error, which must not hold any of it, withholds the channel. Nil resolves none.
	ResolveSecret func(ref string) (string, error)
	// AckWait is how long the services wait for the Envoys' ACK of new
	// clusters; default 5s. It is several times a cluster's warm-up and
	// bounds what one frozen Envoy can do to the region.
	AckWait time.Duration
	// RemovalGrace is how long a cluster stays after the last service
	// stopped naming it; default is the configuration's drain_time.
	RemovalGrace time.Duration
	// PollInterval is how often the file is read where no change is
	// notified (network file systems); default 2s.
	PollInterval time.Duration
}

const (
	defaultAckWait      = 5 * time.Second
	defaultPollInterval = 2 * time.Second
)

var errIncomplete = errors.New("xds options: config file, listen address and registerer are needed")

func (o Options) withDefaults() (Options, error) {
	if o.ConfigFile == "" || o.ListenXDS == "" || o.Registerer == nil {
		return o, errIncomplete
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Build == nil {
		o.Build = envoy.Build
	}
	if o.AckWait == 0 {
		o.AckWait = defaultAckWait
	}
	if o.PollInterval == 0 {
		o.PollInterval = defaultPollInterval
	}
	return o, nil
}
