//! Fills the report from the results of the database.

use super::{
    AtWork, Backlog, Blocked, BlockedKeys, DeadLetters, First, Held, HeldBack, Latency, LocalRelay, Paused,
    Rates, Reaper, Reason, Relays, Report, Size,
};
use crate::config::Config;
use crate::status::verdict::Verdict;
use postgres::cycle::reap::PATROLS_PER_RETENTION;
use postgres::diagnose::status::{
    self, BACKLOG_COUNTED_MAX, BLOCKED_KEYS_COUNTED_MAX, Counters, DEAD_LETTERS_COUNTED_MAX, OutboxStatus,
    RejectedEvents, RelayConnection, VacuumHolder,
};
use postgres::operate::pauses::{PausedScope, Scope};
use relay::reason::{blocked_key_remedy, remedy};
use settings::text::time;
use std::collections::BTreeSet;
use std::time::Duration;

/// The reaper counts as behind if the oldest sent row exceeds the retention by a patrol or this many intervals.
const REAPER_INTERVALS: u32 = 3;

impl Report {
    pub(in crate::status) fn new(
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
    pub(in crate::status) fn between(earlier: &Counters, later: &Counters, deletes: bool) -> Option<Rates> {
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
    pub(in crate::status) fn new(
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
    pub(in crate::status) fn not_reaped(config: &Config, status: &OutboxStatus) -> Option<Duration> {
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
