//! The report of `status` as the object of `--json`. `docs/status.md` lists its fields, and a test compares.
//!
//! Fields may be added, but are never renamed or removed, and never change their meaning.

mod filled;

use super::local_relay::LocalRelay;
use super::verdict::Verdict;
use serde::Serialize;

/// The object of `--json`. Times are in RFC 3339, durations in seconds, sizes in bytes.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) verdict: Verdict,
    pub(super) table: String,
    pub(super) relay_version: &'static str,
    pub(super) postgres_version: String,
    pub(super) schema_migration: Option<String>,
    pub(super) backlog: Backlog,
    pub(super) rates: Option<Rates>,
    pub(super) latency: Option<Latency>,
    pub(super) held_topics: Vec<Held>,
    pub(super) blocked_keys: BlockedKeys,
    pub(super) paused: Vec<Paused>,
    pub(super) dead_letters: DeadLetters,
    pub(super) relays: Relays,
    pub(super) reaper: Reaper,
    pub(super) vacuum_held_back_by: Option<HeldBack>,
    pub(super) size: Size,
}

#[derive(Debug, Serialize)]
pub(super) struct Backlog {
    pub(super) rows: i64,
    /// Above a limit, `rows` is estimated from the ids.
    pub(super) estimated: bool,
    pub(super) oldest_age_seconds: Option<f64>,
    /// The first rows of their lanes, and what they wait for.
    pub(super) first: First,
}

#[derive(Debug, Serialize)]
pub(super) struct First {
    pub(super) rows: i64,
    pub(super) paused: i64,
    pub(super) of_held_topics: i64,
    pub(super) of_blocked_keys: i64,
    pub(super) free: i64,
    pub(super) oldest_free_age_seconds: Option<f64>,
}

/// From cumulative statistics, which lag by up to a second.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Rates {
    pub(super) over_seconds: f64,
    pub(super) inserted_per_second: f64,
    pub(super) sent_per_second: f64,
    pub(super) deleted_per_second: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct Latency {
    pub(super) rows: i64,
    pub(super) p50_seconds: Option<f64>,
    pub(super) p95_seconds: Option<f64>,
    pub(super) p99_seconds: Option<f64>,
    pub(super) max_seconds: Option<f64>,
    pub(super) latest_sent_age_seconds: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(super) struct Held {
    pub(super) topic: String,
    pub(super) reason: String,
    pub(super) error: String,
    pub(super) remedy: &'static str,
    pub(super) since: String,
    pub(super) next_probe: String,
    pub(super) probes: i32,
}

#[derive(Debug, Serialize)]
pub(super) struct BlockedKeys {
    pub(super) keys: i64,
    /// Whether there are more, because counting stops at a limit.
    pub(super) at_least: bool,
    /// At most 5.
    pub(super) oldest: Vec<Blocked>,
}

#[derive(Debug, Serialize)]
pub(super) struct Blocked {
    pub(super) topic: String,
    pub(super) key: String,
    pub(super) outbox_id: i64,
    pub(super) reason: String,
    pub(super) remedy: &'static str,
    pub(super) since: String,
}

#[derive(Debug, Serialize)]
pub(super) struct Paused {
    pub(super) id: i64,
    /// everything, topic or key.
    pub(super) scope: &'static str,
    pub(super) topic: Option<String>,
    pub(super) aggregate_type: Option<String>,
    pub(super) key: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) by: String,
    pub(super) since: String,
    /// For the screen.
    #[serde(skip)]
    pub(super) name: String,
}

#[derive(Debug, Serialize)]
pub(super) struct DeadLetters {
    pub(super) rows: i64,
    /// Whether there are more, because only the latest were counted.
    pub(super) at_least: bool,
    pub(super) by_reason: Vec<Reason>,
}

#[derive(Debug, Serialize)]
pub(super) struct Reason {
    pub(super) reason: String,
    pub(super) rows: i64,
}

#[derive(Debug, Serialize)]
pub(super) struct Relays {
    pub(super) application_name: String,
    pub(super) connections: usize,
    pub(super) addresses: usize,
    /// Whether there is a pooler. If so, these are its connections and its address.
    pub(super) pooled: bool,
    pub(super) at_work: Vec<AtWork>,
    /// The relay on this host, if it answers.
    pub(super) here: Option<LocalRelay>,
}

#[derive(Debug, Serialize)]
pub(super) struct AtWork {
    pub(super) pid: i32,
    pub(super) application_name: String,
    pub(super) address: Option<String>,
    pub(super) doing: &'static str,
    pub(super) doing_for_seconds: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(super) struct Reaper {
    pub(super) enabled: bool,
    pub(super) retention_seconds: f64,
    pub(super) oldest_sent_age_seconds: Option<f64>,
    pub(super) behind: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct HeldBack {
    pub(super) what: String,
    pub(super) name: String,
    pub(super) pid: Option<i32>,
    pub(super) application_name: Option<String>,
    pub(super) transactions: i32,
    pub(super) age_seconds: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(super) struct Size {
    pub(super) table_bytes: i64,
    pub(super) index_bytes: i64,
    pub(super) rows_estimated: i64,
    pub(super) dead_rows_estimated: i64,
    pub(super) vacuumed_at: Option<String>,
}
