// Package routing orders the channels a request may go to. It is pure: it
// knows the nouns, takes its randomness from the caller, and must not know the
// store, Envoy or the clock.
package routing
