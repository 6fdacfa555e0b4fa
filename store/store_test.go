package store

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

func TestTheURLSaysWhichTopology(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		url  string
		want redis.UniversalOptions
		tls  string
	}{
		{"single", "redis://u:p@h:7000/3", redis.UniversalOptions{Addrs: []string{"h:7000"}, Username: "u", Password: "p", DB: 3}, ""},
		{"TLS", "rediss://h", redis.UniversalOptions{Addrs: []string{"h:6379"}}, "h"},
		{
			"cluster", "redis://:p@a:1?addr=b:2&addr=c:3",
			redis.UniversalOptions{Addrs: []string{"a:1", "b:2", "c:3"}, IsClusterMode: true, Password: "p"},
			"",
		},
		{"cluster behind one name", "rediss://a:1?cluster=true", redis.UniversalOptions{Addrs: []string{"a:1"}, IsClusterMode: true}, "a"},
		{
			"sentinels", "redis://s:26379?addr=r:26379&master_name=main&db=2",
			redis.UniversalOptions{Addrs: []string{"s:26379", "r:26379"}, MasterName: "main", DB: 2},
			"",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			got, err := parse(row.url)
			require.NoError(t, err)
			if row.tls != "" {
				require.NotNil(t, got.TLSConfig)
				assert.Equal(t, row.tls, got.TLSConfig.ServerName)
				got.TLSConfig = nil
			}
			assert.Equal(t, row.want, *got)
		})
	}
}

func TestABadURLIsRefusedWithoutItsPassword(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "http://h", "redis://:hunter2@h:port", "redis://:hunter2@h/db", "redis://:hunter2@h\x7f"} {
		_, err := Open(Options{URL: url})
		require.Error(t, err, url)
		assert.NotContains(t, err.Error(), "hunter2")
	}
}

func TestKeysAreAsTheDesignSays(t *testing.T) {
	t.Parallel()
	o := tenant{identity: "acme", key: "key_1"}
	tag := identityTag("acme")
	require.Regexp(t, `^\{s\d\d\}$`, tag)
	for key, kind := range map[string]domain.LimitKind{
		tag + ":rpm:key:key_1":                   domain.LimitRPM,
		tag + ":tpm:key:key_1":                   domain.LimitTPM,
		tag + ":inflight:key:key_1":              domain.LimitInFlight,
		tag + ":budget:day:key:key_1:2026-11-29": domain.LimitBudgetDay,
		tag + ":budget:month:key:key_1:2026-11":  domain.LimitBudgetMonth,
	} {
		assert.Equal(t, key, bucketKey("acme", o.hold(kind, 1, 1)))
	}
	assert.Equal(t, tag+":budget:day:identity:acme:2026-11-29", bucketKey("acme", o.own(o.hold(domain.LimitBudgetDay, 1, 1))))
	images := o.hold(domain.LimitImagesDay, 1, 1)
	images.Scope, images.ID, images.Window = domain.ScopeKeyModel, "key_1 m", "2026-11-29"
	assert.Equal(t, tag+":images:day:key_model:key_1 m:2026-11-29", bucketKey("acme", images))
	assert.Equal(t, "{region}:rpm:region:eu-1", bucketKey("acme", ceiling("eu-1").hold(domain.LimitRPM, 1, 1)))
	assert.Equal(t, "{s07}:res:r", reservationKey(7, "r"))
	assert.Equal(t, "{s07}:outbox", outboxKey(7))
	assert.Regexp(t, `^\{c\d\d\}:slot:openai-1$`, slotKey("openai-1"))
	assert.Panics(t, func() { bucketKey("acme", domain.Hold{Kind: "images"}) })
}
