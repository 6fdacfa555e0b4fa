package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"keyway/cmd/keyway/parts"
)

// envAnnotation marks a flag that falls back to an environment variable.
const envAnnotation = "keyway_env"

// fromEnvironment lets flags that are not on the command line take their value
// from the environment variable given for their name, and says so in their
// help. A flag that is missing in the command is a mistake of the program.
func fromEnvironment(cmd *cobra.Command, variables map[string]string) {
	for name, variable := range variables {
		flag := cmd.Flags().Lookup(name)
		if flag == nil {
			panic(fmt.Sprintf("command %s has no flag %s", cmd.Name(), name))
		}
		flag.Annotations = map[string][]string{envAnnotation: {variable}}
		flag.Usage += " Environment: " + variable + "."
	}
}

// allFromEnvironment does so for every flag of cmd, as KEYWAY_<NAME>, except for
// those whose variable is given.
func allFromEnvironment(cmd *cobra.Command, except map[string]string) {
	variables := map[string]string{}
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		variable, ok := except[flag.Name]
		if !ok {
			variable = "KEYWAY_" + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
		}
		variables[flag.Name] = variable
	})
	fromEnvironment(cmd, variables)
}

// readEnvironment fills in the flags that the command line left alone.
func readEnvironment(cmd *cobra.Command, _ []string) error {
	var errs []error
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		variable, ok := flag.Annotations[envAnnotation]
		if !ok || flag.Changed {
			return
		}
		value, ok := os.LookupEnv(variable[0])
		if !ok || value == "" {
			return
		}
		if err := cmd.Flags().Set(flag.Name, value); err != nil {
			// The value may be a secret (a URL with a password), so it is not repeated.
			errs = append(errs, fmt.Errorf("environment variable %s does not fit flag --%s (%s)",
				variable[0], flag.Name, flag.Value.Type()))
		}
	})
	return errors.Join(errs...)
}

// Environment variables that more than one command reads. The store's does not
// follow the rule: it is the one under which the parts look for a running store.
const (
	envStore = parts.EnvStoreURL
	envDir   = "KEYWAY_DIR"
)

// storeFlag adds the flag that every user of the store has.
func storeFlag(cmd *cobra.Command, url *string) {
	cmd.Flags().StringVar(url, "store", "",
		"URL of the regional store, redis://[user:password@]host:port/db, rediss:// for TLS, or unix:///path?db=number.")
}

// dirFlag adds the flag that finds what `keyway up` left.
func dirFlag(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVar(dir, "dir", defaultDir,
		"Folder of a running \"keyway up\", where addresses that are not given are looked up.")
}

// outputFlag adds -o with the forms that a command can print.
func outputFlag(cmd *cobra.Command, value *string, forms ...string) {
	cmd.Flags().StringVarP(value, "output", "o", forms[0],
		"Form of the output: "+strings.Join(forms, ", ")+".")
}

// errOutput is returned for a form that a command cannot print.
func errOutput(form string) error { return fmt.Errorf("output form %q is not known; see --help", form) }
