package multipart

import (
	"bytes"
	"mime/multipart"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const contentType = "multipart/form-data; boundary=xyz"

func part(header, content string) string { return "--xyz\r\n" + header + "\r\n\r\n" + content + "\r\n" }

func field(name, content string) string {
	return part(`Content-Disposition: form-data; name="`+name+`"`, content)
}

const end = "--xyz--\r\n"

func TestPartsAreFoundWhereverTheyStand(t *testing.T) {
	t.Parallel()
	file := part("Content-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav", "RIFF\r\n--xy\r\n\r\n\x00")
	for _, body := range []string{
		file + field("model", "m") + end,
		field("model", "m") + file + end,
		field("model", "m") + field("empty", "") + file + strings.TrimSuffix(end, "\r\n"),
		part(`content-disposition:form-data;name=model`, "m") + part("Content-Type: text/plain\r\nContent-Length: 3\r\nContent-Disposition: form-data; name=\"image[]\"; filename*=UTF-8''a", "abc") + end,
	} {
		parts, err := Parts(contentType, []byte(body))
		require.NoError(t, err, "%q", body)
		found := map[string]string{}
		for _, p := range parts {
			found[p.Name] = body[p.From:p.To]
			require.Equal(t, p.Name == "file" || p.Name == "image[]", p.IsFile, p.Name)
		}
		require.Equal(t, "m", found["model"], "%q", body)
	}
}

// What the standard library writes is read back, part by part.
func TestPartsReadWhatOthersWrite(t *testing.T) {
	t.Parallel()
	var buf bytes.Buffer
	w := multipart.NewWriter(&buf)
	big := bytes.Repeat([]byte("\r\n--\x00\xff"), 1<<18)
	file, err := w.CreateFormFile("file", `odd "name" ü.mp3`)
	require.NoError(t, err)
	_, err = file.Write(big)
	require.NoError(t, err)
	require.NoError(t, w.WriteField("model", "whisper-1"))
	require.NoError(t, w.Close())
	parts, err := Parts(w.FormDataContentType(), buf.Bytes())
	require.NoError(t, err)
	require.Len(t, parts, 2)
	require.Equal(t, big, buf.Bytes()[parts[0].From:parts[0].To])
	require.True(t, parts[0].IsFile)
	require.Equal(t, "whisper-1", string(buf.Bytes()[parts[1].From:parts[1].To]))
}

func TestDoubtfulFormsAreRefused(t *testing.T) {
	t.Parallel()
	good := field("model", "m")
	for _, tt := range []struct {
		name, contentType, body string
		want                    error
	}{
		{"no boundary", "multipart/form-data", good + end, errType},
		{"another type", "multipart/mixed; boundary=xyz", good + end, errType},
		{"a boundary that is too long", "multipart/form-data; boundary=" + strings.Repeat("x", 71), "", errType},
		{"empty", contentType, "", errStart},
		{"a preamble", contentType, "hello\r\n" + good + end, errStart},
		{"not ended", contentType, good, errUnended},
		{"cut in the last boundary", contentType, good + "--xyz", errUnended},
		{"cut in a part", contentType, "--xyz\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nabc", errUnended},
		{"an epilogue", contentType, good + end + "x", errTrailing},
		{"a second form behind the first", contentType, good + end + good + end, errTrailing},
		{"a longer boundary", contentType, field("a", "b\r\n--xyzz\r\nc") + end, errInside},
		{"a boundary in a line", contentType, field("a", "b --xyz\r\nc") + end, errInside},
		{"a boundary after a bare line feed", contentType, field("a", "b\n--xyz\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nc") + end, errInside},
		{"blanks behind a boundary", contentType, "--xyz \r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nb\r\n" + end, errInside},
		{"line feeds only", contentType, strings.ReplaceAll(good+end, "\r\n", "\n"), errInside},
		{"no header", contentType, "--xyz\r\nabc\r\n" + end, errHeader},
		{"a folded header", contentType, part("X: a\r\n b: c\r\nContent-Disposition: form-data; name=\"a\"", "b") + end, errHeader},
		{"a header with a strange name", contentType, part("\xa8: a\r\nContent-Disposition: form-data; name=\"a\"", "b") + end, errHeader},
		{"a header with a bell", contentType, part("X: \a\r\nContent-Disposition: form-data; name=\"a\"", "b") + end, errHeader},
		{"a header too long", contentType, part("X: "+strings.Repeat("x", maxHeader)+"\r\nContent-Disposition: form-data; name=\"a\"", "b") + end, errHeader},
		{"two dispositions", contentType, part("Content-Disposition: form-data; name=\"a\"\r\nContent-Disposition: form-data; name=\"model\"", "b") + end, errHeader},
		{"no name", contentType, part("Content-Disposition: form-data", "b") + end, errName},
		{"no disposition", contentType, part("Content-Type: text/plain", "b") + end, errName},
		{"two names", contentType, part(`Content-Disposition: form-data; name="a"; name="model"`, "b") + end, errName},
		{"an extended name", contentType, part(`Content-Disposition: form-data; name*=UTF-8''model`, "b") + end, errName},
		{"an escaped name", contentType, part(`Content-Disposition: form-data; name="mo\del"`, "b") + end, errName},
		{"a name with a percent sign", contentType, part(`Content-Disposition: form-data; name="mo%64el"`, "b") + end, errName},
		{"base64", contentType, part("Content-Disposition: form-data; name=\"model\"\r\nContent-Transfer-Encoding: base64", "bQ==") + end, errEncoding},
		{"too many parts", contentType, strings.Repeat(good, maxParts+1) + end, errCount},
	} {
		_, err := Parts(tt.contentType, []byte(tt.body))
		require.ErrorIs(t, err, tt.want, tt.name)
	}
	parts, err := Parts(contentType, []byte(strings.Repeat(good, maxParts)+end))
	require.NoError(t, err)
	require.Len(t, parts, maxParts)
}

// FuzzParts: whatever Parts takes, the standard library takes apart alike.
func FuzzParts(f *testing.F) {
	f.Add([]byte(field("model", "m") + end))
	f.Add([]byte(part("Content-Disposition: form-data; name=\"file\"; filename=\"a\"", "b\r\n\r\n") + field("model", "m") + end))
	f.Fuzz(func(t *testing.T, body []byte) {
		parts, err := Parts(contentType, body)
		if err != nil {
			return
		}
		r := multipart.NewReader(bytes.NewReader(body), "xyz")
		for _, p := range parts {
			theirs, err := r.NextRawPart()
			if err != nil {
				t.Fatalf("part %q: %v", p.Name, err)
			}
			var content bytes.Buffer
			if _, err := content.ReadFrom(theirs); err != nil {
				t.Fatalf("part %q: %v", p.Name, err)
			}
			if theirs.FormName() != p.Name || !bytes.Equal(content.Bytes(), body[p.From:p.To]) {
				t.Fatalf("%q is %q, theirs %q is %q", p.Name, body[p.From:p.To], theirs.FormName(), content.Bytes())
			}
		}
		if _, err := r.NextRawPart(); err == nil {
			t.Fatal("they find one part more")
		}
	})
}
