// Package e2e tests Keyway as its users meet it: the built binary's `keyway
// up`, the real Envoy and a real store, with the scripted provider as the only
// thing that is not real. Nobody imports it.
package e2e
