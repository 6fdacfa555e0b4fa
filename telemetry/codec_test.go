package telemetry

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

var _ encoding.CodecV2 = codec{}

func TestCodecHoldsLittleMoreThanTheMessage(t *testing.T) {
	t.Parallel()
	c := newCodec()
	for _, size := range []int{0, 100, 3_000, 64<<10 + 40, 200 << 10, 3 << 20} {
		sent := wrapperspb.String(strings.Repeat("x", size))
		data, err := c.Marshal(sent)
		require.NoError(t, err)
		got := new(wrapperspb.StringValue)
		require.NoError(t, c.Unmarshal(data, got))
		assert.Equal(t, sent.GetValue(), got.GetValue())
		data.Free()
		buffer := c.pool.Get(size)
		if size < 1<<18 {
			assert.LessOrEqual(t, cap(*buffer), max(4*size, 256), "a buffer for %d bytes", size)
		}
		c.pool.Put(buffer)
	}
	_, err := c.Marshal("text")
	require.Error(t, err)
	require.Error(t, c.Unmarshal(mem.BufferSlice{mem.SliceBuffer("\xff")}, new(wrapperspb.StringValue)))
	require.Error(t, c.Unmarshal(nil, "text"))
	require.Equal(t, "proto", c.Name())
}
