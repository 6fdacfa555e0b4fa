package store

import (
	"context"
	"sync/atomic"
	"testing"

	"keyway/domain"
)

// BenchmarkReserveAndSettle is the store's whole work for one request with
// five limits and a slot: two round trips. Compare runs with benchstat.
func BenchmarkReserveAndSettle(b *testing.B) {
	for name, tenants := range map[string]int{"one tenant": 1, "100 tenants": 100} {
		b.Run(name, func(b *testing.B) {
			s := shared(b)
			owners := make([]tenant, tenants)
			for i := range owners {
				owners[i] = newTenant()
			}
			channel := unique("channel")
			var n atomic.Int64
			b.ReportAllocs()
			b.SetParallelism(8)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					o := owners[int(n.Add(1))%tenants]
					d := o.decide(
						o.hold(domain.LimitRPM, 1e9, 1), o.hold(domain.LimitTPM, 1e10, 1000), o.hold(domain.LimitInFlight, 1e6, 1),
						o.hold(domain.LimitBudgetDay, 1e15, 100), o.own(o.hold(domain.LimitBudgetMonth, 1e15, 100)),
					)
					d.Candidates = []domain.Candidate{{Channel: channel, Slots: 1e6}}
					if a, err := s.Admit(context.Background(), d); err != nil || a.Refusal != nil {
						b.Errorf("admit: %v %v", a.Refusal, err)
						return
					}
					settlement := ends(d, 10, 1)
					settlement.Channel = channel
					if _, err := s.Settle(context.Background(), settlement); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
