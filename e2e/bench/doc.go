// Package bench measures what Keyway costs: the same load, in alternating
// rounds, through a bare Envoy and through a whole region, with the processor
// time of every process apart. It writes docs/benchmarks.md. Run it by
// `make bench` on a machine that does nothing else.
//
// It must not know Keyway's insides: it runs the built binary and reads
// ready.json, as a user would. Nobody imports it.
package bench
