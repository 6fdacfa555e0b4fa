package authz

import (
	"testing"

	"keyway/domain"
)

// BenchmarkCheck is the whole admission but for the store, with three
// candidates of two models.
func BenchmarkCheck(b *testing.B) {
	f := newFixture(b)
	f.routed(nil)
	f.reservations = &fakeReservations{refunded: make(chan domain.Decision, 1)}
	f.server.reservations = f.reservations
	r := f.request(hello)
	b.ReportAllocs()
	for b.Loop() {
		f.reservations.admitted = f.reservations.admitted[:0]
		if _, err := f.server.check(b.Context(), r); err != nil {
			b.Fatal(err)
		}
	}
}
