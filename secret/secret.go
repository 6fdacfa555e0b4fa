package secret

import (
	"fmt"
	"io"
	"log/slog"
)

// Redacted is what every way of printing a Secret gives.
const Redacted = "[redacted]"

// Secret is a credential in memory. Printing, logging and marshalling it all
// give Redacted; Reveal is the one way to the plaintext. The zero value is the
// absence of a secret. Secret is immutable and safe for concurrent use.
type Secret struct {
	// The plaintext sits in a closure, not in a string field: fmt ignores the
	// methods of a value in an unexported field and under a wrong verb, and
	// reflecting encoders ignore them always. None of them can open a func.
	reveal func() string
}

// New wraps plaintext.
func New(plaintext string) Secret {
	return Secret{reveal: func() string { return plaintext }}
}

// Reveal returns the plaintext; "" for the zero value. What it returns must go
// straight into the outgoing request and nowhere else.
func (s Secret) Reveal() string {
	if s.reveal == nil {
		return ""
	}
	return s.reveal()
}

// IsZero reports whether there is no secret or an empty one.
func (s Secret) IsZero() bool { return s.Reveal() == "" }

// String implements fmt.Stringer with Redacted.
func (s Secret) String() string { return Redacted }

// GoString implements fmt.GoStringer with Redacted.
func (s Secret) GoString() string { return Redacted }

// Format implements fmt.Formatter with Redacted, whatever the verb.
func (s Secret) Format(f fmt.State, _ rune) {
	// Formatter has no way to report an error, and fmt's buffer gives none.
	_, _ = io.WriteString(f, Redacted)
}

// MarshalText implements encoding.TextMarshaler with Redacted.
func (s Secret) MarshalText() ([]byte, error) { return []byte(Redacted), nil }

// MarshalJSON implements json.Marshaler with Redacted as a JSON string.
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + Redacted + `"`), nil }

// MarshalBinary implements encoding.BinaryMarshaler, and with it gob, with Redacted.
func (s Secret) MarshalBinary() ([]byte, error) { return []byte(Redacted), nil }

// LogValue implements slog.LogValuer with Redacted.
func (s Secret) LogValue() slog.Value { return slog.StringValue(Redacted) }
