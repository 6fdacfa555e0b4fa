package config_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/config"
)

// wanted are the messages that a bad file names in its head, sorted as Parse reports them.
func wanted(data []byte) []string {
	var want []string
	for line := range strings.Lines(string(data)) {
		message, ok := strings.CutPrefix(strings.TrimSpace(line), "# want: ")
		if !ok {
			break
		}
		want = append(want, message)
	}
	return want
}

func TestParseRefusesBadFiles(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.bad.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			cfg, err := config.Load(file)
			require.Error(t, err)
			assert.Nil(t, cfg)
			var invalid *config.ValidationError
			require.ErrorAs(t, err, &invalid)
			var got []string
			for _, p := range invalid.Problems {
				got = append(got, p.String())
			}
			assert.ElementsMatch(t, wanted(data), got)
			assert.Equal(t, strings.Join(got, "\n"), err.Error(), "one problem per line")
			assert.NotContains(t, err.Error(), "do-not-print")
		})
	}
}

func TestParseAcceptsGoodFiles(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"testdata/minimal.good.yaml", "testdata/full.good.yaml"} {
		cfg, err := config.Load(file)
		require.NoError(t, err, file)
		require.NoError(t, config.Validate(cfg), file)
		again := proto.CloneOf(cfg)
		config.FillDefaults(again)
		assert.True(t, proto.Equal(cfg, again), "filling defaults again changes nothing: %s", file)
	}
}

// TestFullFileSetsEveryField keeps the decoder and the example in step with
// the schema: a new field fails here until the example uses it.
func TestFullFileSetsEveryField(t *testing.T) {
	t.Parallel()
	cfg, err := config.Load("testdata/full.good.yaml")
	require.NoError(t, err)
	set := make(map[protoreflect.FullName]bool)
	collect(cfg.ProtoReflect(), set)
	var unset []string
	missing(cfg.ProtoReflect().Descriptor(), set, &unset)
	assert.Empty(t, unset)
}

func collect(m protoreflect.Message, set map[protoreflect.FullName]bool) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		set[f.FullName()] = true
		switch {
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				collect(v.List().Get(i).Message(), set)
			}
		case !f.IsList() && f.Message() != nil:
			collect(v.Message(), set)
		}
		return true
	})
}

func missing(d protoreflect.MessageDescriptor, set map[protoreflect.FullName]bool, unset *[]string) {
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		if !set[f.FullName()] {
			*unset = append(*unset, string(f.FullName()))
		}
		if f.Message() != nil && f.Message().ParentFile() == d.ParentFile() {
			missing(f.Message(), set, unset)
		}
	}
}

func TestParseFillsDefaults(t *testing.T) {
	t.Parallel()
	cfg, err := config.Load("testdata/minimal.good.yaml")
	require.NoError(t, err)
	assert.Equal(t, "127.0.0.1", cfg.Listener.Address)
	assert.EqualValues(t, 8080, cfg.Listener.Port)
	assert.EqualValues(t, 33554432, cfg.Limits.MaxRequestBytes)
	assert.Equal(t, "30s", cfg.Limits.Lease.AsDuration().String())
	assert.Equal(t, "10m0s", cfg.Limits.DrainTime.AsDuration().String())
	p := cfg.Providers[0]
	assert.Equal(t, "https://api.openai.com/v1", p.BaseUrl, "the trailing slash is gone")
	assert.Equal(t, "auto", p.Http)
	assert.Equal(t, "1m0s", p.FirstByteLimit.AsDuration().String())
	assert.Equal(t, "2s", p.ConnectTimeout.AsDuration().String())
	assert.Equal(t, "30s", p.Http2Ping.AsDuration().String())
	assert.Equal(t, "2023-06-01", p.AnthropicVersion)
	ch := cfg.Channels[0]
	assert.EqualValues(t, 1, ch.GetWeight())
	assert.Equal(t, "inject", ch.StreamUsage)
	assert.Equal(t, "gpt-4o-mini", ch.Models[0].Upstream)
	m := cfg.Models[0]
	assert.EqualValues(t, 4096, m.MaxOutput)
	assert.Equal(t, "2026-11-01", m.Prices[0].Version, "a date stays the text it was written as")
	assert.Equal(t, "0.60", m.Prices[0].Output, "a number stays the text it was written as")
	assert.Equal(t, "0.15", m.Prices[0].CacheRead)
	assert.Equal(t, "0.15", m.Prices[0].CacheWrite)

	full, err := config.Load("testdata/full.good.yaml")
	require.NoError(t, err)
	assert.Equal(t, "http1", full.Providers[1].Http, "no ALPN without TLS")
	assert.Zero(t, full.Providers[0].Http2Ping.AsDuration(), "0s is no default")
	assert.Nil(t, full.Providers[1].Http2Ping, "there is no HTTP/2 to ask on")
	assert.EqualValues(t, 2048, full.Models[1].MaxOutput, "the default is clipped to the window")
}

func TestLoadMissingFile(t *testing.T) {
	t.Parallel()
	_, err := config.Load(filepath.Join(t.TempDir(), "none.yaml"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	var invalid *config.ValidationError
	assert.False(t, errors.As(err, &invalid))
}

func TestParseMicros(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, given string
		want        int64
		wantErr     string
	}{
		{name: "whole", given: "3", want: 3_000_000},
		{name: "two decimals", given: "2.50", want: 2_500_000},
		{name: "six decimals", given: "0.000001", want: 1},
		{name: "no float error", given: "0.29", want: 290_000},
		{name: "zero", given: "0", want: 0},
		{name: "largest", given: "9223372036854.775807", want: 9223372036854775807},
		{name: "one too many", given: "9223372036854.775808", wantErr: "too large"},
		{name: "many digits", given: strings.Repeat("9", 40), wantErr: "too large"},
		{name: "seven decimals", given: "1.0000000", wantErr: "more than 6 decimals"},
		{name: "many decimals", given: "0." + strings.Repeat("9", 40), wantErr: "more than 6 decimals"},
		{name: "negative", given: "-1", wantErr: "negative"},
		{name: "plus", given: "+1", wantErr: "not a decimal"},
		{name: "exponent", given: "1e3", wantErr: "not a decimal"},
		{name: "no whole part", given: ".5", wantErr: "not a decimal"},
		{name: "no fraction", given: "5.", wantErr: "not a decimal"},
		{name: "two points", given: "1.2.3", wantErr: "not a decimal"},
		{name: "comma", given: "1,5", wantErr: "not a decimal"},
		{name: "blank", given: " 1", wantErr: "not a decimal"},
		{name: "empty", given: "", wantErr: "not a decimal"},
		{name: "other digits", given: "٣", wantErr: "not a decimal"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := config.ParseMicros(tt.given)
			if tt.wantErr != "" {
				require.ErrorContains(t, err, tt.wantErr)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tt.want, got)
		})
	}
}

// FuzzParse: whatever the bytes, Parse ends without a panic, and what it
// accepts compiles and survives a second filling of defaults.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	require.NoError(f, err)
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(f, err)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, err := config.Parse(data)
		if err != nil {
			var invalid *config.ValidationError
			require.ErrorAs(t, err, &invalid)
			require.NotEmpty(t, invalid.Problems)
			return
		}
		before := proto.CloneOf(cfg)
		_, err = config.Compile(&keywayv1.RegionConfig{Version: 1, Config: cfg})
		require.NoError(t, err)
		require.True(t, proto.Equal(before, cfg), "Compile leaves its argument alone")
		_, err = proto.Marshal(cfg)
		require.NoError(t, err)
	})
}
