// Package gosdk runs cases with the official Go SDKs of OpenAI and Anthropic,
// in the calling process and unmodified.
//
// It must not know what is behind the base URL.
package gosdk
