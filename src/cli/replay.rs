//! `outbox-relay replay`: publishes sent events again, to the same topic by setting the rows back to unsent, or to another topic
//! by publishing copies.

use super::arguments::{ChangeOptions, Moment, event_id, moment, reason};
use super::failed::Failed;
use super::frame::{ConfigFile, Outbox, keeps_history, on_outbox};
use super::output::{self, Object, Progress, counted, note};
use super::run::Signals;
use crate::config::Config;
use anyhow::Error;
use clap::Args;
use humantime::format_rfc3339_micros;
use kafka::operate::copy::Copier;
use pg_outbox::topic::check_topic;
use postgres::access::grants::REPLAY_PRIVILEGES;
use postgres::operate::rejected::Batch;
use postgres::operate::sent::{Bounds, HistoryRange, HistoryRow, PostgresHistory, SentSelection};
use relay::failure::{FailureKind, FaultKind, KafkaFailure};
use relay::reason::TOPIC_AUTHORIZATION;
use relay::topic;
use serde_json::json;
use settings::text::in_line;
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

#[derive(Debug, Args)]
#[command(after_help = include_str!("help/replay.txt").trim_ascii_end())]
pub(crate) struct Replay {
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
    /// Only events sent at or after this time: a duration before now, such as 2h, or a time in UTC, such as
    /// 2026-01-31T12:00:00Z.
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

impl Replay {
    pub(crate) fn run(self, file: &ConfigFile) -> Result<(), Failed> {
        self.options.check(self.filters.is_set())?;
        if let Some(to) = &self.to_topic {
            let unusable = |error| Failed::Usage(format!("--to-topic {}: {error}.", to.escape_debug()));
            check_topic(to).map_err(unusable)?;
        }
        let config = if self.to_topic.is_some() { file.load()? } else { file.load_for_database()? };
        keeps_history(&config)?;
        self.options.confirm(&format!("Replay all sent events of {}?", config.outbox.table))?;
        let replay = async |outbox: Outbox<'_>| self.replay(file, &outbox).await;
        let (counts, sent_before) = on_outbox(&config, REPLAY_PRIVILEGES, replay)?;
        output::text(match self.options.json {
            true => output::json(&self.json(&counts, sent_before))? + "\n",
            false => self.text(&config, &counts),
        })?;
        if counts.events > 0 && !self.options.dry_run {
            output::aside(
                "Consumers that deduplicate by event_id ignore the events that they have processed before.",
            );
        }
        Ok(())
    }

    async fn replay(&self, file: &ConfigFile, outbox: &Outbox<'_>) -> Result<(Counts, SystemTime), Failed> {
        outbox.check_clusters(None).await?;
        let history = outbox.history();
        let bounds = history.bounds().await?;
        let sent_before = self.sent_before.map_or(Ok(bounds.now), |before| before.at(bounds.now))?;
        let plan = Plan {
            replay: self,
            outbox,
            history,
            selection: self.filters.selection(bounds.now, sent_before)?,
            bounds,
            most: self.options.most().unsigned_abs(),
            is_stopped: Cell::new(false),
            is_uncertain: Cell::new(false),
            progress: Progress::new(),
        };
        let counts = if self.options.dry_run {
            let counts = plan.count().await?;
            if let Some(to) = &self.to_topic {
                plan.target(to, &counts).await?;
            }
            counts
        } else {
            self.publish(file, &plan).await?
        };
        Ok((counts, sent_before))
    }

    async fn publish(&self, file: &ConfigFile, plan: &Plan<'_>) -> Result<Counts, Failed> {
        let (what, how) = match self.to_topic {
            None => ("set back to unsent", "To continue"),
            Some(_) => ("published", "To publish all events again"),
        };
        let mut counts = Counts::default();
        let rest = |done| self.rest(file, &plan.selection, done);
        // Before the first event, because a lost connection or a SIGKILL leaves no time for it.
        let announce = || note(&format!("{how} if this is interrupted, run:\n  {}", rest(0)));
        let work = Box::pin(async {
            let Some(to) = &self.to_topic else {
                announce();
                return plan.reset(&mut counts).await;
            };
            let target = plan.target(to, &plan.count().await?).await?;
            announce();
            plan.copy(target, &mut counts).await
        });
        let ended = until_stopped(work, &plan.is_stopped).await;
        let is_uncertain = plan.is_uncertain.get();
        let failed = match ended {
            Ok(()) => return Ok(counts),
            Err(failed) if counts.events == 0 && !is_uncertain => return Err(failed),
            // The command line was valid when the copying began.
            Err(Failed::Usage(text)) => Failed::failure(text),
            Err(failed) => failed,
        };
        Err(failed.map(|error| {
            let (error, done) = (format!("{error:#}"), counted(counts.events, "event"));
            let (error, rest) = (error.trim_end_matches('.'), rest(counts.events));
            let uncertain = if is_uncertain { ", and perhaps those of the last batch," } else { "" };
            Error::msg(format!("{error}. {done}{uncertain} had been {what}. {how}, run: {rest}"))
        }))
    }

