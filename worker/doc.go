// Package worker does what need not be on the path of a request: it moves
// settlements from the regional outbox into the ledger and what was paid in from
// the ledger into the store, closes the reservations that nobody settled, and
// takes the events of a payment service.
//
// It must not know how either side stores things: no Redis, no stream, no SQL.
// It sees them through the small interfaces that it declares itself.
package worker
