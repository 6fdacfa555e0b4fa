package extproc

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	keywayv1 "keyway/api/keyway/v1"
	"keyway/domain"
)

func settlementOf(id string) domain.Settlement {
	return domain.Settlement{
		Decision: domain.Decision{RequestID: id, Identity: "acme", API: domain.APIChat, Holds: []domain.Hold{{Kind: domain.LimitTPM, Scope: domain.ScopeKey, ID: "k", Amount: 7}}},
		Channel:  "a",
		Record:   domain.UsageRecord{RequestID: id, Outcome: domain.OutcomeSuccess, Source: domain.SourceUpstream, EndedAt: time.UnixMilli(1_700_000_000_000).UTC()},
	}
}

func TestSettlementsAreJournalledWhole(t *testing.T) {
	t.Parallel()
	s := settlementOf("one")
	s.Stored = domain.StoredID{Identity: "acme", ID: "resp_1", Channel: "a", Model: "m"}
	raw, err := keywayv1.MarshalSettlement(s)
	require.NoError(t, err)
	got, err := keywayv1.UnmarshalSettlement(raw)
	require.NoError(t, err)
	require.Equal(t, s.Record, got.Record)
	require.Equal(t, s.Decision.Holds, got.Decision.Holds)
	require.Equal(t, s.Channel, got.Channel)
	require.Equal(t, s.Stored, got.Stored)
	_, err = keywayv1.UnmarshalSettlement([]byte("\xff"))
	require.Error(t, err)

	s.Record.RequestID = "another"
	raw, err = keywayv1.MarshalSettlement(s)
	require.NoError(t, err)
	_, err = keywayv1.UnmarshalSettlement(raw)
	require.ErrorContains(t, err, "of another request", "it would never land, nor let others land")
}
