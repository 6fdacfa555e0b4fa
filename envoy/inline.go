package envoy

import (
	"fmt"
	"maps"
	"slices"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	injectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/credential_injector/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	genericv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/injected_credentials/generic/v3"
	"google.golang.org/protobuf/proto"
)

// Inline puts res into b as static resources, so that `envoy --mode validate`
// reads all of it: of dynamic resources it checks only that they are asked for.
// b and res stay as they are.
func Inline(b *bootstrapv3.Bootstrap, res Resources) (*bootstrapv3.Bootstrap, error) {
	out, ok := proto.Clone(b).(*bootstrapv3.Bootstrap)
	if !ok {
		return nil, fmt.Errorf("clone bootstrap: got %T", out)
	}
	out.DynamicResources = nil
	for _, name := range slices.Sorted(maps.Keys(res.Clusters)) {
		c, err := inlineSecrets(res.Clusters[name])
		if err != nil {
			return nil, fmt.Errorf("inline cluster %s: %w", name, err)
		}
		out.StaticResources.Clusters = append(out.StaticResources.Clusters, c)
	}
	for _, name := range slices.Sorted(maps.Keys(res.Secrets)) {
		out.StaticResources.Secrets = append(out.StaticResources.Secrets, Secret(name, "inlined"))
	}
	for _, name := range slices.Sorted(maps.Keys(res.Listeners)) {
		l, err := inlineRoutes(res.Listeners[name], res)
		if err != nil {
			return nil, fmt.Errorf("inline listener %s: %w", name, err)
		}
		out.StaticResources.Listeners = append(out.StaticResources.Listeners, l)
	}
	return out, nil
}

// inlineSecrets lets the credentials of a native channel come from the static
// secrets: there is nobody to ask for others.
func inlineSecrets(c *clusterv3.Cluster) (*clusterv3.Cluster, error) {
	options, err := httpOptions(c)
	if err != nil {
		return nil, err
	}
	inlined := false
	for _, f := range options.GetHttpFilters() {
		injector, generic := &injectorv3.CredentialInjector{}, &genericv3.Generic{}
		if !f.GetTypedConfig().MessageIs(injector) {
			continue
		}
		if err := f.GetTypedConfig().UnmarshalTo(injector); err != nil {
			return nil, fmt.Errorf("read filter %s: %w", f.GetName(), err)
		}
		if err := injector.GetCredential().GetTypedConfig().UnmarshalTo(generic); err != nil {
			return nil, fmt.Errorf("read credential of %s: %w", f.GetName(), err)
		}
		generic.Credential.SdsConfig = nil
		if injector.Credential.TypedConfig, err = pack(generic); err != nil {
			return nil, err
		}
		packed, err := pack(injector)
		if err != nil {
			return nil, err
		}
		f.ConfigType, inlined = &hcmv3.HttpFilter_TypedConfig{TypedConfig: packed}, true
	}
	if !inlined {
		return c, nil
	}
	packed, err := pack(options)
	if err != nil {
		return nil, err
	}
	c = proto.CloneOf(c)
	c.TypedExtensionProtocolOptions[httpOptionsKey] = packed
	return c, nil
}

func inlineRoutes(l *listenerv3.Listener, res Resources) (*listenerv3.Listener, error) {
	l, ok := proto.Clone(l).(*listenerv3.Listener)
	if !ok {
		return nil, fmt.Errorf("clone: got %T", l)
	}
	for _, chain := range l.GetFilterChains() {
		for _, f := range chain.GetFilters() {
			hcm := &hcmv3.HttpConnectionManager{}
			if err := f.GetTypedConfig().UnmarshalTo(hcm); err != nil {
				return nil, fmt.Errorf("read connection manager: %w", err)
			}
			name := hcm.GetRds().GetRouteConfigName()
			route, ok := res.Routes[name]
			if !ok {
				return nil, fmt.Errorf("route %q is not among the resources", name)
			}
			hcm.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: route}
			packed, err := pack(hcm)
			if err != nil {
				return nil, err
			}
			f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: packed}
		}
	}
	return l, nil
}
