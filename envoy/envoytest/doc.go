// Package envoytest finds the real Envoy and runs it for tests. It is imported
// by tests only.
package envoytest
