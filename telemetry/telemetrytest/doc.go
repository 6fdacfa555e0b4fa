// Package telemetrytest holds what the tests of several services share about
// their metrics. It must not know a service, and only tests import it.
package telemetrytest
