//! `outbox-relay replay`: publishes sent events again.

mod copy;
mod in_place;
mod repeat;

use super::arguments::moment::{Moment, moment};
use super::arguments::selection::{ChangeOptions, event_id, reason};
use super::exit::Failed;
use super::terminal::output;
use super::terminal::progress::Progress;
use super::{ConfigFile, block_on, one_shot};
use crate::config::Config;
use clap::Args;
use copy::check_name;
use humantime::format_rfc3339_micros;
use postgres::access::grants::REPLAY_PRIVILEGES;
use postgres::connection::pool::Database;
use postgres::operate::sent::{PostgresHistory, PostgresReplay, SentSelection};
use relay::topic::TopicRules;
use repeat::until_stopped;
use serde::Serialize;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};
use tokio::time::sleep;
use uuid::Uuid;

/// The maximum number of events per second.
const RATE_MAX: u32 = 1_000_000;
/// Events per transaction. After each one, the relays read their lanes from the first row again.
const BATCH_ROWS: u64 = 5_000;
/// Events that are published to another topic before the next ones are read.
const COPY_ROWS: u64 = 1_000;
/// The default of `--reason`.
const REASON: &str = "replay";

/// Publish sent events again.
#[derive(Debug, Args)]
#[command(after_help = "\
Sets the selected events back to unsent. The relays publish them again to the same topic, with the same event_id, key, \
payload and headers, and in order per key. Later events of the same key that are sent at the same time may arrive in \
between. To prevent that, pause the topic first, and resume it afterwards. Events can be replayed until they are reaped.

With --to-topic, the command itself publishes the events to another topic, and changes no rows. It checks the topic before \
it publishes anything, even with --dry-run.

Consumers that deduplicate by event_id, for example with the inbox of pg-outbox, ignore replayed events that they have \
processed before. Each event is recorded in the history (`dead-letters history`).

After SIGINT or SIGTERM, the command finishes its batch and prints the command for the remaining events, with absolute \
times. It also prints that command at the start.

Examples:
  outbox-relay replay --config config.toml --topic events.order --since 2h --dry-run
  outbox-relay replay --config config.toml --key 42 --reason \"consumer lost its state\"
  outbox-relay replay --config config.toml --since 1d --to-topic backfill --rate 500

Exit codes: 0 success, even if nothing matched, 1 failure, 2 usage error, 69 PostgreSQL or Kafka unreachable, 78 \
invalid configuration or schema, or missing privileges.")]
pub(crate) struct Replay {
    #[command(flatten)]
    config: ConfigFile,
    #[command(flatten)]
    filters: Filters,
    #[command(flatten)]
    options: ChangeOptions,
    /// Skip events that were sent at or after this time, such as those that an interrupted replay has already sent again
    /// [default: now].
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = moment)]
    sent_before: Option<Moment>,
    /// Replay at most this many events per second.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(RATE_MAX)))]
    rate: Option<u32>,
    /// Publish to this topic, without changing the rows.
    #[arg(long, value_name = "TOPIC")]
    to_topic: Option<String>,
    /// Reason, shown in the history.
    #[arg(long, value_name = "TEXT", default_value = REASON, value_parser = reason)]
    reason: String,
}

/// Filters, which all have to match.
#[derive(Debug, Args)]
#[command(next_help_heading = "Filters")]
struct Filters {
    /// Only events sent at or after this time: a duration before now, such as 2h, or a time, such as 2026-01-31T12:00:00Z.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = moment)]
    since: Option<Moment>,
    /// Only events sent before this time [default: no limit].
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = moment)]
    until: Option<Moment>,
    /// Apply --since and --until to the time when the event was created.
    #[arg(long)]
    created: bool,
    /// Only events of this topic.
    #[arg(long)]
    topic: Option<String>,
    /// Only events with this key (`aggregate_id`).
    #[arg(long)]
    key: Option<String>,
    /// Only these event IDs, separated by commas.
    #[arg(long, value_name = "UUID", value_delimiter = ',', value_parser = event_id)]
    event_id: Vec<Uuid>,
}

/// The object of `--json`.
#[derive(Debug, Serialize)]
struct Done {
    act: &'static str,
    dry_run: bool,
    events: u64,
    /// By the events' own topics.
    topics: BTreeMap<String, u64>,
    sent_before: String,
}

/// What a run needs.
struct Plan<'a> {
    config: &'a Config,
    database: Database,
    topics: TopicRules,
    replay: PostgresReplay,
    selection: SentSelection,
    lowest: i64,
    highest: i64,
    most: u64,
    reason: &'a str,
    pace: Pace,
    /// Set by a signal: no further batch begins.
    is_stopped: Cell<bool>,
}

/// The counts of a run, by topic.
#[derive(Debug, Default)]
struct Counts {
    events: u64,
    topics: BTreeMap<String, u64>,
}

impl Counts {
    fn add(&mut self, topic: String, events: u64) {
        self.events += events;
        *self.topics.entry(topic).or_default() += events;
    }

    fn add_all(&mut self, topics: Vec<(String, u64)>) {
        topics.into_iter().for_each(|(topic, events)| self.add(topic, events));
    }
}

/// Limits the rate.
#[derive(Clone, Copy, Debug)]
struct Pace(Option<u32>);

impl Pace {
    /// The size of a batch: at most this, and what one second allows.
    fn batch_rows(self, most: u64) -> u64 {
        self.0.map_or(most, |rate| u64::from(rate).min(most))
    }

