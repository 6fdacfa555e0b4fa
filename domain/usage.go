package domain

// Usage is the canonical token count of one attempt (PROTOCOLS §6). The
// provider families count differently; wire normalises, everything behind it
// reads only this.
type Usage struct {
	// InputUncached, CacheRead and CacheWrite are disjoint; their sum is the prompt.
	InputUncached int64
	CacheRead     int64
	CacheWrite    int64
	// CacheWrite1h is the part of CacheWrite with the one-hour TTL.
	CacheWrite1h int64
	// Output is all that was generated; Reasoning is the part of it that was hidden.
	Output    int64
	Reasoning int64
}

// Input is the whole prompt: uncached, read from cache and written to it.
func (u Usage) Input() int64 { return u.InputUncached + u.CacheRead + u.CacheWrite }

// Total is prompt plus output.
func (u Usage) Total() int64 { return u.Input() + u.Output }
