// Package xds is the control plane of one region: it reads the desired state
// from a file and tells it to the Envoys (LDS, RDS, CDS) and to the Go
// services (RegionConfig), all over one delta ADS. What it serves changes only
// by whole, valid configurations, in an order in which no service names a
// cluster that an Envoy does not have:
//
//	file ──► config.Parse ──► envoy.Build ──► clusters ──► every Envoy ACKs ──► routes, listeners ──► RegionConfig
//	              │ bad                                    (or the wait ends)                             │
//	              └► refused, last good stays                     clusters that went ◄── grace ◄── services ACK
//
// It must not know how a request is admitted or carried out, nor where secrets
// come from: it passes references on, but for those of native channels, which it is
// given resolved. Those it serves only where none but Envoys and services can ask.
// It stops hard, since its streams never end by themselves; everything it told keeps
// working without it.
package xds
