// Package storetest starts real store servers for tests, on free loopback
// ports and in folders of their own. It must not know what lies in them: it
// deals in processes and URLs, and never imports store.
package storetest
