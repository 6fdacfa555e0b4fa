package wire

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

func TestAFieldInAnotherCaseIsRefused(t *testing.T) {
	t.Parallel()
	for _, member := range []string{
		`"Model":"b"`, `"MODEL":"b"`, `"mod\u0045l":"b"`, `"Max_Tokens":9`, `"max_toKens":9`, `"max_to\u212aens":9`,
		`"\u017ftream":true`, `"Stream":true`, `"N":2`, `"Service_Tier":"priority"`, `"Messages":[]`, `"inPut":""`,
	} {
		for _, body := range []string{`{"model":"a",` + member + `}`, `{` + member + `,"model":"a"}`} {
			for _, api := range []domain.API{domain.APIChat, domain.APIMessages, domain.APIResponses, domain.APIEmbeddings} {
				_, err := Peek(api, []byte(body))
				require.Error(t, err, body)
				refused := domain.AsError(err)
				assert.Equal(t, domain.CodeInvalidRequest, refused.Code, body)
				assert.Contains(t, refused.Message, "case", body)
			}
		}
	}
	for _, body := range []string{
		`{"model":"a","models":"b"}`, `{"model":"a","mode":1}`, `{"model":"a","metadata":{"Model":"b"}}`, `{"model":"a","":1}`, `{"model":"a","Metadata":{}}`,
	} {
		_, err := Peek(domain.APIChat, []byte(body))
		require.NoError(t, err, body)
	}
}
