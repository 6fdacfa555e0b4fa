// Package domain holds the nouns of Keyway, their error codes and the pure
// arithmetic on them. Every other package speaks in these types; the package
// itself knows only the standard library: no protobuf, no Redis, no Envoy.
package domain
