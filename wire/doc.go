// Package wire knows how the providers' APIs look on the wire: what a request
// says, how it may be patched, what an answer reports about usage and about its
// own end, and how errors and limits are told to a client of each dialect.
//
// Everything here is pure: bytes and domain values in, bytes and domain values
// out, with no I/O, no clock, no context and no goroutines. It must not know
// Envoy, protobuf, the store, channels' secrets or who calls it.
package wire
