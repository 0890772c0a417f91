//! What `retry` and `dead-letter` share.

use super::{describe, open};
use crate::cli::exit::Failed;
use crate::cli::operator::{Total, in_batches};
use crate::cli::output::counted;
use crate::cli::selection::{Deed, Filters};
use crate::cli::{ConfigFile, block_on, one_shot, output};
use crate::postgres::access::grants::Right;
use crate::postgres::operate::acts::BatchResult;
use crate::postgres::operate::blocked_keys::PostgresBlockedKeys;
use crate::postgres::operate::selection::{Batch, Selection};
use crate::relay::failure::Fault;
use clap::Args;
use serde::Serialize;

/// Of what would be done, so many are shown.
const FORESEEN_SHOWN: i64 = 100;

/// The object of `--json`.
#[derive(Debug, Serialize)]
struct Done {
    act: &'static str,
    dry_run: bool,
    /// To whose events it was done.
    blocked_keys: u64,
    /// Blocks that were only lifted, since their event is gone.
    lifted: u64,
}

/// What is done to blocked keys.
pub(crate) struct Act {
    /// As the history calls it.
    pub name: &'static str,
    /// What became of their events.
    pub done: &'static str,
    /// What would become of them.
    pub foreseen: &'static str,
    /// What it needs.
    pub rights: &'static [Right],
}

/// Which blocked keys, and how.
#[derive(Debug, Args)]
pub(crate) struct Chosen {
    #[command(flatten)]
    config: ConfigFile,
    #[command(flatten)]
    filters: Filters,
    #[command(flatten)]
    deed: Deed,
}

/// Does it, or shows what would be done, and prints how many it was. `batch` does one batch.
pub(crate) fn act(
    chosen: &Chosen,
    act: &Act,
    mut batch: impl AsyncFnMut(&PostgresBlockedKeys, &Selection, Batch) -> Result<Option<BatchResult>, Fault>,
) -> Result<(), Failed> {
    let config = chosen.config.load_for_database()?;
    let (selection, deed) = (chosen.filters.selection(), &chosen.deed);
    deed.check(!selection.is_all())?;
    let Total { done, lifted } = block_on(async {
        let keys = open(&config, act.rights).await?;
        let up_to = keys.highest_id().await.map_err(one_shot::fault)?;
        if deed.dry_run {
            return foresee(&keys, &selection, up_to, deed).await;
        }
        in_batches(deed.most(), up_to, async |part| batch(&keys, &selection, part).await).await
    })??;
    let text = if deed.json {
        output::json(&Done { act: act.name, dry_run: deed.dry_run, blocked_keys: done, lifted })?
    } else {
        let (what, lifted_as) =
            if deed.dry_run { (act.foreseen, "would be unblocked") } else { (act.done, "unblocked") };
        let gone = match lifted {
            0 => String::new(),
            _ => format!("; {} {lifted_as} because the event no longer exists", counted(lifted, "key")),
        };
        format!("{}: {} {what}{gone}", config.outbox.table, counted(done, "rejected event"))
    };
    output::line(&text).map(|_| ())
}

/// Prints the first of those that it would be done to, and returns how many there are.
async fn foresee(
    keys: &PostgresBlockedKeys,
    selection: &Selection,
    up_to: i64,
    deed: &Deed,
) -> Result<Total, Failed> {
    let most = i64::try_from(deed.most()).unwrap_or(i64::MAX);
    if !deed.json {
        let first = keys.oldest(selection, up_to, most.min(FORESEEN_SHOWN)).await.map_err(one_shot::fault)?;
        for key in &first {
            output::line(&describe(key))?;
        }
    }
    let found = keys.count(selection, up_to, most).await.map_err(one_shot::fault)?;
    Ok(found.map_or(Total::default(), |found| Total { done: found.done, lifted: found.lifted }))
}
