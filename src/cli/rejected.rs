//! Rejected events, which have two forms: a dead letter has left the outbox; with `on_rejected = "block-key"`, the event stays there
//! and blocks its key. What `dead-letters` and `blocked-keys` share: the filters, and changes in batches with a preview.

use super::arguments::{ChangeOptions, duration, event_id, number};
use super::frame::{Failed, Outbox, on_outbox};
use super::output::{self, Entry, Object, counted};
use crate::config::Config;
use anyhow::Error;
use clap::Args;
use postgres::access::grants::Privilege;
use postgres::operate::rejected::{Batch, BatchResult, Selection};
use relay::failure::PostgresFault;
use std::time::Duration;
use uuid::Uuid;

/// Events per transaction. A rejected event may be large.
const BATCH_ROWS: u64 = 100;
const PREVIEW_ROWS: i64 = 100;

/// Filters, which all have to match.
#[derive(Debug, Args)]
#[command(next_help_heading = "Filters")]
pub(super) struct Filters {
    /// Only events for this topic.
    #[arg(long)]
    topic: Option<String>,
    /// Only events with this key (`aggregate_id`).
    #[arg(long)]
    key: Option<String>,
    /// Only events rejected for this reason, such as record-too-large.
    #[arg(long)]
    reason: Option<String>,
    /// Only events rejected longer ago than this, such as 1h or 2days.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = duration)]
    older_than: Option<Duration>,
    /// Only events rejected within this time, such as 1h or 2days.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = duration)]
    newer_than: Option<Duration>,
    /// Only these IDs (first column of `list`), separated by commas.
    #[arg(long, value_delimiter = ',', allow_negative_numbers = true, value_parser = number)]
    id: Vec<i64>,
    /// Only these event IDs, separated by commas.
    #[arg(long, value_name = "UUID", value_delimiter = ',', value_parser = event_id)]
    event_id: Vec<Uuid>,
}

impl Filters {
    pub(super) fn selection(&self) -> Selection {
        Selection {
            topic: self.topic.clone(),
            key: self.key.clone(),
            reason: self.reason.clone(),
            older_than: self.older_than.map(Selection::seconds),
            newer_than: self.newer_than.map(Selection::seconds),
            ids: (!self.id.is_empty()).then(|| self.id.clone()),
            event_ids: (!self.event_id.is_empty()).then(|| self.event_id.clone()),
        }
    }
}

/// Rejected events of one form, as far as a command selects them.
pub(super) trait Rejected {
    type Event: Entry;
    /// What a change counts, as text and in JSON.
    const COUNTED: &str;
    const FIELD: &str;
    /// Whether a change can also unblock keys whose event no longer exists.
    const LIFTS: bool;

    /// The oldest with an ID up to `up_to`.
    async fn oldest(&self, up_to: i64, rows: i64) -> Result<Vec<Self::Event>, PostgresFault>;
    async fn highest_id(&self) -> Result<i64, PostgresFault>;
    /// The number of those that a change would process.
    async fn count(&self, up_to: i64, most: i64) -> Result<Total, PostgresFault>;
    /// What the operator reads if there are none.
    fn no_match(&self) -> String;
}

/// A change of rejected events.
pub(super) struct Action {
    /// The name in the history.
    pub(super) name: &'static str,
    /// Asked before everything is changed. The name of the table follows.
    pub(super) question: &'static str,
    /// What happened to the events, and what would happen to them.
    pub(super) done: &'static str,
    pub(super) preview: &'static str,
    pub(super) privileges: &'static [Privilege],
}

/// With the highest ID, because a change does not process events that are rejected meanwhile.
pub(super) async fn opened<R: Rejected>(rejected: R) -> Result<(R, i64), Failed> {
    let up_to = rejected.highest_id().await?;
    Ok((rejected, up_to))
}

