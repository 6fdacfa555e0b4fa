// Package fakeprovider is a scripted upstream: it speaks the chat, completions,
// responses (stored and background ones too), messages, embeddings, rerank, audio and images
// operations as a provider does, answers anything under /files, breaks where a script tells it to, and records what it received and
// when its peer left.
//
// It must not know Keyway: no gateway header, no virtual key, no channel, no
// config. What it believes is the providers' protocol only, so that an error
// of the gateway cannot hide in a shared assumption.
//
// # Faces
//
// A [Server] has several faces, each with its own port, credential, TLS and
// scripts, so that one process stands for several providers or several
// accounts at one. A plain face speaks HTTP/1.1 and cleartext HTTP/2 on one
// port; a TLS face offers h2 and http/1.1 by ALPN, under an authority made at
// start, and can delay every handshake.
//
// # Without a script
//
// The answer is deterministic: [Text] of a few words, one content chunk each,
// cut by the request's own output cap. A word is a token, on both sides. Usage
// is the same streamed and not; a chat stream carries it only when
// stream_options.include_usage asks for it.
//
// # Choosing a script
//
// The first that exists, in this order:
//
//  1. the request header x-fake-script: {json}
//  2. a marker in the last user message (or prompt, or input): [[fake:{json}]]
//  3. a suffix of the model name: any-model@{json}
//  4. the face's queue ([Face.Enqueue]), one script for each request
//  5. the face's sticky script ([Face.Script])
//
// A script of 1 to 3 with "only_face" counts on that face alone, so a prompt can
// make one channel fail and the next one serve. [Script] documents the fields;
// its JSON form is the same everywhere. A script that does not parse is
// answered 400 with the reason, and so is an unknown field.
//
// # Control over HTTP
//
// Every face serves these paths itself, without a credential, and so does the
// control address when one is set. On a face they concern that face; on the
// control address all of them, or the one named by ?face=.
//
//	POST   /_script[?face=NAME][&mode=queue]  one script or a list; sticky unless mode=queue
//	DELETE /_script[?face=NAME]               forget the sticky script and the queue
//	GET    /_records[?face=&path=&model=&status=&end=&since=ID&limit=N]
//	DELETE /_records                          forget what was recorded
//	GET    /_open                             {"open":N}, the requests now running
//	POST   /_tls?face=NAME&handshake_delay_ms=N
//	GET    /_ca                               the authority's certificate, PEM
package fakeprovider