    fn text(&self, config: &Config, counts: &Counts) -> String {
        let mut text = String::new();
        for (topic, events) in &counts.topics {
            text += &format!("{}: {}\n", in_line(topic, 249), counted(*events, "event"));
        }
        let what = match (&self.to_topic, self.options.dry_run) {
            (None, false) => "reset to unsent, to be published again".to_owned(),
            (None, true) => "would be published again".to_owned(),
            (Some(topic), false) => format!("published to {topic}"),
            (Some(topic), true) => format!("would be published to {topic}"),
        };
        text + &format!("{}: {} {what}\n", config.outbox.table, counted(counts.events, "event"))
    }

    fn json(&self, counts: &Counts, sent_before: SystemTime) -> Object {
        Object(vec![
            ("act", if self.to_topic.is_some() { "copy" } else { "replay" }.into()),
            ("dry_run", self.options.dry_run.into()),
            ("events", counts.events.into()),
            ("topics", json!(counts.topics)),
            ("sent_before", format_rfc3339_micros(sent_before).to_string().into()),
        ])
    }

    /// The command that publishes the rest. Durations are relative to each run, so it has absolute times. Copies start again
    /// from the first event, because no row shows that it was copied.
    fn rest(&self, file: &ConfigFile, selection: &SentSelection, done: u64) -> String {
        let done = if self.to_topic.is_some() { 0 } else { done };
        let time = |at: Option<_>| at.map(|at| format_rfc3339_micros(at).to_string());
        let ids: Vec<String> = self.filters.event_id.iter().map(Uuid::to_string).collect();
        let values = [
            ("config", file.config.as_ref().map(|file| file.to_string_lossy().into_owned())),
            ("since", time(selection.since)),
            ("until", time(selection.until)),
            ("sent-before", time(selection.sent_before)),
            ("topic", self.filters.topic.clone()),
            ("key", self.filters.key.clone()),
            ("event-id", (!ids.is_empty()).then(|| ids.join(","))),
            ("limit", self.options.limit.map(|limit| u64::from(limit).saturating_sub(done).to_string())),
            ("rate", self.rate.map(|rate| rate.to_string())),
            ("to-topic", self.to_topic.clone()),
            ("reason", Some(self.reason.clone()).filter(|reason| reason != REASON)),
        ];
        let flags =
            [("created", self.filters.created), ("all", self.options.all), ("json", self.options.json)];
        let values = values.into_iter().filter_map(|(name, value)| Some(option(name, &value?)));
        let flags = flags.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| format!(" --{name}"));
        "outbox-relay replay".to_owned() + &values.chain(flags).collect::<String>()
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

/// Runs until the work is done. After the first signal, the work must end with the current batch; after the second one, it is
/// dropped.
async fn until_stopped(
    work: impl Future<Output = Result<(), Failed>>,
    is_stopped: &Cell<bool>,
) -> Result<(), Failed> {
    let mut signals = Signals::new()?;
    let twice = async {
        signals.next().await;
        is_stopped.set(true);
        output::aside("signal received, finishing the current batch");
        signals.next().await;
    };
    tokio::select! {
        biased;
        done = work => done,
        () = twice => Err(Failed::failure("A second signal ended the command during a batch")),
    }
}

struct Plan<'a> {
    replay: &'a Replay,
    outbox: &'a Outbox<'a>,
    history: PostgresHistory,
    selection: SentSelection,
    bounds: Bounds,
    most: u64,
    /// Set by a signal: no further batch begins.
    is_stopped: Cell<bool>,
    /// Whether a batch was being set back and may have been committed.
    is_uncertain: Cell<bool>,
    progress: Progress,
}

impl Plan<'_> {
    /// Counts what would be replayed.
    async fn count(&self) -> Result<Counts, Failed> {
        let mut counts = Counts::default();
        self.each_page(&mut counts, async |after, counts| {
            let batch = self.batch(after, BATCH_ROWS, counts);
            let counted = self.history.count(&self.selection, batch).await?;
            counts.add(counted.rows);
            Ok(counted.reached)
        })
        .await?;
        Ok(counts)
    }

