//! The report as the object of `status --json`, which the terminal and the status page show too. `docs/status.md` lists its
//! fields, and a test compares.
//!
//! Fields may be added, but are never renamed or removed, and never change their meaning.

use super::verdict::Verdict;
use crate::config::Config;
use postgres::cycle::reap::PATROLS_PER_RETENTION;
use postgres::diagnose::status::{
    self, BACKLOG_COUNTED_MAX, BLOCKED_KEYS_COUNTED_MAX, Counters, DEAD_LETTERS_COUNTED_MAX, OutboxStatus,
    RejectedEvents, RelayConnection, VacuumHolder,
};
use postgres::operate::pauses::{PausedScope, Scope};
use relay::reason::{blocked_key_remedy, remedy};
use serde::Serialize;
use settings::text::{self, time};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The reaper counts as behind if the oldest sent row exceeds the retention by a patrol or this many intervals.
const REAPER_INTERVALS: u32 = 3;

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

impl Report {
    pub(super) fn new(
        config: &Config,
        status: &OutboxStatus,
        relays: Relays,
        rates: Option<Rates>,
        verdict: Verdict,
    ) -> Report {
        let dead: i64 = status.dead_letters.iter().map(|dead| dead.rows).sum();
        let reason = |RejectedEvents { reason, rows, recent }: &RejectedEvents| Reason {
            reason: reason.clone(),
            rows: *rows,
            recent: *recent,
        };
        Report {
            verdict,
            table: config.outbox.table.to_string(),
            relay_version: env!("CARGO_PKG_VERSION"),
            postgres_version: status.versions.server.clone(),
            schema_migration: status.versions.migration.clone(),
            backlog: Backlog::new(status),
            rates,
            latency: status.sent.as_ref().map(Latency::from),
            held_topics_total: status.held_topics,
            held_topics: status.held.iter().map(Held::from).collect(),
            blocked_keys: BlockedKeys {
                keys: status.blocked_keys,
                at_least: status.blocked_keys >= BLOCKED_KEYS_COUNTED_MAX,
                oldest: status.blocked.iter().map(Blocked::from).collect(),
            },
            paused: status.paused.iter().map(Paused::from).collect(),
            dead_letters: DeadLetters {
                rows: dead,
                at_least: dead >= DEAD_LETTERS_COUNTED_MAX,
                recent: status.dead_letters.iter().map(|dead| dead.recent).sum(),
                by_reason: status.dead_letters.iter().map(reason).collect(),
            },
            vacuum_held_back_by: status
                .vacuum
                .as_ref()
                .filter(|held| !is_claim(config, &relays, held))
                .map(HeldBack::from),
            relays,
            reaper: Reaper::new(config, status),
            size: Size::from(&status.size),
        }
    }
}

impl Backlog {
    fn new(status: &OutboxStatus) -> Backlog {
        let first = &status.first;
        Backlog {
            rows: status.backlog_rows,
            estimated: status.backlog_rows > BACKLOG_COUNTED_MAX,
            oldest_age_seconds: seconds(status.oldest),
            first: First {
                rows: first.rows,
                paused: first.paused,
                of_held_topics: first.held,
                of_blocked_keys: first.blocked,
                free: first.rows - first.paused - first.held - first.blocked,
                oldest_free_age_seconds: seconds(first.age),
            },
        }
    }
}

impl Rates {
    /// The rates between two readings, or `None` if the statistics were reset in between.
    pub(super) fn between(earlier: &Counters, later: &Counters, deletes: bool) -> Option<Rates> {
        let over = later.at - earlier.at;
        let rate = |earlier: i64, later: i64| (later >= earlier).then(|| (later - earlier) as f64 / over);
        let updated = rate(earlier.updated, later.updated)?;
        let deleted = rate(earlier.deleted, later.deleted)?;
        (over > 0.0).then_some(Rates {
            over_seconds: over,
            inserted_per_second: rate(earlier.inserted, later.inserted)?,
            sent_per_second: if deletes { deleted } else { updated },
            deleted_per_second: deleted,
        })
    }
}

impl From<&status::Sent> for Latency {
    fn from(sent: &status::Sent) -> Latency {
        let of = |part: fn(&status::Latency) -> Duration| seconds(sent.latency.as_ref().map(part));
        Latency {
            rows: sent.rows,
            p50_seconds: of(|latency| latency.p50),
            p95_seconds: of(|latency| latency.p95),
            p99_seconds: of(|latency| latency.p99),
            max_seconds: of(|latency| latency.max),
            latest_sent_age_seconds: seconds(sent.latest_age),
        }
    }
}

impl From<&status::HeldTopic> for Held {
    fn from(held: &status::HeldTopic) -> Held {
        Held {
            topic: held.topic.clone(),
            reason: held.reason.clone(),
            error: held.error.clone(),
            remedy: remedy(&held.reason),
            since: time(held.since),
            next_probe: time(held.next_probe),
            probes: held.probes,
        }
    }
}

impl From<&status::KeyBlock> for Blocked {
    fn from(blocked: &status::KeyBlock) -> Blocked {
        Blocked {
            topic: blocked.topic.clone(),
            key: blocked.key.clone(),
            outbox_id: blocked.outbox_id,
            reason: blocked.reason.clone(),
            remedy: blocked_key_remedy(&blocked.reason),
            since: time(blocked.since),
        }
    }
}

