// Package telemetry is how a process is seen from outside: its log, its
// health, and the HTTP server that shows both beside the metrics.
//
// It must not know the services: no store, no ledger, no Envoy. What a check
// looks at is a func that its owner hands in, and each service declares its
// own metrics; this package only serves them.
package telemetry
