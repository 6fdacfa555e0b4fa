package wire

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"

	"keyway/domain"
)

// What an image costs: one token per square patch, with a cap to which the
// provider scales it down (PROTOCOLS §9). The patch edges are in pixels.
const (
	anthropicPatch    = 28
	anthropicImageCap = 4000
	openAIPatch       = 32
	openAIImageCap    = 3000
	// openAIPatchTenths is the factor 1.2 of the current models.
	openAIPatchTenths = 12
)

// Media that are no images cost by their size in bytes: a page of a document is
// some 2 000 tokens in 40 kB, a second of sound 10 tokens in 10 kB or more.
const (
	documentBytesPerToken = 20
	audioBytesPerToken    = 1000
	plainBytesPerToken    = 3
	documentMinTokens     = 1600
)

// inlineTokens is what a base64 data URL costs; ok is false for any other string.
func inlineTokens(api domain.API, value []byte) (tokens int64, ok bool) {
	const maxPrefix = 128
	if !bytes.HasPrefix(value, []byte("data:")) {
		return 0, false
	}
	prefix, media, ok := bytes.Cut(value, []byte(";base64,"))
	if !ok || len(prefix) > maxPrefix {
		return 0, false
	}
	if bytes.HasPrefix(prefix, []byte("data:text/")) {
		return int64(len(media)) / 4 * 3 / plainBytesPerToken, true
	}
	return mediaTokens(api, media), true
}

// mediaTokens is what base64 media costs. Only a few bytes of it are decoded.
func mediaTokens(api domain.API, media []byte) int64 {
	head := sniff{media: media}
	size := int64(len(media)) / 4 * 3
	switch kind := head.bytes(0, sniffLen); {
	case bytes.HasPrefix(kind, []byte("%PDF")):
		return max(documentMinTokens, size/documentBytesPerToken)
	case bytes.HasPrefix(kind, []byte("ID3")), bytes.HasPrefix(kind, []byte("OggS")), bytes.HasPrefix(kind, []byte("fLaC")),
		bytes.HasPrefix(kind, []byte("RIFF")) && bytes.HasSuffix(kind, []byte("WAVE")),
		len(kind) > 1 && kind[0] == 0xff && kind[1]&0xe0 == 0xe0 && kind[1] != 0xff:
		return max(1, size/audioBytesPerToken)
	}
	w, h, ok := head.imageSize()
	if !ok {
		return max(imageCap(api), size/documentBytesPerToken)
	}
	return imageTokens(api, w, h)
}

func imageTokens(api domain.API, w, h int64) int64 {
	if api.Dialect() == domain.DialectAnthropic {
		return min(anthropicImageCap, patches(w, anthropicPatch)*patches(h, anthropicPatch))
	}
	return min(openAIImageCap, (patches(w, openAIPatch)*patches(h, openAIPatch)*openAIPatchTenths+9)/10)
}

func patches(pixels, edge int64) int64 { return (pixels + edge - 1) / edge }

// sniff reads single bytes of base64 text wherever they lie.
type sniff struct {
	media []byte
	buf   [sniffLen + 6]byte
}

// sniffLen is how many decoded bytes are looked at in one place.
const sniffLen = 12

// bytes decodes up to n ≤ sniffLen bytes at the decoded offset at; fewer when
// the text ends or holds anything that is not standard base64.
func (s *sniff) bytes(at, n int) []byte {
	skip := at % 3
	from := at / 3 * 4
	to := from + (skip+n+2)/3*4
	if from >= len(s.media) {
		return nil
	}
	got, _ := base64.StdEncoding.Decode(s.buf[:], s.media[from:min(to, len(s.media)&^3)])
	return s.buf[min(skip, got):min(skip+n, got)]
}

// imageSize reads width and height in pixels from the header of a PNG, GIF,
// WebP or JPEG.
func (s *sniff) imageSize() (w, h int64, ok bool) {
	head := string(s.bytes(0, sniffLen))
	switch {
	case len(head) < sniffLen:
		return 0, 0, false
	case head[:8] == "\x89PNG\r\n\x1a\n":
		if b := s.bytes(16, 8); len(b) == 8 {
			return positive(int64(binary.BigEndian.Uint32(b)), int64(binary.BigEndian.Uint32(b[4:])))
		}
	case head[:4] == "GIF8":
		if b := s.bytes(6, 4); len(b) == 4 {
			return positive(int64(binary.LittleEndian.Uint16(b)), int64(binary.LittleEndian.Uint16(b[2:])))
		}
	case head[:4] == "RIFF" && head[8:] == "WEBP":
		return s.webpSize()
	case head[:2] == "\xff\xd8":
		return s.jpegSize()
	}
	return 0, 0, false
}

func positive(w, h int64) (int64, int64, bool) {
	const maxEdge = 1 << 16 // beyond it the header is not to be believed
	return w, h, w > 0 && h > 0 && w <= maxEdge && h <= maxEdge
}

func (s *sniff) webpSize() (w, h int64, ok bool) {
	format := string(s.bytes(12, 4))
	switch format {
	case "VP8X":
		if b := s.bytes(24, 6); len(b) == 6 {
			return positive(1+uint24(b), 1+uint24(b[3:]))
		}
	case "VP8L":
		if b := s.bytes(21, 4); len(b) == 4 {
			v := int64(binary.LittleEndian.Uint32(b))
			return positive(1+v&0x3fff, 1+(v>>14)&0x3fff)
		}
	case "VP8 ":
		if b := s.bytes(26, 4); len(b) == 4 {
			return positive(int64(binary.LittleEndian.Uint16(b))&0x3fff, int64(binary.LittleEndian.Uint16(b[2:]))&0x3fff)
		}
	}
	return 0, 0, false
}

func uint24(b []byte) int64 { return int64(b[0]) | int64(b[1])<<8 | int64(b[2])<<16 }

// jpegSize walks the segments to the frame header, which metadata may push far back.
func (s *sniff) jpegSize() (w, h int64, ok bool) {
	const maxSegments = 64
	at := 2
	for range maxSegments {
		b := s.bytes(at, 9)
		if len(b) < 9 || b[0] != 0xff {
			return 0, 0, false
		}
		marker := b[1]
		if marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc {
			return positive(int64(binary.BigEndian.Uint16(b[7:])), int64(binary.BigEndian.Uint16(b[5:])))
		}
		at += 2 + int(binary.BigEndian.Uint16(b[2:]))
	}
	return 0, 0, false
}
