//! Shared by `requeue` and `discard`.

use super::{describe, open};
use crate::cli::arguments::selection::ChangeOptions;
use crate::cli::block_on;
use crate::cli::exit::Failed;
use crate::cli::one_shot;
use crate::cli::operator::in_batches;
use crate::cli::terminal::output;
use crate::cli::terminal::output::counted;
use crate::config::Config;
use postgres::access::grants::Privilege;
use postgres::operate::acts::BatchResult;
use postgres::operate::dead_letters::{Filter, PostgresDeadLetters};
use postgres::operate::selection::Batch;
use relay::failure::PostgresFault;
use serde::Serialize;

const PREVIEW_ROWS: i64 = 100;

/// The object of `--json`.
#[derive(Debug, Serialize)]
struct Done {
    act: &'static str,
    dry_run: bool,
    dead_letters: u64,
}

pub(crate) struct Action {
    /// The name in the history.
    pub name: &'static str,
    /// The question begins with it, such as "Requeue".
    pub verb: &'static str,
    /// The result, such as "requeued".
    pub participle: &'static str,
    /// The privileges that it needs.
    pub privileges: &'static [Privilege],
}

/// Runs the action, or previews it for a dry run, and prints the count. `check` checks the dead letters up to this ID first.
/// `batch` processes one batch.
pub(crate) fn act(
    config: &Config,
    action: &Action,
    filter: &Filter,
    options: &ChangeOptions,
    check: impl AsyncFnOnce(&PostgresDeadLetters, i64) -> Result<(), Failed>,
    mut batch: impl AsyncFnMut(&PostgresDeadLetters, Batch) -> Result<Option<BatchResult>, PostgresFault>,
) -> Result<(), Failed> {
    options.check(!filter.selection.is_all() || filter.requeued == Some(true))?;
    options.confirm(&format!("{} all selected dead letters of {}?", action.verb, config.outbox.table))?;
    let count = block_on(async {
        let letters = open(config, action.privileges).await?;
        let up_to = letters.highest_id().await.map_err(one_shot::fault)?;
        check(&letters, up_to).await?;
        if options.dry_run {
            return preview(&letters, filter, up_to, options).await;
        }
        let total = in_batches(options.most(), up_to, async |part| batch(&letters, part).await).await?;
        Ok(total.done)
    })??;
    let done = Done { act: action.name, dry_run: options.dry_run, dead_letters: count };
    let text = if options.json {
        output::json(&done)?
    } else {
        let verb = if options.dry_run { "would be " } else { "" };
        format!("{}: {} {verb}{}", config.outbox.table, counted(count, "dead letter"), action.participle)
    };
    output::line(&text)?;
    if count == 0 && !options.json {
        let skipped = if filter.requeued == Some(false) {
            " Requeued ones are skipped unless --again is set."
        } else {
            ""
        };
        output::note(&format!(
            "No dead letter matches.{skipped} To list all, run: outbox-relay dead-letters list"
        ));
    }
    Ok(())
}

/// Prints the first dead letters that the action would process, and returns their number.
async fn preview(
    letters: &PostgresDeadLetters,
    filter: &Filter,
    up_to: i64,
    options: &ChangeOptions,
) -> Result<u64, Failed> {
    let most = options.most_rows();
    if !options.json {
        let first = letters.oldest(filter, up_to, most.min(PREVIEW_ROWS)).await.map_err(one_shot::fault)?;
        for letter in &first {
            output::line(&describe(letter))?;
        }
    }
    letters.count(filter, up_to, most).await.map_err(one_shot::fault)
}
