//! The state of an outbox and its relays: one [`Monitor`] creates reports, once or repeatedly. `outbox-relay status` prints a
//! report as a screen or as JSON, and the status page shows it as HTML.

pub(crate) mod verdict;

use crate::config::{Config, ConnectionError, OnSent};
use crate::supervisor::{self, StartError};
use postgres::access::grants::STATUS_PRIVILEGES;
use postgres::connection::pool::{Database, has_transaction_pooler, monitoring_settings};
use postgres::cycle::reap::patrol_time;
use postgres::diagnose::status::{
    Backlog, BlockedKeys, Counters, DeadLetters, Doing, HeldTopic, OutboxStatus, PostgresStatus,
    RelayConnection, Sent, Size, VacuumHolder, as_seconds,
};
use postgres::operate::pauses::PausedScope;
use relay::failure::PostgresFault;
use relay::health::stats::Stats;
use serde::Serialize;
use settings::text::{shell, span};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use verdict::{PROMPT, Verdict, verdict};

/// The reaper counts as behind if the oldest sent row exceeds the retention by a patrol or this many intervals.
const REAPER_INTERVALS: u32 = 3;

/// The object of `status --json`, which the terminal and the status page show too. `docs/status.md` lists its fields, and a
/// test compares. Fields may be added, but are never renamed or removed, and never change their meaning.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) verdict: Verdict,
    pub(crate) table: String,
    pub(crate) relay_version: &'static str,
    pub(crate) postgres_version: String,
    pub(crate) schema_migration: Option<String>,
    pub(crate) backlog: Backlog,
    pub(crate) rates: Option<Rates>,
    pub(crate) latency: Option<Sent>,
    pub(crate) held_topics: Vec<HeldTopic>,
    pub(crate) held_topics_total: i64,
    pub(crate) blocked_keys: BlockedKeys,
    pub(crate) paused: Vec<PausedScope>,
    pub(crate) paused_total: i64,
    pub(crate) dead_letters: DeadLetters,
    pub(crate) relays: Relays,
    pub(crate) reaper: Reaper,
    pub(crate) vacuum_held_back_by: Option<VacuumHolder>,
    pub(crate) size: Size,
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
pub(crate) struct Relays {
    pub(crate) application_name: String,
    pub(crate) connections: usize,
    pub(crate) addresses: usize,
    /// Whether there is a pooler. If so, these are its connections and its address.
    pub(crate) pooled: bool,
    pub(crate) at_work: Vec<RelayConnection>,
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
pub(crate) struct Reaper {
    pub(crate) enabled: bool,
    pub(crate) retention_seconds: f64,
    #[serde(rename = "oldest_sent_age_seconds", serialize_with = "as_seconds")]
    pub(crate) oldest_sent: Option<Duration>,
    pub(crate) behind: bool,
}

impl Rates {
    /// The rates between two readings, or `None` if the statistics were reset in between.
    fn between(earlier: &Counters, later: &Counters, deletes: bool) -> Option<Rates> {
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

impl Reaper {
    fn new(config: &Config, oldest_sent: Option<Duration>, pages: i64) -> Reaper {
        let reaper = &config.reaper;
        let late = patrol_time(pages, reaper.retention);
        let patience =
            reaper.retention.saturating_add(late.max(reaper.interval.saturating_mul(REAPER_INTERVALS)));
        Reaper {
            enabled: reaper.enabled,
            retention_seconds: reaper.retention.as_secs_f64(),
            oldest_sent,
            behind: oldest_sent.is_some_and(|age| age > patience),
        }
    }
}

/// The number of connections by activity, and the longest duration.
type Activities = BTreeMap<Doing, (usize, Duration)>;

/// The connections with the same name from the same address.
pub(crate) struct Place<'a> {
    pub(crate) name: &'a str,
    pub(crate) address: &'a str,
    /// What its connections do, such as `2 publishing (for 45ms), 5 idle`.
    pub(crate) activities: String,
}

impl Relays {
    /// By name and address, with the longest duration of each activity.
    pub(crate) fn places(&self) -> Vec<Place<'_>> {
        let mut places: BTreeMap<(&str, &str), Activities> = BTreeMap::new();
        for connection in &self.at_work {
            let address = connection.address.as_deref().unwrap_or("socket");
            let doing = places.entry((&connection.application, address)).or_default();
            let (count, longest) = doing.entry(connection.doing).or_default();
            *count += 1;
            *longest = connection.doing_for.unwrap_or_default().max(*longest);
        }
        let activity = |(doing, (count, longest)): (Doing, (usize, Duration))| {
            let lasting = |what: &str| format!("{count} {what} (for {})", span(longest));
            match doing {
                Doing::Hidden => format!("{count} unknown (requires pg_read_all_stats)"),
                Doing::Publishing => lasting("publishing"),
                Doing::WaitingForALock => lasting("waiting for a lock"),
                Doing::Working => lasting("working"),
                Doing::Idle => format!("{count} idle"),
            }
        };
        let place = |((name, address), doing): (_, Activities)| {
            let activities: Vec<_> = doing.into_iter().map(activity).collect();
            Place { name, address, activities: activities.join(", ") }
        };
        places.into_iter().map(place).collect()
    }
}

/// Reports about one outbox, with what the next report needs from the last one.
pub(crate) struct Monitor {
    pub(crate) config: Config,
    /// ` --config FILE`, for the commands in the report.
    config_argument: String,
    relay_name: String,
    database: Database,
    pub(crate) status: PostgresStatus,
    /// Whether there is a pooler. `None` until the schema was checked.
    checked: Option<bool>,
    counted: Option<Counters>,
    /// How the schema differs from that of this version, until it is taken.
    pub(crate) difference: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum MonitorError {
    #[error(transparent)]
    Settings(#[from] ConnectionError),
    /// Postgres cannot be reached, the schema is not valid, or a privilege is missing.
    #[error(transparent)]
    Check(#[from] StartError),
    #[error(transparent)]
    Read(#[from] PostgresFault),
}

impl Monitor {
    /// Does not connect yet. The configuration was read from the file at `path`. Connections are named after the relay's
    /// and `purpose`. `statement_timeout` replaces the timeout of every command.
    pub(crate) fn new(
        config: Config,
        path: Option<&Path>,
        purpose: &str,
        statement_timeout: Option<Duration>,
    ) -> Result<Monitor, MonitorError> {
        let (relay_name, settings) = monitoring_settings(&config.postgres, purpose)?;
        let database = Database::new(&settings, 2, Arc::new(Stats::new()))?;
        let status = PostgresStatus::new(
            database.clone(),
            &config.outbox.table,
            (&config.outbox).into(),
            config.outbox.on_sent,
            statement_timeout,
        );
        let config_argument =
            path.map(|path| format!(" --config {}", shell(&path.to_string_lossy()))).unwrap_or_default();
        Ok(Monitor {
            config,
            config_argument,
            relay_name,
            database,
            status,
            checked: None,
            counted: None,
            difference: None,
        })
    }

    /// The current report. The rates are measured since the last report or, if there is none, over `sample`. `here` is the
    /// relay on this host, if it answers.
    pub(crate) async fn report(
        &mut self,
        sample: Option<Duration>,
        here: impl Future<Output = Option<LocalRelay>>,
    ) -> Result<Report, MonitorError> {
        let report = self.try_report(sample, here).await;
        if report.is_err() {
            // Another server may answer the next time.
            (self.checked, self.counted) = (None, None);
        }
        report
    }

    async fn try_report(
        &mut self,
        sample: Option<Duration>,
        here: impl Future<Output = Option<LocalRelay>>,
    ) -> Result<Report, MonitorError> {
        let pooled = match self.checked {
            Some(pooled) => pooled,
            None => self.check().await?,
        };
        if self.counted.is_none() && sample.is_some() {
            self.counted = Some(self.status.counters().await?);
        }
        let begun = Instant::now();
        let status = self.status.read(&self.relay_name).await?;
        if let Some(sample) = sample {
            tokio::time::sleep(sample.saturating_sub(begun.elapsed())).await;
        }
        let deletes = self.config.outbox.on_sent == OnSent::Delete;
        let is_late = status.backlog.first.age.is_some_and(|age| age > PROMPT);
        let (counted, rates) = loop {
            let counted = self.status.counters().await?;
            let rates = self.counted.and_then(|earlier| Rates::between(&earlier, &counted, deletes));
            // A server process reports what it has changed at the end of a transaction, and at most once a second.
            let waits = sample.is_some() && is_late && begun.elapsed() < PROMPT;
            if !waits || rates.as_ref().is_none_or(|rates| rates.sent_per_second > 0.0) {
                break (counted, rates);
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        };
        self.counted = Some(counted);
        Ok(self.assemble(status, pooled, rates, here.await))
    }

    fn assemble(
        &self,
        status: OutboxStatus,
        pooled: bool,
        rates: Option<Rates>,
        here: Option<LocalRelay>,
    ) -> Report {
        let (config, at_work) = (&self.config, status.relays);
        let addresses: BTreeSet<_> = at_work.iter().map(|connection| &connection.address).collect();
        let claim_within = config.relay.flow_window + config.relay.publish_timeout;
        let is_ordinary_claim = |held: &VacuumHolder| held.is_ordinary_claim(&self.relay_name, claim_within);
        let mut report = Report {
            verdict: Verdict::default(),
            table: config.outbox.table.to_string(),
            relay_version: env!("CARGO_PKG_VERSION"),
            postgres_version: status.server_version,
            schema_migration: status.migration,
            backlog: status.backlog,
            rates,
            latency: status.sent,
            held_topics: status.held_topics,
            held_topics_total: status.held_topics_total,
            blocked_keys: status.blocked_keys,
            paused: status.paused,
            paused_total: status.paused_total,
            dead_letters: status.dead_letters,
            relays: Relays {
                application_name: self.relay_name.clone(),
                connections: at_work.len(),
                addresses: addresses.len(),
                pooled,
                at_work,
                here,
            },
            reaper: Reaper::new(config, status.oldest_sent, status.size.pages),
            vacuum_held_back_by: status.vacuum.filter(|held| !is_ordinary_claim(held)),
            size: status.size,
        };
        report.verdict = verdict(&report, &self.config_argument);
        report
    }

    /// Checks the schema, and returns whether there is a pooler. Called once per server.
    async fn check(&mut self) -> Result<bool, MonitorError> {
        let facts = supervisor::check_schema(&self.config, &self.database, Some(STATUS_PRIVILEGES)).await?;
        self.difference.clone_from(&facts.difference);
        self.status.topics = facts.topics(&self.config.outbox);
        // This needs a second connection, which may not be available. That must not prevent the report.
        let pooled = has_transaction_pooler(&self.database).await.unwrap_or(false);
        self.checked = Some(pooled);
        Ok(pooled)
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
