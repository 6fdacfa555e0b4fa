package main

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/config"
	"keyway/domain"
	"keyway/wire"
)

// pricedAnswer is a row of testdata/prices/table.yaml.
type pricedAnswer struct {
	Name     string          `json:"name"`
	API      domain.API      `json:"api"`
	Model    string          `json:"model"`
	Identity string          `json:"identity"`
	Answer   json.RawMessage `json:"answer"`
	Micros   int64           `json:"micros"`
	Unpriced bool            `json:"unpriced"`
}

func priceLists(t *testing.T) *config.Snapshot {
	t.Helper()
	cfg, err := config.Load("testdata/prices/keyway.yaml")
	require.NoError(t, err)
	snap, err := config.Compile(&keywayv1.RegionConfig{Version: 1, Config: cfg})
	require.NoError(t, err)
	return snap
}

// priceOf is the price that an admission gives to a request.
func priceOf(snap *config.Snapshot, row pricedAnswer) domain.Price {
	price := snap.Models[row.Model].Price
	price.FactorMicros = snap.PriceFactors[row.Identity]
	return price
}

// The golden table: from the operator's file and the provider's answer to the
// money, for every dialect and tier.
func TestPriceTable(t *testing.T) {
	t.Parallel()
	snap := priceLists(t)
	raw, err := os.ReadFile("testdata/prices/table.yaml")
	require.NoError(t, err)
	var table []pricedAnswer
	require.NoError(t, yaml.UnmarshalStrict(raw, &table))
	require.NotEmpty(t, table)
	for _, row := range table {
		t.Run(row.Name, func(t *testing.T) {
			t.Parallel()
			w := wire.NewWatcher(wire.WatchOptions{API: row.API, Format: wire.FormatJSON})
			w.Write(row.Answer)
			result := w.Result()
			require.True(t, result.HasUsage, "%s", row.Answer)
			price := priceOf(snap, row)
			assert.Equal(t, row.Micros, price.CostMicros(result.Usage), "%+v", result.Usage)
			assert.Equal(t, row.Unpriced, !price.PricesTier(result.Usage.Tier))
		})
	}
}

func usageOf(api domain.API, answer string) domain.Usage {
	w := wire.NewWatcher(wire.WatchOptions{API: api, Format: wire.FormatJSON})
	w.Write([]byte(answer))
	return w.Result().Usage
}

// Case 28: what one dialect counts inside the input and the other beside it is
// the same money.
func TestCase028CachedTokensAreChargedOnce(t *testing.T) {
	t.Parallel()
	inside := usageOf(domain.APIResponses, `{"status":"completed","usage":{"input_tokens":1000,"input_tokens_details":{"cached_tokens":900},"output_tokens":64,"total_tokens":1064}}`)
	beside := usageOf(domain.APIMessages, `{"usage":{"input_tokens":100,"cache_read_input_tokens":900,"output_tokens":64}}`)
	assert.Equal(t, domain.Usage{InputUncached: 100, CacheRead: 900, Output: 64}, inside)
	assert.Equal(t, inside, beside)
	price := priceLists(t).Models["gpt-x"].Price
	assert.EqualValues(t, 1435, price.CostMicros(inside))
	assert.EqualValues(t, 1435, price.CostMicros(beside))
}

// Case 86: the tokens of an image decide, at the rates of images.
func TestCase086ImagesAreChargedByTheirTokens(t *testing.T) {
	t.Parallel()
	u := usageOf(domain.APIChat, `{"usage":{"input_tokens":150,"output_tokens":8000,"output_tokens_details":{"image_tokens":8000},"total_tokens":8150}}`)
	assert.Equal(t, domain.Usage{InputUncached: 150, Output: 8000, OutputImage: 8000}, u)
	price := priceLists(t).Models["image-x"].Price
	assert.EqualValues(t, 150*5+8000*40, price.CostMicros(u), "0.32 for the image, not 0.08 at the text price")
}
