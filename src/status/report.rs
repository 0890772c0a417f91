//! The report as the object of `status --json`. `docs/status.md` lists its fields, and a test compares.
//!
//! Fields may be added, but are never renamed or removed, and never change their meaning.

mod filled;
mod places;

use super::verdict::Verdict;
use serde::Serialize;

/// The object of `--json`. Times are in RFC 3339, durations in seconds, sizes in bytes.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) verdict: Verdict,
    pub(crate) table: String,
    pub(crate) relay_version: &'static str,
    pub(crate) postgres_version: String,
    pub(crate) schema_migration: Option<String>,
    pub(crate) backlog: Backlog,
    pub(crate) rates: Option<Rates>,
    pub(crate) latency: Option<Latency>,
    pub(crate) held_topics: Vec<Held>,
    pub(crate) held_topics_total: i64,
    pub(crate) blocked_keys: BlockedKeys,
    pub(crate) paused: Vec<Paused>,
    pub(crate) dead_letters: DeadLetters,
    pub(crate) relays: Relays,
    pub(crate) reaper: Reaper,
    pub(crate) vacuum_held_back_by: Option<HeldBack>,
    pub(crate) size: Size,
}

#[derive(Debug, Serialize)]
pub(crate) struct Backlog {
    pub(crate) rows: i64,
    /// Above a limit, `rows` is estimated from the ids.
    pub(crate) estimated: bool,
    pub(crate) oldest_age_seconds: Option<f64>,
    /// The first rows of their lanes, and what they wait for.
    pub(crate) first: First,
}

#[derive(Debug, Serialize)]
pub(crate) struct First {
    pub(crate) rows: i64,
    pub(crate) paused: i64,
    pub(crate) of_held_topics: i64,
    pub(crate) of_blocked_keys: i64,
    pub(crate) free: i64,
    pub(crate) oldest_free_age_seconds: Option<f64>,
}

/// From cumulative statistics, which lag by up to a second.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Rates {
    pub(crate) over_seconds: f64,
    pub(crate) inserted_per_second: f64,
    pub(crate) sent_per_second: f64,
    pub(crate) deleted_per_second: f64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Latency {
    pub(crate) rows: i64,
    pub(crate) p50_seconds: Option<f64>,
    pub(crate) p95_seconds: Option<f64>,
    pub(crate) p99_seconds: Option<f64>,
    pub(crate) max_seconds: Option<f64>,
    pub(crate) latest_sent_age_seconds: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Held {
    pub(crate) topic: String,
    pub(crate) reason: String,
    pub(crate) error: String,
    pub(crate) remedy: &'static str,
    pub(crate) since: String,
    pub(crate) next_probe: String,
    pub(crate) probes: i32,
}

#[derive(Debug, Serialize)]
pub(crate) struct BlockedKeys {
    pub(crate) keys: i64,
    /// Whether there are more, because counting stops at a limit.
    pub(crate) at_least: bool,
    /// At most 5.
    pub(crate) oldest: Vec<Blocked>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Blocked {
    pub(crate) topic: String,
    pub(crate) key: String,
    pub(crate) outbox_id: i64,
    pub(crate) reason: String,
    pub(crate) remedy: &'static str,
    pub(crate) since: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct Paused {
    pub(crate) id: i64,
    /// everything, topic or key.
    pub(crate) scope: &'static str,
    pub(crate) topic: Option<String>,
    pub(crate) aggregate_type: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) by: String,
    pub(crate) since: String,
    /// For the screen.
    #[serde(skip)]
    pub(crate) name: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct DeadLetters {
    pub(crate) rows: i64,
    /// Whether there are more, because only the latest were counted.
    pub(crate) at_least: bool,
    /// Those of the last 10 minutes.
    pub(crate) recent: i64,
    pub(crate) by_reason: Vec<Reason>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Reason {
    pub(crate) reason: String,
    pub(crate) rows: i64,
    pub(crate) recent: i64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Relays {
    pub(crate) application_name: String,
    pub(crate) connections: usize,
    pub(crate) addresses: usize,
    /// Whether there is a pooler. If so, these are its connections and its address.
    pub(crate) pooled: bool,
    pub(crate) at_work: Vec<AtWork>,
    /// The relay on this host, if it answers.
    pub(crate) here: Option<LocalRelay>,
}

/// The relay that answers at `[admin] listen`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LocalRelay {
    pub(crate) address: String,
    pub(crate) ready: bool,
    /// The one line of `/readyz`.
    pub(crate) says: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct AtWork {
    pub(crate) pid: i32,
    pub(crate) application_name: String,
    pub(crate) address: Option<String>,
    pub(crate) doing: &'static str,
    pub(crate) doing_for_seconds: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Reaper {
    pub(crate) enabled: bool,
    pub(crate) retention_seconds: f64,
    pub(crate) oldest_sent_age_seconds: Option<f64>,
    pub(crate) behind: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct HeldBack {
    pub(crate) what: String,
    pub(crate) name: String,
    pub(crate) pid: Option<i32>,
    pub(crate) application_name: Option<String>,
    pub(crate) transactions: i32,
    pub(crate) age_seconds: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Size {
    pub(crate) table_bytes: i64,
    pub(crate) index_bytes: i64,
    pub(crate) rows_estimated: i64,
    pub(crate) dead_rows_estimated: i64,
    pub(crate) vacuumed_at: Option<String>,
}
