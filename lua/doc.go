// Package lua holds the scripts of the regional store, one file per act, each
// under a header that is its contract. It must not know how a script is sent,
// how a key is spelt or what a reply becomes: store does all three.
package lua
