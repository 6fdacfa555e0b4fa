// Package authz decides whether a request may go out, what it may cost and in
// which order channels are tried: Envoy's ext_authz service. The check itself
// takes and gives plain domain types; protobuf is only in server.go. It keeps
// nothing about a request once it has answered, never sees an SK, and must not
// know how the store or the ledger works.
package authz
