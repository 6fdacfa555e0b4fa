// Package sdk runs the official SDKs of OpenAI and Anthropic, unmodified, in
// Python, Node and Go, against a base URL, and reports what they made of the
// answers. It installs the Python and Node SDKs on first use, pinned by hash,
// into the repository's ignored .parts folder.
//
// It must not know what is behind the base URL, so that the same cases run
// against the gateway and against a provider directly.
//
// requirements.txt is made by
//
//	uv pip compile --universal --python-version 3.10 --generate-hashes --no-header --no-annotate requirements.in -o requirements.txt
//
// and package-lock.json by
//
//	npm install --package-lock-only --omit-lockfile-registry-resolved
package sdk
