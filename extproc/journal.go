package extproc

import (
	keywayv1 "keyway/api/keyway/v1"
	"keyway/domain"
	"keyway/journal"
)

// openJournal opens the journal of settlements that the store could not take;
// an entry is a keyway.v1.Settlement. Settling twice is harmless.
func openJournal(path string, maxBytes int64) (*journal.Journal[domain.Settlement], error) {
	return journal.Open(path, maxBytes, journal.Codec[domain.Settlement]{Encode: keywayv1.MarshalSettlement, Decode: keywayv1.UnmarshalSettlement})
}
