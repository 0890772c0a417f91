//! Shared by `retry` and `dead-letter`.

use super::{describe, open};
use crate::cli::arguments::selection::{ChangeOptions, Filters};
use crate::cli::exit::Failed;
use crate::cli::one_shot;
use crate::cli::operator::{Total, in_batches};
use crate::cli::terminal::output;
use crate::cli::terminal::output::counted;
use crate::cli::{ConfigFile, block_on};
use clap::Args;
use postgres::access::grants::Privilege;
use postgres::operate::acts::BatchResult;
use postgres::operate::blocked_keys::PostgresBlockedKeys;
use postgres::operate::selection::{Batch, Selection};
use relay::failure::PostgresFault;
use serde::Serialize;

const PREVIEW_ROWS: i64 = 100;

/// The object of `--json`.
#[derive(Debug, Serialize)]
struct Done {
    act: &'static str,
    dry_run: bool,
    /// Keys whose events were processed.
    blocked_keys: u64,
    /// Keys that were only unblocked, because their event no longer exists.
    lifted: u64,
}

pub(crate) struct Action {
    /// The name in the history.
    pub name: &'static str,
    /// What happened to the events.
    pub done: &'static str,
    /// What would happen to them.
    pub preview: &'static str,
    /// The privileges that it needs.
    pub privileges: &'static [Privilege],
}

/// The selection of blocked keys and the options.
#[derive(Debug, Args)]
pub(crate) struct Chosen {
    #[command(flatten)]
    config: ConfigFile,
    #[command(flatten)]
    filters: Filters,
    #[command(flatten)]
    options: ChangeOptions,
}

/// Runs the action, or previews it for a dry run, and prints the counts. `batch` processes one batch.
pub(crate) fn act(
    chosen: &Chosen,
    action: &Action,
    mut batch: impl AsyncFnMut(
        &PostgresBlockedKeys,
        &Selection,
        Batch,
    ) -> Result<Option<BatchResult>, PostgresFault>,
) -> Result<(), Failed> {
    let config = chosen.config.load_for_database()?;
    let (selection, options) = (chosen.filters.selection(), &chosen.options);
    options.check(!selection.is_all())?;
    options.confirm(&format!("Apply {} to all blocked keys of {}?", action.name, config.outbox.table))?;
    let Total { done, lifted } = block_on(async {
        let keys = open(&config, action.privileges).await?;
        let up_to = keys.highest_id().await.map_err(one_shot::fault)?;
        if options.dry_run {
            return preview(&keys, &selection, up_to, options).await;
        }
        in_batches(options.most(), up_to, async |part| batch(&keys, &selection, part).await).await
    })??;
    let text = if options.json {
        output::json(&Done { act: action.name, dry_run: options.dry_run, blocked_keys: done, lifted })?
    } else {
        let (what, lifted_as) =
            if options.dry_run { (action.preview, "would be unblocked") } else { (action.done, "unblocked") };
        let gone = match lifted {
            0 => String::new(),
            _ => format!("; {} {lifted_as} because the event no longer exists", counted(lifted, "key")),
        };
        format!("{}: {} {what}{gone}", config.outbox.table, counted(done, "rejected event"))
    };
    output::line(&text)?;
    if done + lifted == 0 && !options.json {
        output::note("No blocked key matches. To list all, run: outbox-relay blocked-keys list");
    }
    Ok(())
}

/// Prints the first keys that the action would process, and returns their number.
async fn preview(
    keys: &PostgresBlockedKeys,
    selection: &Selection,
    up_to: i64,
    options: &ChangeOptions,
) -> Result<Total, Failed> {
    let most = i64::try_from(options.most()).unwrap_or(i64::MAX);
    if !options.json {
        let first = keys.oldest(selection, up_to, most.min(PREVIEW_ROWS)).await.map_err(one_shot::fault)?;
        for key in &first {
            output::line(&describe(key))?;
        }
    }
    let found = keys.count(selection, up_to, most).await.map_err(one_shot::fault)?;
    Ok(found.map_or(Total::default(), |found| Total { done: found.done, lifted: found.lifted }))
}
