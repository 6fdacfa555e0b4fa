// Package config turns what an operator writes into what the services run on:
// strict decoding of the file, defaults, validation of everything at once, and
// compilation to an immutable Snapshot that is swapped atomically. It is also
// the services' side of the control plane: an ADS client that keeps the last
// good configuration on disk.
//
// It must not know how Envoy is configured, what a store or a secret's value
// is, or which service uses it: a secret reference is checked for its form and
// never resolved here.
package config
