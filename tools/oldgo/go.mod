module keyway/tools/oldgo

go 1.26.0

require github.com/openai/openai-go/v3 v3.42.0

require (
	github.com/tidwall/gjson v1.18.0 // indirect
	github.com/tidwall/match v1.1.1 // indirect
	github.com/tidwall/pretty v1.2.1 // indirect
)