    /// Sets the selected events back to unsent.
    async fn reset(&self, counts: &mut Counts) -> Result<(), Failed> {
        self.each_page(counts, async |after, counts| {
            let batch = self.batch(after, self.batch_rows(BATCH_ROWS), counts);
            let picked = self.history.pick(&self.selection, batch).await?;
            if !picked.rows.is_empty() {
                let before = counts.events;
                let reason = &self.replay.reason;
                self.is_uncertain.set(true);
                let replayed = self.history.replay(&self.selection, &picked.rows, reason).await;
                let is_lost = matches!(&replayed, Err(fault) if fault.kind == FaultKind::Unavailable);
                self.is_uncertain.set(is_lost);
                counts.add(replayed?);
                self.pause_after(counts.events - before).await;
            }
            Ok(picked.reached)
        })
        .await
    }

    /// Reads all rows, until the last one or the limit is reached. `page` processes those after an ID and returns the ID that it
    /// has reached, or `None` if there were no more.
    async fn each_page(
        &self,
        counts: &mut Counts,
        mut page: impl AsyncFnMut(i64, &mut Counts) -> Result<Option<i64>, Failed>,
    ) -> Result<(), Failed> {
        let Bounds { lowest, highest, .. } = self.bounds;
        self.progress.begin("reading the outbox", highest.abs_diff(lowest) + 1);
        let mut after = lowest.saturating_sub(1);
        while counts.events < self.most && after < highest {
            self.check_stopped()?;
            let Some(reached) = page(after, counts).await? else { break };
            self.progress.advance_by(reached.abs_diff(after));
            after = reached;
        }
        Ok(())
    }

    /// Connects to this topic and checks it. Publishes nothing. `counts` has the topics of the selected events.
    async fn target(&self, to: &str, counts: &Counts) -> Result<Copier, Failed> {
        if counts.topics.contains_key(to) {
            return Err(own_topic(to));
        }
        let copier = Copier::open(self.outbox.config.cluster()?, to).await;
        let copier = copier.map_err(|failure| unusable(to, failure))?;
        self.outbox.check_clusters(copier.cluster.comparison().answered()).await?;
        Ok(copier)
    }

    /// Publishes the selected events to this topic.
    async fn copy(&self, mut target: Copier, counts: &mut Counts) -> Result<(), Failed> {
        let range = HistoryRange {
            selection: self.selection.clone(),
            highest: self.bounds.highest,
            record_bytes_max: target.cluster.record_bytes_max() as i64,
        };
        self.each_page(counts, async |after, counts| {
            let rows = self.history.rows(&range, after).await?;
            let left = usize::try_from(self.most - counts.events).unwrap_or(usize::MAX);
            let selected: Vec<&HistoryRow> = rows.iter().filter(|row| row.is_read).take(left).collect();
            for batch in selected.chunks(self.batch_rows(COPY_ROWS) as usize) {
                self.check_stopped()?;
                self.copy_batch(&mut target, batch, counts).await?;
                self.pause_after(batch.len() as u64).await;
            }
            Ok(rows.last().map(HistoryRow::id))
        })
        .await
    }

    async fn copy_batch(
        &self,
        target: &mut Copier,
        batch: &[&HistoryRow],
        counts: &mut Counts,
    ) -> Result<(), Failed> {
        let rules = self.outbox.topics();
        let topics: Vec<String> = batch.iter().map(|row| topic::name(&rules, &row.event)).collect();
        // An event can have been sent since the events were counted.
        if topics.contains(&target.topic) {
            return Err(own_topic(&target.topic));
        }
        let events: Vec<_> = batch.iter().map(|row| &row.event).collect();
        let published = target.publish(&events).await;
        let acknowledged = published.as_ref().map_or_else(|stopped| stopped.acknowledged, |()| batch.len());
        counts.add(topics.into_iter().take(acknowledged).map(|topic| (topic, 1)));
        if acknowledged > 0 {
            let recorded =
                self.history.record_copies(&batch[..acknowledged], &target.topic, &self.replay.reason);
            let what =
                format!("{} not recorded in the history", counted(acknowledged as u64, "published event"));
            recorded.await.map_err(|fault| Failed::from(fault).map(|error| error.context(what)))?;
        }
        published.map_err(|stopped| unusable(&target.topic, stopped.failure))
    }

