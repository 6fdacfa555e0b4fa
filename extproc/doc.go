// Package extproc carries out what authz decided. Its egress side gives each
// attempt its channel's credential, path, host and body; its watch side sees
// the answer pass, reads what was used and settles; Envoy's access log tells it
// of the ends that nobody watched. The relay is a second door to the watch side,
// over HTTP, for models that are silent before they answer. The cores take and give plain domain types
// and bytes; protobuf is only in server.go, accesslog.go and the
// gRPC doors. It must not know
// how the store or the ledger works, nor choose between channels.
package extproc
