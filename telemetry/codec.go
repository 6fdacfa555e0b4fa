package telemetry

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// codec writes and reads protobuf as gRPC's own codec does, with buffers of its
// own. gRPC's have few sizes, and Envoy hands over bodies in pieces of just over
// 16 KiB: those of streams whose reader has stopped would each hold twice that.
type codec struct{ pool mem.BufferPool }

// bufferSizes leave room for what a message says beside its piece of a body.
var bufferSizes = []int{256, 4 << 10, 17 << 10, 33 << 10, 66 << 10, 130 << 10, 260 << 10, 1 << 20}

func newCodec() codec { return codec{mem.NewTieredBufferPool(bufferSizes...)} }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	message, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("encode %T: not a protobuf message", v)
	}
	size := proto.Size(message)
	options := proto.MarshalOptions{UseCachedSize: true}
	if mem.IsBelowBufferPoolingThreshold(size) {
		raw, err := options.Marshal(message)
		if err != nil {
			return nil, fmt.Errorf("encode %T: %w", v, err)
		}
		return mem.BufferSlice{mem.SliceBuffer(raw)}, nil
	}
	buffer := c.pool.Get(size)
	if _, err := options.MarshalAppend((*buffer)[:0], message); err != nil {
		c.pool.Put(buffer)
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	return mem.BufferSlice{mem.NewBuffer(buffer, c.pool)}, nil
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	message, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("decode %T: not a protobuf message", v)
	}
	buffer := data.MaterializeToBuffer(c.pool)
	defer buffer.Free()
	if err := proto.Unmarshal(buffer.ReadOnlyData(), message); err != nil {
		return fmt.Errorf("decode %T: %w", v, err)
	}
	return nil
}

// Name implements encoding.CodecV2.
func (codec) Name() string { return "proto" }
