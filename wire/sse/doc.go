// Package sse cuts a server-sent event stream into frames while the bytes pass
// by. It keeps a fixed few hundred bytes whatever the stream holds: a frame's
// data is handed on piece by piece and never collected. It must not know what
// the data means: no JSON, no dialects, no usage, no network; it changes no
// byte and starts no goroutine.
package sse
