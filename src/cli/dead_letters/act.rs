//! What `requeue` and `discard` share.

use super::{describe, open};
use crate::cli::exit::Failed;
use crate::cli::operator::in_batches;
use crate::cli::output::counted;
use crate::cli::selection::Deed;
use crate::cli::{block_on, one_shot, output};
use crate::config::Config;
use crate::postgres::access::grants::Right;
use crate::postgres::operate::acts::BatchResult;
use crate::postgres::operate::dead_letters::{Filter, PostgresDeadLetters};
use crate::postgres::operate::selection::Batch;
use crate::relay::failure::Fault;
use serde::Serialize;

/// Of what would be done, so many are shown.
const FORESEEN_SHOWN: i64 = 100;

/// The object of `--json`.
#[derive(Debug, Serialize)]
struct Done {
    act: &'static str,
    dry_run: bool,
    dead_letters: u64,
}

/// What is done to dead letters.
pub(crate) struct Act {
    /// As the history calls it.
    pub name: &'static str,
    /// What becomes of them: "requeued".
    pub participle: &'static str,
    /// What it needs.
    pub rights: &'static [Right],
}

/// Does it, or shows what would be done, and prints how many it was. `batch` does one batch.
pub(crate) fn act(
    config: &Config,
    act: &Act,
    filter: &Filter,
    deed: &Deed,
    mut batch: impl AsyncFnMut(&PostgresDeadLetters, Batch) -> Result<Option<BatchResult>, Fault>,
) -> Result<(), Failed> {
    deed.check(!filter.selection.is_all() || filter.requeued == Some(true))?;
    let count = block_on(async {
        let letters = open(config, act.rights).await?;
        let up_to = letters.highest_id().await.map_err(one_shot::fault)?;
        if deed.dry_run {
            return foresee(&letters, filter, up_to, deed).await;
        }
        let total = in_batches(deed.most(), up_to, async |part| batch(&letters, part).await).await?;
        Ok(total.done)
    })??;
    let done = Done { act: act.name, dry_run: deed.dry_run, dead_letters: count };
    let text = if deed.json {
        output::json(&done)?
    } else {
        let verb = if deed.dry_run { "would be " } else { "" };
        format!("{}: {} {verb}{}", config.outbox.table, counted(count, "dead letter"), act.participle)
    };
    output::line(&text).map(|_| ())
}

/// Prints the first of those that it would be done to, and returns how many there are.
async fn foresee(
    letters: &PostgresDeadLetters,
    filter: &Filter,
    up_to: i64,
    deed: &Deed,
) -> Result<u64, Failed> {
    let most = i64::try_from(deed.most()).unwrap_or(i64::MAX);
    if !deed.json {
        let first = letters.oldest(filter, up_to, most.min(FORESEEN_SHOWN)).await.map_err(one_shot::fault)?;
        for letter in &first {
            output::line(&describe(letter))?;
        }
    }
    letters.count(filter, up_to, most).await.map_err(one_shot::fault)
}
