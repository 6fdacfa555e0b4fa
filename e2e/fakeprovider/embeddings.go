package fakeprovider

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"
)

const defaultDimensions = 8

// embeddings renders one vector for each input.
func (r *rendering) embeddings() [][]byte {
	size := r.c.dimensions
	if size <= 0 {
		size = defaultDimensions
	}
	data := make([]string, len(r.c.inputs))
	for i, tokens := range r.c.inputs {
		vector := Vector(tokens, size)
		data[i] = fmt.Sprintf(`{"object":"embedding","index":%d,"embedding":%s}`, i, r.vectorJSON(vector))
	}
	usage := ""
	if r.s.UsageForm != UsageNone {
		usage = `,"usage":` + r.report(r.usage)
	}
	return [][]byte{[]byte(`{"object":"list","data":[` + strings.Join(data, ",") + `],"model":` + r.model + usage + `}`)}
}

// Vector is the embedding of an input of that many tokens: eighths, which
// float32 holds exactly.
func Vector(tokens int64, size int) []float32 {
	out := make([]float32, size)
	for i := range out {
		out[i] = float32((tokens+int64(i))%16)/8 - 1
	}
	return out
}

// vectorJSON is a vector in the encoding that the request asked for.
func (r *rendering) vectorJSON(vector []float32) string {
	if r.c.base64 {
		raw := make([]byte, 0, 4*len(vector))
		for _, v := range vector {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
		}
		return quote(base64.StdEncoding.EncodeToString(raw))
	}
	parts := make([]string, len(vector))
	for i, v := range vector {
		parts[i] = strconv.FormatFloat(float64(v), 'g', -1, 32)
	}
	return "[" + strings.Join(parts, ",") + "]"
}
