package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"keyway/domain"
)

func TestExplanationOfAFailover(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	e := domain.Explanation{
		Ended: true,
		Decision: domain.Decision{
			Model: "m", Route: []domain.Standing{
				{Channel: "tight", Model: "m", Score: 3},
				{Channel: "east", Model: "m", Score: 1.23456},
				{Channel: "slow", Model: "m", Score: 9, Note: "slow"},
				{Channel: "west", Model: "m", LeftOut: "cooling for 3s (rate)"},
				{Channel: "east", Model: "n", Score: 1},
				{Model: "secret", LeftOut: "the key may not use the model"},
			},
		},
		Record: domain.UsageRecord{
			RequestID: "r1", KeyID: "key_1", Identity: "acme", API: domain.APIChat, Model: "latest", Channel: "east", Outcome: domain.OutcomeSuccess,
			Status: 200, CostMicros: 1234, AdmittedAt: begin, EndedAt: begin.Add(1500 * time.Millisecond),
			Attempts: []domain.Attempt{
				{Channel: "east", Status: 429, Reason: domain.ReasonRate, At: begin.Add(20 * time.Millisecond)},
				{Channel: "slow", Reason: domain.ReasonUnanswered},
				{Channel: "east", Status: 200, At: begin.Add(time.Second)},
			},
		},
	}
	got := explained("r1", e)
	assert.Equal(t, []explainedAttempt{
		{"east", "m", 429, "rate", begin.UnixMilli() + 20}, {"slow", "m", 0, "unanswered", 0}, {"east", "n", 200, "", begin.UnixMilli() + 1000},
	}, got.Attempts)
	assert.Equal(t, []string{"n", "east", "latest", "success"}, []string{got.Model, got.Channel, got.AskedModel, got.State})
	var places []int
	for _, c := range got.Candidates {
		places = append(places, c.Place)
	}
	assert.Equal(t, []int{1, 2, 3, 0, 4, 0}, places)
	assert.Equal(t, passedOver, got.Candidates[0].Note)
	assert.Equal(t, "slow", got.Candidates[2].Note)
	assert.Empty(t, got.Candidates[4].Note)

	var table, line strings.Builder
	require.NoError(t, printExplanation(&table, "table", got))
	for _, part := range []string{
		"r1 asked for latest over chat, by key key_1 of acme", "ended as success after 1.5s with status 200, tried last on east; cost 0.001234",
		"left out: cooling for 3s (rate)", "1.235", "none", "20ms", "unanswered",
	} {
		assert.Contains(t, table.String(), part)
	}
	require.NoError(t, printExplanation(&line, "json", got))
	var back explanation
	require.NoError(t, json.Unmarshal([]byte(line.String()), &back))
	assert.Equal(t, got, back)
}

func TestExplanationOfARunningRequest(t *testing.T) {
	t.Parallel()
	got := explained("r1", domain.Explanation{Decision: domain.Decision{Model: "m", Identity: "acme", Route: []domain.Standing{{Channel: "a", Model: "m", Score: 1}}}})
	assert.Equal(t, "running", got.State)
	assert.Equal(t, "m", got.AskedModel)
	var table strings.Builder
	require.NoError(t, printExplanation(&table, "table", got))
	assert.Contains(t, table.String(), "It is running")
}

func TestExplainRefuses(t *testing.T) {
	t.Parallel()
	_, errs, status := keyway(t, "explain")
	require.Equal(t, 1, status)
	assert.Contains(t, errs, "accepts 1 arg")
	_, errs, status = keyway(t, "explain", "r1", "-o", "csv")
	require.Equal(t, 1, status)
	assert.Contains(t, errs, "csv")
}
