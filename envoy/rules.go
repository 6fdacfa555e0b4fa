package envoy

import (
	"bytes"
	"errors"
	"fmt"
	"maps"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/proto"
)

// CheckRules holds a configuration to the two rules of ARCHITECTURE §1, each
// of which keeps the whole Envoy process alive. It returns every break.
func CheckRules(b *bootstrapv3.Bootstrap, res Resources, maxRequestBytes uint64) error {
	var problems []error
	egressUsers := 0
	for name, c := range res.Clusters {
		used, err := checkChannel(c)
		if err != nil {
			problems = append(problems, fmt.Errorf("cluster %s: %w", name, err))
		}
		egressUsers += used
	}
	// Each channel has one form of egress; that of native ones is their secret.
	if forms := egressUsers + len(res.Secrets); forms != len(res.Clusters) {
		problems = append(problems, fmt.Errorf("%d channel clusters have %d forms of egress", len(res.Clusters), forms))
	}
	listeners := maps.Clone(res.Listeners)
	for _, l := range b.GetStaticResources().GetListeners() {
		listeners[l.GetName()] = l
	}
	for name, l := range listeners {
		raw, err := proto.Marshal(l)
		if err != nil {
			problems = append(problems, fmt.Errorf("marshal listener %s: %w", name, err))
		}
		// The name stands in nested, packed configs: its bytes are the plain test.
		if bytes.Contains(raw, []byte(ClusterEgress)) {
			problems = append(problems, fmt.Errorf("listener %s shares the egress service's cluster", name))
		}
	}
	for _, c := range b.GetStaticResources().GetClusters() {
		if c.GetName() == ClusterEgress {
			problems = append(problems, checkEgressLimits(c, maxRequestBytes))
		}
	}
	return errors.Join(problems...)
}

// checkChannel is rule 1: no asynchronous filter takes part in a channel
// cluster's response. It returns how many egress filters the chain has.
func checkChannel(c *clusterv3.Cluster) (egress int, err error) {
	options, err := httpOptions(c)
	if err != nil {
		return 0, err
	}
	for _, f := range options.GetHttpFilters() {
		proc := &extprocv3.ExternalProcessor{}
		if !f.GetTypedConfig().MessageIs(proc) {
			continue
		}
		if err := f.GetTypedConfig().UnmarshalTo(proc); err != nil {
			return 0, fmt.Errorf("read filter %s: %w", f.GetName(), err)
		}
		mode := proc.GetProcessingMode()
		if mode.GetResponseHeaderMode() != extprocv3.ProcessingMode_SKIP ||
			mode.GetResponseBodyMode() != extprocv3.ProcessingMode_NONE ||
			mode.GetResponseTrailerMode() != extprocv3.ProcessingMode_SKIP {
			return 0, fmt.Errorf("filter %s takes part in the response", f.GetName())
		}
		if proc.GetGrpcService().GetEnvoyGrpc().GetClusterName() != ClusterEgress {
			return 0, fmt.Errorf("filter %s does not use %s", f.GetName(), ClusterEgress)
		}
		egress++
	}
	return egress, nil
}

// checkEgressLimits is rule 2: the egress cluster's write limits are out of reach.
func checkEgressLimits(c *clusterv3.Cluster, maxRequestBytes uint64) error {
	options, err := httpOptions(c)
	if err != nil {
		return err
	}
	h2 := options.GetExplicitHttpConfig().GetHttp2ProtocolOptions()
	switch {
	case c.GetPerConnectionBufferLimitBytes().GetValue() < egressBuffer:
		return fmt.Errorf("cluster %s: connection buffer %d is below %d", c.GetName(), c.GetPerConnectionBufferLimitBytes().GetValue(), egressBuffer)
	case uint64(h2.GetInitialStreamWindowSize().GetValue()) <= 2*maxRequestBytes:
		return fmt.Errorf("cluster %s: stream window %d is not above twice the largest body %d", c.GetName(), h2.GetInitialStreamWindowSize().GetValue(), maxRequestBytes)
	case h2.GetInitialConnectionWindowSize().GetValue() < egressConnWindow:
		return fmt.Errorf("cluster %s: connection window %d is below %d", c.GetName(), h2.GetInitialConnectionWindowSize().GetValue(), egressConnWindow)
	}
	return nil
}

func httpOptions(c *clusterv3.Cluster) (*httpv3.HttpProtocolOptions, error) {
	packed := c.GetTypedExtensionProtocolOptions()[httpOptionsKey]
	options := &httpv3.HttpProtocolOptions{}
	if packed == nil {
		return options, nil
	}
	if err := packed.UnmarshalTo(options); err != nil {
		return nil, fmt.Errorf("read http options: %w", err)
	}
	return options, nil
}