    /// Fails after a signal. Called before each batch, so that a signal during the last one is not a failure.
    fn check_stopped(&self) -> Result<(), Failed> {
        if self.is_stopped.get() { Err(Failed::failure("Interrupted")) } else { Ok(()) }
    }

    /// The size of a batch: at most this, and what one second allows.
    fn batch_rows(&self, most: u64) -> u64 {
        self.replay.rate.map_or(most, |rate| u64::from(rate).min(most))
    }

    async fn pause_after(&self, events: u64) {
        if let Some(rate) = self.replay.rate {
            sleep(Duration::from_secs_f64(events as f64 / f64::from(rate))).await;
        }
    }

    fn batch(&self, after: i64, rows: u64, counts: &Counts) -> Batch {
        let rows = rows.min(self.most - counts.events) as i64;
        Batch { after, up_to: self.bounds.highest, rows }
    }
}

fn own_topic(to: &str) -> Failed {
    Failed::Usage(format!(
        "Events of topic {to} cannot be copied to the same topic. Leave out --to-topic to replay them in order."
    ))
}

fn unusable(to: &str, failure: KafkaFailure) -> Failed {
    match failure.kind {
        _ if failure.reason == TOPIC_AUTHORIZATION.word => Failed::configuration(format!(
            "The Kafka user may not publish to topic {to}. Grant it Write and Describe on the topic."
        )),
        FailureKind::Topic => Failed::Usage(format!("--to-topic: {failure}.")),
        _ => failure.into(),
    }
}

/// The counts of a run, by the topics of the events.
#[derive(Debug, Default)]
struct Counts {
    events: u64,
    topics: BTreeMap<String, u64>,
}

impl Counts {
    fn add(&mut self, topics: impl IntoIterator<Item = (String, u64)>) {
        for (topic, events) in topics {
            self.events += events;
            *self.topics.entry(topic).or_default() += events;
        }
    }
}

/// An option as a shell reads it.
fn option(name: &str, value: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.,:/@%+=".contains(&byte);
    // A value that begins with a hyphen could be taken for an option.
    let between = if value.starts_with('-') { '=' } else { ' ' };
    if !value.is_empty() && value.bytes().all(is_plain) {
        return format!(" --{name}{between}{value}");
    }
    format!(" --{name}{between}'{}'", value.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn rest(args: &[&str], done: u64) -> String {
        let Cli { config, command } = Cli::parse_from([&["outbox-relay", "replay"], args].concat());
        let Command::Replay(replay) = command else { panic!("{args:?}") };
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(86_400);
        let Ok(selection) = replay.filters.selection(now, now) else { panic!("{args:?}") };
        replay.rest(&config, &selection, done)
    }

    #[test]
    fn rest_has_absolute_times_and_every_option() {
        let filters = ["--config", "my config.toml", "--since", "2h", "--until", "1h", "--created"];
        assert_eq!(
            rest(&[&filters[..], &["--topic", "events.order", "--key=-1'", "--limit", "9"]].concat(), 4),
            "outbox-relay replay --config 'my config.toml' --since 1970-01-01T22:00:00.000000Z --until \
             1970-01-01T23:00:00.000000Z --sent-before 1970-01-02T00:00:00.000000Z --topic events.order \
             --key='-1'\\''' --limit 5 --created"
        );
        let id = "0199d6c1-3a52-7b1e-9c55-0a4f0d6f3b7e";
        let others = ["--config", "c", "--event-id", id, "--rate", "5", "--reason", "a b", "--json"];
        assert_eq!(
            rest(&others, 4),
            format!(
                "outbox-relay replay --config c --sent-before 1970-01-02T00:00:00.000000Z --event-id {id} --rate 5 \
                 --reason 'a b' --json"
            )
        );
        let copy = rest(&["--config", "c", "--all", "--to-topic", "backfill", "--limit", "9"], 4);
        assert_eq!(
            copy,
            "outbox-relay replay --config c --sent-before 1970-01-02T00:00:00.000000Z --limit 9 --to-topic backfill --all"
        );
    }
}
