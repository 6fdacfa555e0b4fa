package wire

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"keyway/domain"
)

func TestImagesAsked(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]int64{
		`{"input":"draw","tools":[{"type":"web_search"},{"type":"image_generation","size":"auto"}]}`: 1,
		`{"t\u006fols":[{"type":"image\u005fgeneration"}]}`:                                          1,
		`{"input":"what is image_generation?"}`:                                                      0,
		`{"input":"\"tools\":[{\"type\":\"image_generation\"}]","tools":[{"type":"web_search"}]}`:    0,
		`{"tools":[7,{"type":"image_generation"}]}`:                                                  1,
		`{"tools":"image_generation"}`:                                                               0,
		`{"tools":[{"name":"image_generation","type":"function"}]}`:                                  0,
		`{`: 0,
	} {
		assert.Equal(t, want, ImagesAsked(domain.APIResponses, []byte(body)), body)
		assert.Zero(t, ImagesAsked(domain.APIChat, []byte(body)))
	}
}
