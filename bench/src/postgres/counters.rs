//! What the whole server has written and how many transactions it has ended, for costs per row.

use outbox_relay::postgres::connection::connect::Database;
use outbox_relay::postgres::connection::fault::fault;
use outbox_relay::relay::failure::PostgresFault;
use serde::Serialize;
use std::time::Instant;

/// Backends report their transactions with a delay of up to a second, which is why a measurement should be much longer.
const COUNTERS: &str = "
SELECT (pg_current_wal_lsn() - '0/0')::float8,
       (SELECT coalesce(sum(xact_commit + xact_rollback), 0)::float8 FROM pg_stat_database)";

/// The server's counters at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Counters {
    at: Instant,
    wal_bytes: f64,
    transactions: f64,
}

/// The server's activity between two moments, including that of other clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Activity {
    /// Bytes of WAL per row.
    pub wal_bytes_per_row: f64,
    /// Committed and rolled back transactions per second, in all databases.
    pub transactions_per_second: f64,
}

/// Reads the counters.
///
/// # Errors
///
/// If the server fails.
pub async fn read(database: &Database) -> Result<Counters, PostgresFault> {
    let reading = |error| fault("reading the server's counters", error);
    let client = database.get().await?;
    let row = client.query_typed_one(COUNTERS, &[]).await.map_err(reading)?;
    Ok(Counters { at: Instant::now(), wal_bytes: row.get(0), transactions: row.get(1) })
}

impl Counters {
    /// The activity since earlier counters, during which this number of rows was written.
    pub fn since(&self, earlier: &Counters, rows: u64) -> Activity {
        let seconds = self.at.saturating_duration_since(earlier.at).as_secs_f64();
        let per = |amount: f64, of: f64| if of > 0.0 { amount / of } else { 0.0 };
        Activity {
            wal_bytes_per_row: per(self.wal_bytes - earlier.wal_bytes, rows as f64),
            transactions_per_second: per(self.transactions - earlier.transactions, seconds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn activity_is_per_row_and_per_second() {
        let at = Instant::now();
        let earlier = Counters { at, wal_bytes: 1_000.0, transactions: 10.0 };
        let later = Counters { at: at + Duration::from_secs(2), wal_bytes: 3_000.0, transactions: 50.0 };
        let activity = later.since(&earlier, 4);
        assert_eq!(activity, Activity { wal_bytes_per_row: 500.0, transactions_per_second: 20.0 });
        assert_eq!(earlier.since(&earlier, 0), Activity::default());
    }
}