impl From<&PausedScope> for Paused {
    fn from(pause: &PausedScope) -> Paused {
        let (scope, topic, aggregate_type, key) = match pause.scope.clone() {
            Scope::Everything => ("everything", None, None, None),
            Scope::Topic(topic) => ("topic", Some(topic), None, None),
            Scope::Key { aggregate_type, aggregate_id } => {
                ("key", None, Some(aggregate_type), Some(aggregate_id))
            }
        };
        Paused {
            id: pause.id,
            scope,
            topic,
            aggregate_type,
            key,
            reason: pause.reason.clone(),
            by: pause.role.clone(),
            since: time(pause.since),
            name: pause.scope.name(),
        }
    }
}

impl Relays {
    pub(super) fn new(
        application_name: &str,
        pooled: bool,
        connections: &[RelayConnection],
        here: Option<LocalRelay>,
    ) -> Relays {
        let addresses: BTreeSet<Option<&str>> =
            connections.iter().map(|connection| connection.address.as_deref()).collect();
        Relays {
            application_name: application_name.to_owned(),
            connections: connections.len(),
            addresses: addresses.len(),
            pooled,
            at_work: connections.iter().map(AtWork::from).collect(),
            here,
        }
    }
}

impl From<&RelayConnection> for AtWork {
    fn from(connection: &RelayConnection) -> AtWork {
        AtWork {
            pid: connection.pid,
            application_name: connection.application.clone(),
            address: connection.address.clone(),
            doing: connection.doing.word(),
            doing_for_seconds: seconds(connection.doing_for),
        }
    }
}

impl Reaper {
    fn new(config: &Config, status: &OutboxStatus) -> Reaper {
        let reaper = &config.reaper;
        Reaper {
            enabled: reaper.enabled,
            retention_seconds: reaper.retention.as_secs_f64(),
            oldest_sent_age_seconds: seconds(status.reaping.oldest_sent),
            behind: Reaper::not_reaped(config, status).is_some(),
        }
    }

    /// The age of the oldest sent row, if the reaper should have deleted it.
    pub(super) fn not_reaped(config: &Config, status: &OutboxStatus) -> Option<Duration> {
        let reaper = &config.reaper;
        let late = reaper.retention / PATROLS_PER_RETENTION;
        let patience =
            reaper.retention.saturating_add(late.max(reaper.interval.saturating_mul(REAPER_INTERVALS)));
        status.reaping.oldest_sent.filter(|age| *age > patience)
    }
}

/// Whether this is an ordinary claim of a relay.
fn is_claim(config: &Config, relays: &Relays, held: &VacuumHolder) -> bool {
    let longest = config.relay.flow_window + config.relay.publish_timeout;
    held.application.as_ref() == Some(&relays.application_name) && held.age.is_none_or(|age| age < longest)
}

impl From<&VacuumHolder> for HeldBack {
    fn from(held: &VacuumHolder) -> HeldBack {
        HeldBack {
            what: held.what.clone(),
            name: held.name.clone(),
            pid: held.pid,
            application_name: held.application.clone(),
            transactions: held.transactions,
            age_seconds: seconds(held.age),
        }
    }
}

impl From<&status::Size> for Size {
    fn from(size: &status::Size) -> Size {
        Size {
            table_bytes: size.table_bytes,
            index_bytes: size.index_bytes,
            rows_estimated: size.rows,
            dead_rows_estimated: size.dead_rows,
            vacuumed_at: size.vacuumed_at.map(time),
        }
    }
}

fn seconds(duration: Option<Duration>) -> Option<f64> {
    duration.map(|duration| duration.as_secs_f64())
}

/// The connections with the same name from the same address.
pub(crate) struct Place<'a> {
    pub(crate) name: &'a str,
    pub(crate) address: &'a str,
    connections: Vec<&'a AtWork>,
}

impl Relays {
    /// By name and address.
    pub(crate) fn places(&self) -> Vec<Place<'_>> {
        let mut places: BTreeMap<(&str, &str), Vec<&AtWork>> = BTreeMap::new();
        for connection in &self.at_work {
            let address = connection.address.as_deref().unwrap_or("socket");
            places.entry((&connection.application_name, address)).or_default().push(connection);
        }
        let place = |((name, address), connections)| Place { name, address, connections };
        places.into_iter().map(place).collect()
    }
}

impl Place<'_> {
    /// Counts the connections by activity with the longest duration: `2 publishing (for 45ms), 5 idle`.
    pub(crate) fn activities(&self) -> String {
        let mut doing: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
        for connection in &self.connections {
            let (count, longest) = doing.entry(connection.doing).or_default();
            *count += 1;
            *longest = longest.max(connection.doing_for_seconds.unwrap_or_default());
        }
        let part = |(doing, (count, longest)): (&str, (usize, f64))| match doing {
            "idle" => format!("{count} idle"),
            "hidden" => format!("{count} unknown (requires pg_read_all_stats)"),
            _ => format!("{count} {} (for {})", doing.replace('-', " "), text::seconds(longest)),
        };
        let mut parts: Vec<String> = doing.into_iter().map(part).collect();
        parts.sort_by_key(|part| part.ends_with("idle"));
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_computed_from_two_readings() {
        let earlier = Counters { inserted: 100, updated: 50, deleted: 10, at: 1_000.0 };
        let later = Counters { inserted: 300, updated: 150, deleted: 60, at: 1_002.0 };
        let mark = Rates::between(&earlier, &later, false).unwrap();
        assert_eq!(
            (mark.inserted_per_second, mark.sent_per_second, mark.deleted_per_second),
            (100.0, 50.0, 25.0)
        );
        assert_eq!(Rates::between(&earlier, &later, true).unwrap().sent_per_second, 25.0);
        assert!(Rates::between(&later, &earlier, false).is_none(), "the statistics were reset");
        assert!(Rates::between(&later, &later, false).is_none(), "no time has passed");
    }
}
