// Package envoy is the contract with Envoy: the names both sides share, and
// pure builders from the region's configuration to Envoy resources. It holds
// no server and no state, never sees an SK, and must not know how a request is
// admitted or settled. Every setting that is not a default says why it is
// there; the measurements behind them stand in the repository's ARCHITECTURE.md.
package envoy
