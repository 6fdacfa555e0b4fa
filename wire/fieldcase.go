package wire

import "bytes"

// decisive are the fields by which a request is admitted and counted.
var decisive = [][]byte{
	[]byte("model"), []byte("stream"), []byte("stream_options"),
	[]byte("max_tokens"), []byte("max_completion_tokens"), []byte("max_output_tokens"),
	[]byte("n"), []byte("best_of"), []byte("background"), []byte("service_tier"),
	[]byte("previous_response_id"), []byte("conversation"), []byte("messages"), []byte("input"), []byte("prompt"),
	[]byte("instructions"), []byte("system"), []byte("tools"), []byte("functions"),
	[]byte("documents"), []byte("size"), []byte("quality"),
}

// disguised returns the decisive field from which key, a field of another name,
// differs in case only; "" when there is none. A server whose JSON reader
// ignores case, as Go's does, takes the last of the two for the field: a model,
// say, that the key may not use.
func disguised(key []byte) string {
	for _, name := range decisive {
		if bytes.EqualFold(key, name) {
			return string(name)
		}
	}
	return ""
}
