package keywayv1_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/domain"
)

// fill sets every field below v to a value that is not its zero, so that a
// field added to domain and forgotten in convert.go fails the round trip.
func fill(v reflect.Value, n *int64) {
	*n++
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.UnixMilli(1_700_000_000_000 + *n).UTC()))
		return
	case time.Duration:
		v.SetInt(*n * int64(time.Millisecond))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), n)
		fill(v.Index(1), n)
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), n)
		}
	case reflect.String:
		v.SetString("s" + string(rune('a'+*n%26)))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Float64:
		v.SetFloat(float64(*n) / 8)
	case reflect.Uint8:
		v.SetUint(uint64(*n % 200))
	default:
		v.SetInt(*n)
	}
}

func TestDecisionRoundTrip(t *testing.T) {
	t.Parallel()
	var (
		want domain.Decision
		n    int64
	)
	fill(reflect.ValueOf(&want).Elem(), &n)
	for i := range want.Holds {
		want.Holds[i].Burst = 0 // left out on purpose, and so is the limit of one that is not leased
	}
	for i := range want.Candidates {
		want.Candidates[i].Egress = "" // not kept
	}
	raw, err := proto.Marshal(keywayv1.DecisionToProto(want))
	require.NoError(t, err)
	var got keywayv1.Decision
	require.NoError(t, proto.Unmarshal(raw, &got))
	assert.Equal(t, want, keywayv1.DecisionFromProto(&got))
}

func TestRecordRoundTrip(t *testing.T) {
	t.Parallel()
	var (
		want domain.UsageRecord
		n    int64
	)
	fill(reflect.ValueOf(&want).Elem(), &n)
	want.SettledAt = time.Time{} // it is not told: the store says it of what it is asked for
	message := keywayv1.RecordToProto(want)
	assert.Equal(t, want.Usage.Input(), message.GetInputTokens(), "the sum is written for the reader")
	raw, err := proto.Marshal(message)
	require.NoError(t, err)
	var got keywayv1.UsageRecord
	require.NoError(t, proto.Unmarshal(raw, &got))
	assert.Equal(t, want, keywayv1.RecordFromProto(&got))
}

func TestZeroValuesStayZero(t *testing.T) {
	t.Parallel()
	assert.Zero(t, keywayv1.DecisionFromProto(nil))
	assert.Equal(t, domain.Decision{}, keywayv1.DecisionFromProto(keywayv1.DecisionToProto(domain.Decision{})))
	assert.Equal(t, domain.UsageRecord{}, keywayv1.RecordFromProto(keywayv1.RecordToProto(domain.UsageRecord{})))
}

func TestForeignBytesCostNoSettlement(t *testing.T) {
	t.Parallel()
	const foreign = "m\xff\xfe"
	_, err := proto.Marshal(keywayv1.RecordToProto(domain.UsageRecord{Model: foreign, ModelServed: foreign, UpstreamRequestID: foreign, RawUsage: []byte(foreign)}))
	require.NoError(t, err)
	_, err = proto.Marshal(keywayv1.DecisionToProto(domain.Decision{Model: foreign, Path: foreign}))
	require.NoError(t, err)
}

// The decision crosses Envoy as base64 in dynamic metadata with every request.
func TestPriceTravelsCompactly(t *testing.T) {
	t.Parallel()
	set := domain.PriceStep{
		AbovePrompt: 272_000, Input: 5_000_000, CacheRead: 500_000, CacheWrite: 6_250_000, Output: 22_500_000,
	}
	for part := domain.PartCacheWrite30m; part <= domain.PartOutputImage; part++ {
		set.Special = append(set.Special, domain.PartRate{Part: part, Rate: 40_000_000})
	}
	price := domain.Price{
		Version: "2026-11-01", Input: 2_500_000, CacheRead: 250_000, CacheWrite: 3_125_000, Output: 15_000_000,
		Special: set.Special, Steps: []domain.PriceStep{set}, FactorMicros: 900_000,
		Tools: []domain.ToolRate{{Tool: domain.ToolWebSearch, PerThousand: 10_000_000}, {Tool: domain.ToolFileSearch, PerThousand: 2_500_000}},
		Tiers: []domain.TierFactor{{Tier: "flex", FactorMicros: 500_000}, {Tier: "batch", FactorMicros: 500_000}, {Tier: "priority", FactorMicros: 2_000_000}},
	}
	size := func(p domain.Price) int { return proto.Size(keywayv1.DecisionToProto(domain.Decision{Price: p})) }
	t.Logf("four rates %d bytes, everything %d bytes", size(domain.Price{Version: price.Version, Input: price.Input, CacheRead: 1, CacheWrite: 1, Output: price.Output}), size(price))
	assert.Less(t, size(price), 400, "the dearest price list costs a fifth of the decision's 2 KB")
}
