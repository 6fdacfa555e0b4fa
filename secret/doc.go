// Package secret holds a provider's secret key (SK) in a form that cannot be
// printed, and resolves the references under which operators name one.
//
// It must not know what a secret is for: no channel, no header, no request.
// Only egress may import it; that "plaintext only at egress" holds is then a
// matter of the import table and not of discipline.
package secret
