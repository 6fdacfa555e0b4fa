package wire

import (
	"cmp"
	"errors"
	"slices"

	"keyway/domain"
)

// PatchOptions says what a channel needs changed in a request.
type PatchOptions struct {
	// UpstreamModel is the model's name at the provider; "" keeps the client's.
	UpstreamModel string
	// InjectUsage asks the provider for the usage chunk of a chat or
	// completions stream where the client did not.
	InjectUsage bool
	// OutputCap is put into the body, in tokens for each answer, where the
	// client set no cap; 0 leaves it open.
	OutputCap int64
}

const (
	usageMember  = `"include_usage":true`
	usageOptions = `{` + usageMember + `}`
)

// LacksUsage reports whether the request is a stream of a kind whose usage
// comes only when asked for, and the client did not ask. It is when InjectUsage
// acts, and when the chunk that then comes must be kept from the client.
func (q *Request) LacksUsage() bool {
	if q.API != domain.APIChat && q.API != domain.APICompletions {
		return false
	}
	return q.Stream && q.IncludeUsage != UsageTrue
}

// Patches returns the edits of the client's body, sorted by offset and without
// overlap; nil when nothing changes.
func (q *Request) Patches(o PatchOptions) []domain.Patch {
	var list []domain.Patch
	if o.OutputCap > 0 && q.LacksCap() {
		list = append(list, q.capPatch(o.OutputCap))
	}
	if o.InjectUsage && q.LacksUsage() {
		list = append(list, q.usagePatch())
	}
	if o.UpstreamModel != "" && o.UpstreamModel != q.Model && !q.model.unset() {
		name := o.UpstreamModel
		if !q.form {
			name = string(appendQuoted(nil, name))
		}
		list = append(list, replace(q.model, name))
	}
	slices.SortStableFunc(list, func(a, b domain.Patch) int { return cmp.Compare(a.Offset, b.Offset) })
	return list
}

func (q *Request) usagePatch() domain.Patch {
	switch {
	case q.options.unset():
		// The root holds at least the model, so another member follows.
		return insert(q.open, `"stream_options":`+usageOptions+`,`)
	case q.optionsNull:
		return replace(q.options, usageOptions)
	case !q.usage.unset():
		return replace(q.usage, "true")
	case q.optionsEmpty:
		return insert(q.optionsOpen, usageMember)
	}
	return insert(q.optionsOpen, usageMember+",")
}

func insert(at int, what string) domain.Patch {
	return domain.Patch{Offset: int64(at), Insert: what}
}

func replace(s span, by string) domain.Patch {
	return domain.Patch{Offset: int64(s.from), Delete: int64(s.to - s.from), Insert: by}
}

// errPatchRange: a patch list is not sorted, overlaps, or reaches beyond the body.
var errPatchRange = errors.New("apply patches: a patch lies outside the body or overlaps another")

// ApplyPatches returns body with the patches applied; body itself is not
// changed, and is returned as it is when the list is empty. It fails when the
// list does not fit the body, which means that it was made for another one.
func ApplyPatches(body []byte, patches []domain.Patch) ([]byte, error) {
	if len(patches) == 0 {
		return body, nil
	}
	size := int64(len(body))
	var at int64
	for _, p := range patches {
		if p.Offset < at || p.Delete < 0 || p.Offset > size || p.Delete > size-p.Offset {
			return nil, errPatchRange
		}
		at = p.Offset + p.Delete
	}
	out := make([]byte, 0, PatchedLen(size, patches))
	at = 0
	for _, p := range patches {
		out = append(out, body[at:p.Offset]...)
		out = append(out, p.Insert...)
		at = p.Offset + p.Delete
	}
	return append(out, body[at:]...), nil
}

// PatchedLen is the length in bytes of a body of bodyLen bytes after the patches.
func PatchedLen(bodyLen int64, patches []domain.Patch) int64 {
	for _, p := range patches {
		bodyLen += int64(len(p.Insert)) - p.Delete
	}
	return bodyLen
}
