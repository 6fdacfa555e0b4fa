module keyway/tools/corpus

go 1.26.0

require (
	github.com/tiktoken-go/tokenizer v0.10.0
	keyway v0.0.0
)

require github.com/dlclark/regexp2/v2 v2.5.1 // indirect

replace keyway => ../..
