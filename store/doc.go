// Package store is the regional store: the only place that speaks Redis. It
// has one method for each act on it, takes and gives nouns of domain, and
// spells every key in keys.go. It must not know who calls it or why: no
// policies, no prices, no dialects, no Envoy, no ledger.
package store
