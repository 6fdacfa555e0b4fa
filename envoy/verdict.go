package envoy

import (
	_ "embed"
	"strings"
)

// verdictSource decides, in Envoy itself, whether another channel should
// answer instead. It is a template over the channel's name only.
//
//go:embed verdict.lua
var verdictSource string

// verdictScript is the response-phase script of one channel. Channel names are
// [a-z0-9-], so they need no quoting.
func verdictScript(channel string) string {
	return strings.NewReplacer(
		"CHANNEL", channel,
		"NAMESPACE", AttemptsNamespace,
		"ATTEMPTS", MetadataAttempts,
		"HEADER", HeaderRetry,
	).Replace(verdictSource)
}