/// Runs the action, or previews it for a dry run, and prints the counts. `open` also returns the highest ID, and `batch`
/// processes one batch.
pub(super) fn change<R: Rejected>(
    config: &Config,
    action: &Action,
    options: &ChangeOptions,
    open: impl AsyncFnOnce(Outbox<'_>) -> Result<(R, i64), Failed>,
    mut batch: impl AsyncFnMut(&R, Batch) -> Result<Option<BatchResult>, PostgresFault>,
) -> Result<(), Failed> {
    let table = &config.outbox.table;
    options.confirm(&format!("{} {table}?", action.question))?;
    let (total, no_match) = on_outbox(config, action.privileges, async |outbox| {
        let (rejected, up_to) = open(outbox).await?;
        let total = if options.dry_run {
            preview(&rejected, up_to, options).await?
        } else {
            in_batches(options.most().unsigned_abs(), up_to, async |part| batch(&rejected, part).await)
                .await?
        };
        Ok((total, rejected.no_match()))
    })?;
    let Total { done, lifted } = total;
    if options.json {
        let mut object =
            vec![("act", action.name.into()), ("dry_run", options.dry_run.into()), (R::FIELD, done.into())];
        object.extend(R::LIFTS.then(|| ("lifted", lifted.into())));
        return output::text(output::json(&Object(object))? + "\n");
    }
    let (what, lifted_as) = match options.dry_run {
        true => (action.preview, "would be unblocked"),
        false => (action.done, "unblocked"),
    };
    let gone = match lifted {
        0 => String::new(),
        _ => format!("; {} {lifted_as} because the event no longer exists", counted(lifted, "key")),
    };
    output::text(format!("{table}: {} {what}{gone}\n", counted(done, R::COUNTED)))?;
    if total.all() == 0 {
        output::note(&no_match);
    }
    Ok(())
}

/// Prints the first events that the action would process, and returns their number.
async fn preview<R: Rejected>(rejected: &R, up_to: i64, options: &ChangeOptions) -> Result<Total, Failed> {
    if !options.json {
        for event in &rejected.oldest(up_to, options.most().min(PREVIEW_ROWS)).await? {
            output::line(&event.text())?;
        }
    }
    Ok(rejected.count(up_to, options.most()).await?)
}

/// The result of all batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Total {
    /// Events processed.
    pub(super) done: u64,
    /// Keys that were only unblocked.
    pub(super) lifted: u64,
}

impl Total {
    fn all(self) -> u64 {
        self.done + self.lifted
    }
}

/// Repeats `batch`, each in its own transaction, until no ID up to `up_to` is left or `most` are done. If a batch fails, earlier
/// ones stay committed, and the error contains the number of their events.
async fn in_batches(
    most: u64,
    up_to: i64,
    mut batch: impl AsyncFnMut(Batch) -> Result<Option<BatchResult>, PostgresFault>,
) -> Result<Total, Failed> {
    let (mut total, mut after) = (Total::default(), i64::MIN);
    while total.all() < most {
        let rows = BATCH_ROWS.min(most - total.all()) as i64;
        match batch(Batch { after, up_to, rows }).await {
            Ok(None) => break,
            Ok(Some(acted)) => {
                total.done += acted.done;
                total.lifted += acted.lifted;
                after = acted.last;
            }
            Err(fault) if total.all() == 0 => return Err(fault.into()),
            Err(fault) => return Err(Failed::from(fault).map(|error| after_some(error, total.all()))),
        }
    }
    Ok(total)
}

fn after_some(error: Error, done: u64) -> Error {
    error.context(format!(
        "stopped after {} had been processed and recorded. Fix the cause, then run the command again for the rest",
        counted(done, "event")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use postgres::connection::errors::unavailable;

    #[tokio::test]
    async fn each_batch_continues_after_the_last_id_up_to_the_limit() {
        let mut batches = Vec::new();
        let batch = async |batch: Batch| {
            batches.push(batch);
            let Batch { after, rows, .. } = batch;
            let last = after.max(0) + rows;
            Ok(Some(BatchResult { done: rows as u64 - 1, lifted: 1, last }))
        };
        let total = in_batches(250, 1_000, batch).await.unwrap();
        assert_eq!(total, Total { done: 247, lifted: 3 });
        let of = |after, rows| Batch { after, up_to: 1_000, rows };
        assert_eq!(batches, [of(i64::MIN, 100), of(100, 100), of(200, 50)]);
    }

    #[tokio::test]
    async fn an_error_has_the_number_of_events_done_before() {
        let batch = async |batch: Batch| match batch.after {
            i64::MIN => Ok(Some(BatchResult { done: 7, lifted: 0, last: 7 })),
            _ => Err(unavailable("requeueing", "gone")),
        };
        let Err(Failed::Unavailable(error)) = in_batches(100, 7, batch).await else { panic!() };
        assert_eq!(
            format!("{error:#}"),
            "stopped after 7 events had been processed and recorded. Fix the cause, then run the command again for the \
             rest: requeueing failed: gone"
        );
    }
}
