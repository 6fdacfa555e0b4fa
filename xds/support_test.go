package xds_test

import (
	"testing"

	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/stretchr/testify/require"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/config"
	"keyway/envoy"
)

func regionConfig(version int64, cfg *keywayv1.Config) *keywayv1.RegionConfig {
	return &keywayv1.RegionConfig{Version: version, Config: cfg}
}

// clusterVersions are the versions under which the clusters of content are served.
func clusterVersions(t *testing.T, content string) map[string]string {
	t.Helper()
	cfg, err := config.Parse([]byte(content))
	require.NoError(t, err)
	res, err := envoy.Build(cfg)
	require.NoError(t, err)
	versions := make(map[string]string)
	for name, c := range res.Clusters {
		raw, err := cache.MarshalResource(c)
		require.NoError(t, err)
		versions[name] = cache.HashResource(raw)
	}
	return versions
}