    async fn after(self, events: u64) {
        if let Some(rate) = self.0 {
            sleep(Duration::from_secs_f64(events as f64 / f64::from(rate))).await;
        }
    }
}

impl Replay {
    pub(crate) fn run(self) -> Result<(), Failed> {
        self.options.check(self.filters.is_set())?;
        self.to_topic.as_deref().map_or(Ok(()), check_name)?;
        let config = match &self.to_topic {
            Some(_) => self.config.load()?,
            None => self.config.load_for_database()?,
        };
        one_shot::keeps_history(&config)?;
        self.options.confirm(&format!("Replay all sent events of {}?", config.outbox.table))?;
        let (counts, sent_before) = block_on(self.replay(&config))??;
        let done = Done {
            act: if self.to_topic.is_some() { "copy" } else { "replay" },
            dry_run: self.options.dry_run,
            events: counts.events,
            topics: counts.topics,
            sent_before: format_rfc3339_micros(sent_before).to_string(),
        };
        let text = if self.options.json { output::json(&done)? } else { self.describe(&config, &done) };
        output::line(&text)?;
        if done.events > 0 && !done.dry_run {
            eprintln!(
                "Consumers that deduplicate by event_id ignore the events that they have processed before."
            );
        }
        Ok(())
    }

    async fn replay(&self, config: &Config) -> Result<(Counts, SystemTime), Failed> {
        let database = one_shot::database(config)?;
        let facts = one_shot::allowed(config, &database, REPLAY_PRIVILEGES).await?;
        one_shot::right_clusters(config, &database, None).await?;
        let history = PostgresHistory::new(
            database.clone(),
            &config.outbox.table,
            facts.topics(&config.outbox),
            facts.payload,
        );
        let bounds = history.bounds().await.map_err(one_shot::fault)?;
        let sent_before = self.sent_before.map_or(Ok(bounds.now), |before| before.at(bounds.now))?;
        let selection = self.filters.selection(bounds.now, sent_before)?;
        let (table, topics) = (config.outbox.table.clone(), facts.topics(&config.outbox));
        let plan = Plan {
            config,
            database: database.clone(),
            replay: PostgresReplay::new(database, table, topics.clone()),
            topics,
            selection,
            lowest: bounds.lowest,
            highest: bounds.highest,
            most: self.options.most(),
            reason: &self.reason,
            pace: Pace(self.rate),
            is_stopped: Cell::new(false),
        };
        let counts = if self.options.dry_run {
            self.preview(&plan).await?
        } else {
            self.publish(&plan, &history).await?
        };
        Ok((counts, sent_before))
    }

    async fn preview(&self, plan: &Plan<'_>) -> Result<Counts, Failed> {
        let counts = plan.count(&Progress::new()).await?;
        if let Some(to) = &self.to_topic {
            plan.target(to, &counts).await?;
        }
        Ok(counts)
    }

    async fn publish(&self, plan: &Plan<'_>, history: &PostgresHistory) -> Result<Counts, Failed> {
        let mut counts = Counts::default();
        let rest = |done| self.rest(&plan.selection, done);
        let work = Box::pin(async {
            let progress = Progress::new();
            let Some(to) = &self.to_topic else {
                rest(0).announce();
                return plan.run(&mut counts, &progress).await;
            };
            let target = plan.target(to, &plan.count(&progress).await?).await?;
            rest(0).announce();
            plan.copy(target, history, &mut counts, &progress).await
        });
        let ended = match until_stopped(work, &plan.is_stopped).await {
            Ok(()) if plan.is_stopped.get() => Err(Failed::Failure(anyhow::anyhow!("Interrupted"))),
            ended => ended,
        };
        ended.map_err(|failed| rest(counts.events).explain(failed, counts.events))?;
        Ok(counts)
    }

    fn describe(&self, config: &Config, done: &Done) -> String {
        let mut text = String::new();
        for (topic, events) in &done.topics {
            text += &format!("{topic}: {}\n", output::counted(*events, "event"));
        }
        let events = output::counted(done.events, "event");
        let what = match (&self.to_topic, done.dry_run) {
            (None, false) => "reset to unsent, to be published again".to_owned(),
            (None, true) => "would be published again".to_owned(),
            (Some(topic), false) => format!("published to {topic}"),
            (Some(topic), true) => format!("would be published to {topic}"),
        };
        text + &format!("{}: {events} {what}", config.outbox.table)
    }
}

impl Filters {
    fn is_set(&self) -> bool {
        let Filters { since, until, created: _, topic, key, event_id } = self;
        since.is_some() || until.is_some() || topic.is_some() || key.is_some() || !event_id.is_empty()
    }

    fn selection(&self, now: SystemTime, sent_before: SystemTime) -> Result<SentSelection, Failed> {
        let at = |moment: Option<Moment>| moment.map(|moment| moment.at(now)).transpose();
        let (since, until) = (at(self.since)?, at(self.until)?);
        if since.is_some_and(|since| since >= until.unwrap_or(now)) {
            return Err(Failed::Usage("--since must be before --until and before now.".to_owned()));
        }
        Ok(SentSelection {
            by_created: self.created,
            since,
            until,
            topic: self.topic.clone(),
            key: self.key.clone(),
            event_ids: (!self.event_id.is_empty()).then(|| self.event_id.clone()),
            sent_before: Some(sent_before),
        })
    }
}
