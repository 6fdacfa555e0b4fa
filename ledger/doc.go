// Package ledger is the durable store of UsageRecords, in SQLite or Postgres:
// it appends, it reads, it sums. Append only is not a habit of this code but a
// property of the tables: their triggers refuse every change.
//
// It must not know where records come from or who reads them: no Redis, no
// outbox, no Envoy, no prices beyond the money a record already carries.
package ledger
