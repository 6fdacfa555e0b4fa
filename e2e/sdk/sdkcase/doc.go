// Package sdkcase is the form in which a test tells an SDK runner what to call
// and learns what the SDK made of the answer. The Python and Node runners read
// and write the same JSON.
//
// It must not know any SDK, nor what is behind the base URL.
package sdkcase
