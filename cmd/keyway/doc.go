// Command keyway is the whole of Keyway in one binary: a subcommand for each
// service, `up` for all of them on one machine, and the tools of an operator.
// It joins the packages, which do not know each other, and decides order:
// what starts first, what stops first, and how long each may take. It must not
// know what a request is: no limit, price, header or dialect is decided here.
package main
