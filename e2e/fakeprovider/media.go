package fakeprovider

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"strconv"
	"strings"
)

// parseForm reads the multipart body of an operation that takes files. A file
// counts as one word of the prompt for each kilobyte.
func parseForm(op operation, contentType string, raw []byte) (*call, error) {
	_, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		return nil, fmt.Errorf("parse content type: %w", err)
	}
	c := &call{op: op, n: 1}
	reader := multipart.NewReader(bytes.NewReader(raw), params["boundary"])
	for {
		part, err := reader.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("parse form: %w", err)
		}
		value, err := io.ReadAll(part)
		if err != nil {
			return nil, fmt.Errorf("read part %q: %w", part.FormName(), err)
		}
		if part.FileName() != "" {
			c.files++
			c.promptWords += 1 + int64(len(value))>>10
			continue
		}
		switch text := string(value); part.FormName() {
		case "model":
			c.model = text
		case "stream":
			c.stream = text == "true"
		case "n":
			c.n, _ = strconv.Atoi(text) // what is no number is one
			c.n = max(c.n, 1)
		case "response_format":
			c.format = text
		case "prompt":
			c.lastUser = text
			c.promptWords += countWords(text)
		}
	}
	if c.model == "" {
		return nil, errors.New("you must provide a model parameter")
	}
	if c.files == 0 {
		return nil, errors.New("you must provide a file")
	}
	return c, nil
}

// rerank scores the documents in their order.
func (r *rendering) rerank() [][]byte {
	results := make([]string, r.c.documents)
	for i := range results {
		results[i] = fmt.Sprintf(`{"index":%d,"relevance_score":%.3f}`, i, 1/float64(i+1))
	}
	usage := ""
	if r.s.UsageForm != UsageNone {
		usage = `,"usage":` + r.report(r.usage)
	}
	return [][]byte{[]byte(`{"id":"rerank-fake-` + strconv.FormatUint(r.c.seq, 10) + `","model":` + r.model + `,"results":[` + strings.Join(results, ",") + `]` + usage + `}`)}
}

// Sound is the spoken form of a text of that many characters.
func Sound(characters int64) []byte {
	return append([]byte("ID3"), Pattern("\x00\xff sound", int(characters)*100)...)
}

// speech is sound, or a stream of events that hold some.
func (r *rendering) speech() [][]byte {
	sound := Sound(r.c.characters)
	if !r.c.stream {
		return [][]byte{sound}
	}
	var frames [][]byte
	for len(sound) > 0 {
		n := min(len(sound), 3000)
		frames = append(frames, dataFrame(`{"type":"speech.audio.delta","audio":"`+base64.StdEncoding.EncodeToString(sound[:n])+`"}`))
		sound = sound[n:]
	}
	return append(frames, dataFrame(`{"type":"speech.audio.done"`+r.mediaUsage()+`}`))
}

// transcript is what was heard, in the format that was asked for.
func (r *rendering) transcript() [][]byte {
	switch {
	case r.c.stream:
		var frames [][]byte
		for _, word := range r.words {
			frames = append(frames, dataFrame(`{"type":"transcript.text.delta","delta":`+quote(word)+`}`))
		}
		return append(frames, dataFrame(`{"type":"transcript.text.done","text":`+quote(r.text())+r.mediaUsage()+`}`))
	case r.c.plainText():
		return [][]byte{[]byte(r.text() + "\n")}
	}
	return [][]byte{[]byte(`{"text":` + quote(r.text()) + r.mediaUsage() + `}`)}
}

// plainText: the answer is no JSON.
func (c *call) plainText() bool { return c.format == "text" || c.format == "srt" || c.format == "vtt" }

// mediaUsage is the last member of an answer about sound or images.
func (r *rendering) mediaUsage() string {
	if r.s.UsageForm == UsageNone {
		return ""
	}
	return `,"usage":` + r.report(r.usage)
}

// images are as many as were asked for, or the script's count of them.
func (r *rendering) images() [][]byte {
	made := r.c.n
	if r.s.Count > 0 {
		made = r.s.Count
	}
	pixels := base64.StdEncoding.EncodeToString(Pattern("\x89PNG image", max(r.s.DeltaBytes, 64)))
	if r.c.stream {
		kind := map[operation]string{opImages: "image_generation", opImageEdits: "image_edit"}[r.c.op]
		frames := [][]byte{eventFrame(kind+".partial_image", `{"type":"`+kind+`.partial_image","b64_json":"`+pixels+`","partial_image_index":0}`)}
		for range made {
			frames = append(frames, eventFrame(kind+".completed", `{"type":"`+kind+`.completed","b64_json":"`+pixels+`"`+r.mediaUsage()+`}`))
		}
		return frames
	}
	data := make([]string, made)
	for i := range data {
		data[i] = `{"b64_json":"` + pixels + `"}`
	}
	return [][]byte{[]byte(`{"created":` + created + `,"data":[` + strings.Join(data, ",") + `]` + r.mediaUsage() + `}`)}
}

// mediaUsageJSON is u as the operations about sound and images write it.
func mediaUsageJSON(op operation, u Usage) string {
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	totals := `"input_tokens":` + n(u.input()) + `,"output_tokens":` + n(u.Output) + `,"total_tokens":` + n(u.input()+u.Output)
	switch op {
	case opImages, opImageEdits:
		return `{` + totals + `,"input_tokens_details":{"text_tokens":` + n(u.InputUncached-u.InputImage) + `,"image_tokens":` + n(u.InputImage) + `}}`
	case opTranscriptions, opTranslations:
		return `{"type":"tokens",` + totals + `,"input_token_details":{"text_tokens":` + n(u.InputUncached-u.InputAudio) + `,"audio_tokens":` + n(u.InputAudio) + `}}`
	}
	return `{` + totals + `}`
}
