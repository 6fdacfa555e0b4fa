package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"keyway/domain"
	"keyway/store"
)

func newExplain() *cobra.Command {
	var (
		f      keyFlags
		output string
	)
	cmd := &cobra.Command{
		Use:   "explain REQUEST_ID",
		Short: "Tell how a request was routed and how it ended.",
		Long: `Tell how one request was routed: every channel of its model and of the fallback
models with its score, or why it was left out; which attempts ran and what each
was answered; and how the request ended. The id is the one that the client got in
x-request-id.

It is known while the request runs and for 24 hours after its end, as long as not
more than 5000 requests of the same part of the store ended since. A request that
was refused at admission went to no channel and is not known; the ledger keeps
what was admitted for good (keyway ledger --request REQUEST_ID).`,
		Example: `  keyway explain 2f1c8a52-3b0e-4d57-9a64-0c1f5a0d9c11
  keyway explain 2f1c8a52-3b0e-4d57-9a64-0c1f5a0d9c11 -o json --store redis://127.0.0.1:6379/0`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "table" && output != "json" {
				return errOutput(output)
			}
			return f.withStore(cmd.Context(), func(ctx context.Context, s *store.Store) error {
				e, err := s.Explain(ctx, args[0])
				if errors.Is(err, domain.ErrNotFound) {
					return fmt.Errorf("no request %q is known: the id is wrong, it was refused at admission, or it ended too long ago", args[0])
				}
				if err != nil {
					return err
				}
				return printExplanation(cmd.OutOrStdout(), output, explained(args[0], e))
			})
		},
	}
	outputFlag(cmd, &output, "table", "json")
	f.add(cmd)
	return cmd
}

// explanation is a request as people see it. Times are milliseconds since the
// epoch, 0 for never.
type explanation struct {
	RequestID string `json:"request_id"`
	// State is running, or how it ended: an outcome.
	State    string `json:"state"`
	Identity string `json:"identity"`
	KeyID    string `json:"key_id"`
	API      string `json:"api"`
	// AskedModel is the name that the client sent.
	AskedModel string `json:"asked_model"`
	// Model and Channel served it, or were tried last; "" for none.
	Model      string               `json:"model"`
	Channel    string               `json:"channel"`
	Status     int                  `json:"status"`
	CostMicros int64                `json:"cost_micros"`
	AdmittedAt int64                `json:"admitted_at_ms"`
	FirstByte  int64                `json:"first_byte_at_ms"`
	EndedAt    int64                `json:"ended_at_ms"`
	Candidates []explainedCandidate `json:"candidates"`
	Attempts   []explainedAttempt   `json:"attempts"`
}

// explainedCandidate is one channel as it stood.
type explainedCandidate struct {
	Channel string `json:"channel"`
	Model   string `json:"model"`
	// Place is where it stood among the candidates, from 1; 0 for one that was left out.
	Place   int     `json:"place"`
	Score   float64 `json:"score"`
	LeftOut string  `json:"left_out"`
	// Note says what else there is: that it was passed over, or moved back.
	Note string `json:"note"`
}

// explainedAttempt is one call to a channel; a status of 0 is no answer.
type explainedAttempt struct {
	Channel string `json:"channel"`
	Model   string `json:"model"`
	Status  int    `json:"status"`
	// Reason is what its failure was about; "" for none of the channel's.
	Reason string `json:"reason"`
	// At is when its answer began.
	At int64 `json:"at_ms"`
}

// passedOver is the note of a candidate that stood before the one that was
// tried first: only what the store knew could keep it from being it.
const passedOver = "passed over: no slot was free, or another request was on trial there"

func explained(id string, e domain.Explanation) explanation {
	d, r := e.Decision, e.Record
	out := explanation{
		RequestID: id, State: "running", Identity: d.Identity, KeyID: d.KeyID, API: string(d.API), AskedModel: d.AskedModel(),
		AdmittedAt: milliseconds(d.AdmittedAt), Candidates: []explainedCandidate{}, Attempts: []explainedAttempt{},
	}
	if e.Ended {
		out.State, out.Identity, out.KeyID, out.API, out.AskedModel = string(r.Outcome), r.Identity, r.KeyID, string(r.API), r.Model
		out.Channel, out.Status, out.CostMicros = r.Channel, r.Status, r.CostMicros
		out.AdmittedAt, out.FirstByte, out.EndedAt = milliseconds(r.AdmittedAt), milliseconds(r.FirstByteAt), milliseconds(r.EndedAt)
	}
	place := 0
	for _, s := range d.Route {
		c := explainedCandidate{Channel: s.Channel, Model: s.Model, Score: s.Score, LeftOut: s.LeftOut, Note: s.Note}
		if s.LeftOut == "" {
			place++
			c.Place = place
		}
		out.Candidates = append(out.Candidates, c)
	}
	next := 0
	for _, a := range r.Attempts {
		attempt := explainedAttempt{Channel: a.Channel, Status: a.Status, Reason: string(a.Reason), At: milliseconds(a.At)}
		for i := next; i < len(out.Candidates); i++ {
			c := &out.Candidates[i]
			if c.Place > 0 && c.Channel == a.Channel {
				attempt.Model, next = c.Model, i+1
				break
			}
			if c.Place > 0 && c.Note == "" {
				c.Note = passedOver
			}
		}
		out.Attempts, out.Model = append(out.Attempts, attempt), attempt.Model
	}
	return out
}

func milliseconds(at time.Time) int64 {
	if at.IsZero() {
		return 0
	}
	return at.UnixMilli()
}

func printExplanation(out io.Writer, form string, e explanation) error {
	if form == "json" {
		if err := json.NewEncoder(out).Encode(e); err != nil {
			return fmt.Errorf("write explanation: %w", err)
		}
		return nil
	}
	fmt.Fprintf(out, "%s asked for %s over %s, by key %s of %s, admitted %s.\n",
		e.RequestID, e.AskedModel, e.API, e.KeyID, e.Identity, shortTime(e.AdmittedAt))
	fmt.Fprintln(out, e.sentence())
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "\nPLACE\tCHANNEL\tMODEL\tSCORE\tWHY")
	for _, c := range e.Candidates {
		place, score, why := strconv.Itoa(c.Place), strconv.FormatFloat(c.Score, 'g', 4, 64), c.Note
		if c.Place == 0 {
			place, score, why = "-", "-", "left out: "+c.LeftOut
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", place, orDash(c.Channel), c.Model, score, why)
	}
	fmt.Fprintln(w, "\nATTEMPT\tCHANNEL\tMODEL\tANSWER\tAFTER\tFAILURE")
	for i, a := range e.Attempts {
		answer := strconv.Itoa(a.Status)
		if a.Status == 0 {
			answer = "none"
		}
		after := "-"
		if a.At > 0 {
			after = (time.Duration(a.At-e.AdmittedAt) * time.Millisecond).String()
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\n", i+1, a.Channel, orDash(a.Model), answer, after, orDash(a.Reason))
	}
	return w.Flush()
}

// sentence says how the request is.
func (e explanation) sentence() string {
	if e.EndedAt == 0 {
		return "It is running; what its attempts were answered is known at its end."
	}
	took := time.Duration(e.EndedAt-e.AdmittedAt) * time.Millisecond
	return fmt.Sprintf("It ended as %s after %s with status %d, tried last on %s; cost %s.", e.State, took, e.Status, orDash(e.Channel), currency(e.CostMicros))
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
