package domain

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"math/big"
	"slices"
	"strings"
	"time"
)

// KeyState is the state of a VirtualKey as stored; expiry is derived from ExpiresAt.
type KeyState string

// The states of SPEC §1.
const (
	KeyActive   KeyState = "active"
	KeyDisabled KeyState = "disabled"
)

// VirtualKey is the record of an inbound credential. The secret itself is
// never in it: the store knows only its hash.
type VirtualKey struct {
	// ID names the key in logs, metrics and the ledger, such as "key_3f9a…".
	ID       string
	Hash     string
	Identity string
	Name     string
	// Policy names the key's own limits; "" is no limit.
	Policy string
	// Models are the allowed models, names or patterns (see MatchModel); empty
	// allows every model.
	Models    []string
	State     KeyState
	CreatedAt time.Time
	// ExpiresAt is zero for a key that does not expire.
	ExpiresAt time.Time
	// RotatedAt is when the secret was last replaced; zero is never.
	RotatedAt time.Time
	// PreviousHash is that of the secret before the last rotation, which works
	// until PreviousUntil; "" is none.
	PreviousHash  string
	PreviousUntil time.Time
}

// KeyRotation replaces the secret of a key.
type KeyRotation struct {
	// Hash is that of the new secret.
	Hash string
	At   time.Time
	// Grace is how long the previous secret still works; 0 ends it at once.
	Grace time.Duration
}

// Rotated returns the key with the secret of r. The secret before the previous
// one is forgotten.
func (k VirtualKey) Rotated(r KeyRotation) VirtualKey {
	k.PreviousHash, k.PreviousUntil = k.Hash, r.At.Add(r.Grace)
	k.Hash, k.RotatedAt = r.Hash, r.At
	return k
}

// Allows reports whether the key may use model, the name that is dispatched.
func (k VirtualKey) Allows(model string) bool {
	return len(k.Models) == 0 || slices.ContainsFunc(k.Models, func(pattern string) bool { return MatchModel(pattern, model) })
}

// MayUse reports whether the key may use m, the model that is dispatched. One
// in preview takes a key that names it in full.
func (k VirtualKey) MayUse(m Model) bool {
	if m.State == ModelPreview {
		return slices.Contains(k.Models, m.Name)
	}
	return k.Allows(m.Name)
}

// Check returns why the key may not be used at time now; nil when it may.
func (k VirtualKey) Check(now time.Time) *Error {
	switch {
	case k.State != KeyActive:
		return &Error{Code: CodeKeyDisabled, Message: "This API key is disabled. Ask your operator for another one.", NoRetry: true}
	case !k.ExpiresAt.IsZero() && !now.Before(k.ExpiresAt):
		return &Error{Code: CodeKeyExpired, Message: "This API key has expired. Ask your operator for another one.", NoRetry: true}
	}
	return nil
}

// CheckSecret returns why the secret with hash may not be used as this key at
// time now; nil when it may.
func (k VirtualKey) CheckSecret(hash string, now time.Time) *Error {
	switch {
	case hash == "" || hash != k.Hash && hash != k.PreviousHash:
		return &Error{Code: CodeInvalidKey, Message: "The API key is not valid for this gateway. Check it, or ask your operator for a new one.", NoRetry: true}
	case hash != k.Hash && !now.Before(k.PreviousUntil):
		return &Error{Code: CodeKeyExpired, Message: "The secret of this API key has been replaced. Use the new one, or ask your operator for it.", NoRetry: true}
	}
	return k.Check(now)
}

// A key's secret is "kw_", 32 base-62 characters and a six-character checksum
// of the former, so that a scanner tells a real key from noise.
const (
	KeyPrefix       = "kw_"
	keyRandomLen    = 32
	keyChecksumLen  = 6
	base62          = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	keyIDRandomSize = 8
)

// NewKeySecret makes a secret. The only error is that of the random source.
func NewKeySecret() (string, error) {
	var b strings.Builder
	b.WriteString(KeyPrefix)
	for range keyRandomLen {
		n, err := rand.Int(rand.Reader, big.NewInt(int64(len(base62))))
		if err != nil {
			return "", fmt.Errorf("make key secret: %w", err)
		}
		b.WriteByte(base62[n.Int64()])
	}
	return b.String() + keyChecksum(b.String()), nil
}

// NewKeyID makes the public id of a key: "key_" and 16 hex digits.
func NewKeyID() (string, error) {
	raw := make([]byte, keyIDRandomSize)
	if _, err := rand.Read(raw); err != nil {
		return "", fmt.Errorf("make key id: %w", err)
	}
	return "key_" + hex.EncodeToString(raw), nil
}

// WellFormedKey reports whether secret has the shape and checksum of a virtual
// key. It spares the store every credential that cannot be one.
func WellFormedKey(secret string) bool {
	if len(secret) != len(KeyPrefix)+keyRandomLen+keyChecksumLen || !strings.HasPrefix(secret, KeyPrefix) {
		return false
	}
	body := secret[:len(secret)-keyChecksumLen]
	return keyChecksum(body) == secret[len(body):]
}

// HashKey is the form in which a secret is stored and looked up: SHA-256 in hex.
func HashKey(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

func keyChecksum(body string) string {
	n := crc32.ChecksumIEEE([]byte(body))
	out := make([]byte, keyChecksumLen)
	for i := range out {
		out[keyChecksumLen-1-i] = base62[n%uint32(len(base62))]
		n /= uint32(len(base62))
	}
	return string(out)
}
