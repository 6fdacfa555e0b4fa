package extproc

import (
	"encoding/base64"
	"strconv"
	"strings"
	"time"

	"keyway/domain"
	"keyway/wire"
)

// note is what a verdict script took down of one answer that was no success.
type note struct {
	channel string
	status  int
	// at is when the answer came; zero when the script could not tell.
	at time.Time
	// detail is what wire.ReadFailure reads, in base64; "" for none.
	detail string
}

// line writes the note as readNotes reads it.
func (n note) line() string {
	text := n.channel + "=" + strconv.Itoa(n.status)
	if !n.at.IsZero() {
		text += "@" + strconv.FormatInt(n.at.UnixMilli(), 10)
	}
	if n.detail != "" {
		text += "," + n.detail
	}
	return text + ";"
}

// readNotes reads "channel=status@milliseconds,detail;" of each answer, the oldest first.
// What cannot be read is passed over: it is none of ours.
func readNotes(text string) []note {
	var notes []note
	for one := range strings.SplitSeq(text, ";") {
		channel, rest, found := strings.Cut(one, "=")
		head, detail, _ := strings.Cut(rest, ",")
		status, at, _ := strings.Cut(head, "@")
		if n, err := strconv.Atoi(status); found && err == nil {
			noted := note{channel: channel, status: n, detail: detail}
			if ms, err := strconv.ParseInt(at, 10, 64); err == nil && ms > 0 {
				noted.at = time.UnixMilli(ms)
			}
			notes = append(notes, noted)
		}
	}
	return notes
}

// noteOf finds what was noted of attempt n (1-based); ok is false for an
// attempt that was not answered, or well. Attempts leave notes in their order,
// so a channel that is tried twice has its first note for its first attempt.
func noteOf(d domain.Decision, n int, notes []note) (found note, ok bool) {
	at := 0
	for i := range min(n, len(d.Candidates)) {
		found, ok = note{}, at < len(notes) && notes[at].channel == d.Candidates[i].Channel
		if ok {
			found = notes[at]
			at++
		}
	}
	return found, ok
}

// failure is what the note says of the attempt.
func (n note) failure() wire.Failure {
	detail, err := base64.StdEncoding.DecodeString(n.detail)
	if err != nil {
		detail = nil // the status alone says enough
	}
	return wire.ReadFailure(n.status, detail)
}

// attempts lists the attempts that ran: the nth went to the nth candidate, and
// the notes tell what those with an answer answered.
func (w *watch) attempts() []domain.Attempt {
	list := attemptsOf(w.decision, w.answer.attempts, w.answer.notes)
	if len(list) == 0 {
		return list
	}
	last := &list[len(list)-1]
	switch {
	case w.answer.fromUpstream:
		last.Status, last.At = w.answer.status, w.begun
		return w.judgeLast(list)
	case w.answer.unanswered:
		last.Reason = domain.ReasonUnanswered
	}
	return list
}

// judgeLast gives the last attempt the reason of a failure inside its answer.
func (w *watch) judgeLast(list []domain.Attempt) []domain.Attempt {
	if w.watcher == nil || len(list) == 0 {
		return list
	}
	if result := w.watcher.Result(); result.Failed {
		last := &list[len(list)-1]
		last.Reason = wire.Failure{Status: last.Status, Error: result.Error}.Judge(w.begun).Reason
	}
	return list
}

func attemptsOf(d domain.Decision, count int, text string) []domain.Attempt {
	notes := readNotes(text)
	list := make([]domain.Attempt, 0, count)
	for i := range min(count, len(d.Candidates)) {
		a := domain.Attempt{Channel: d.Candidates[i].Channel}
		switch noted, ok := noteOf(d, i+1, notes); {
		case ok:
			a.Status, a.At, a.Reason = noted.status, noted.at, noted.failure().Judge(noted.at).Reason
		case i+1 < count:
			a.Reason = domain.ReasonUnanswered // or there would have been no next one
		}
		list = append(list, a)
	}
	return list
}

// blameUnseen reports those before the last of n attempts of which nobody could
// tell earlier: a channel whose egress is native passes without a word to us.
func (s *Server) blameUnseen(d domain.Decision, n int, notes string) {
	for i := 1; i < n; i++ {
		if next, ok := d.Candidate(i + 1); ok && s.channels.egress(next.Channel) == domain.EgressNative {
			s.blameEarlier(d, i, notes)
		}
	}
}

// blameEarlier reports attempt n, which another one follows.
func (s *Server) blameEarlier(d domain.Decision, n int, notes string) {
	candidate, ok := d.Candidate(n)
	if !ok {
		return
	}
	noted, answered := noteOf(d, n, readNotes(notes))
	if !answered {
		s.evidence.failed(candidate, wire.Failure{})
		return
	}
	s.evidence.failed(candidate, noted.failure())
}
