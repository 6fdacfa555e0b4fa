// Package keywayv1 holds the messages that cross a process boundary, generated
// from the protobuf files beside it, and their conversion to and from the
// nouns of domain. It must not know who sends a message or where it is kept:
// no gRPC, no Redis, no Envoy.
package keywayv1
