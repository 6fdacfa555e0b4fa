// Package supervise runs a fixed set of child processes in order, waits until
// each is really ready, restarts one that dies, and stops them all without
// leaving an orphan. It must not know what the children are: no port, no
// configuration, no protocol; readiness and gentle stops are functions that the
// caller hands in.
package supervise
