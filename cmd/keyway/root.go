package main

import (
	"github.com/spf13/cobra"
)

// newRoot builds the command tree. hurry closes when a stop has to be at once.
func newRoot(hurry <-chan struct{}) *cobra.Command {
	root := &cobra.Command{
		Use:   "keyway",
		Short: "Turn Envoy into a gateway for language models.",
		Long: `Keyway turns an Envoy proxy into a gateway for language models. Clients use an
unmodified OpenAI or Anthropic SDK with a virtual key; Keyway admits each
request against limits and budgets, sends it out under a provider's own
credential, and writes what it cost into a ledger.

Start with "keyway up": it runs every part on this machine, with a fake provider
and a demo key, and prints commands to try.`,
		Example: `  keyway up
  keyway key create --identity acme --policy standard
  keyway ledger --identity acme -o json`,
		SilenceUsage:      true,
		SilenceErrors:     true,
		PersistentPreRunE: readEnvironment,
	}
	root.AddCommand(
		newUp(hurry),
		newAuthz(), newExtproc(), newXDS(), newWorker(), newFakeProvider(),
		newCheck(), newBootstrap(), newKey(), newChannel(), newLedger(), newExplain(), newBalance(), newReconcile(), newHealth(), newParts(), newVersion(),
	)
	return root
}
