package wire

func (p *peeker) readConversation() bool {
	switch p.r.peek() {
	case 'n':
		return p.r.word("null")
	case '"', '{':
	default:
		return p.wrongType("conversation", "a string or an object")
	}
	p.req.HasConversation = true
	if p.r.peek() == '"' {
		return p.readString("conversation", &p.req.Conversation)
	}
	known := false
	return p.r.members(func(key []byte) bool {
		if string(key) != "id" {
			return p.r.skip()
		}
		if known {
			return p.refuse("conversation.id", "is given twice; send it once")
		}
		known = true
		return p.readString("conversation.id", &p.req.Conversation)
	})
}

// readSession takes what names an end user or a session. A provider judges its
// type, so one that is no string is passed over.
func (p *peeker) readSession(f requestField) bool {
	r := &p.r
	switch {
	case f == fieldMetadata && r.peek() == '{':
		return r.members(func(key []byte) bool {
			if string(key) == "user_id" || string(key) == "session_id" {
				return p.takeSession()
			}
			return r.skip()
		})
	case f == fieldMetadata:
		return r.skip()
	}
	return p.takeSession()
}

func (p *peeker) takeSession() bool {
	r := &p.r
	if r.peek() != '"' || p.req.Session != "" {
		return r.skip()
	}
	t, ok := r.str()
	if ok {
		p.req.Session = r.plainText(t)
	}
	return ok
}
