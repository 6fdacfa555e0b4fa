package secret

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

const plaintext = "sk-very-secret-1234567890"

type exported struct{ S Secret }

type hidden struct{ s Secret }

// Every road on which a Secret could leave the process in print.
func TestSecretIsUnprintable(t *testing.T) {
	t.Parallel()
	s := New(plaintext)
	roads := map[string]func() string{
		"json": func() string { b, err := json.Marshal(exported{s}); require.NoError(t, err); return string(b) },
		"json map key": func() string {
			b, err := json.Marshal(map[string]any{"a": []Secret{s}})
			require.NoError(t, err)
			return string(b)
		},
		"xml":  func() string { b, err := xml.Marshal(exported{s}); require.NoError(t, err); return string(b) },
		"yaml": func() string { b, err := yaml.Marshal(exported{s}); require.NoError(t, err); return string(b) },
		"gob": func() string {
			var buf bytes.Buffer
			require.NoError(t, gob.NewEncoder(&buf).Encode(exported{s}))
			return buf.String()
		},
		"slog text": func() string {
			var buf bytes.Buffer
			slog.New(slog.NewTextHandler(&buf, nil)).Info("m", "s", s, "e", exported{s}, "h", hidden{s}, "p", &s)
			return buf.String()
		},
		"slog json": func() string {
			var buf bytes.Buffer
			slog.New(slog.NewJSONHandler(&buf, nil)).Info("m", "s", s, "e", exported{s}, "h", hidden{s}, "p", &s)
			return buf.String()
		},
		"error": func() string { return fmt.Errorf("call with %v: %w", s, errors.New("x")).Error() },
		"print": func() string { return fmt.Sprint(s, &s, exported{s}, []Secret{s}, map[string]Secret{"k": s}) },
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "% X", "%d", "%p", "%t", "%c", "%z", "%10.3s"} {
		roads["fmt "+verb] = func() string {
			return fmt.Sprintf(verb, s) + fmt.Sprintf(verb, &s) + fmt.Sprintf(verb, exported{s}) +
				fmt.Sprintf(verb, hidden{s}) + fmt.Sprintf(verb, &hidden{s}) + fmt.Sprintf(verb, []hidden{{s}})
		}
	}
	hex := fmt.Sprintf("%x", plaintext)
	for name, print := range roads {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := print()
			assert.NotContains(t, got, "very-secret")
			assert.NotContains(t, got, hex)
			assert.NotContains(t, got, fmt.Sprintf("% X", plaintext))
		})
	}
}

func TestSecretPrintsRedacted(t *testing.T) {
	t.Parallel()
	s := New(plaintext)
	assert.Equal(t, "[redacted] [redacted] [redacted]", fmt.Sprintf("%v %s %#v", s, s, s))
	assert.Equal(t, "[redacted] [redacted] [redacted]", fmt.Sprintf("%x %d %q", s, s, s), "whatever the verb")
	b, err := json.Marshal(s)
	require.NoError(t, err)
	assert.JSONEq(t, `"[redacted]"`, string(b))
	assert.Equal(t, Redacted, s.LogValue().String())
}

func TestReveal(t *testing.T) {
	t.Parallel()
	assert.Equal(t, plaintext, New(plaintext).Reveal())
	assert.Empty(t, Secret{}.Reveal())
	assert.True(t, Secret{}.IsZero())
	assert.False(t, New(plaintext).IsZero())
}
