//! Shared by commands that change dead letters or blocked keys: they work in batches, each in its own transaction.

use crate::cli::exit::Failed;
use crate::cli::one_shot;
use crate::cli::terminal::output::counted;
use postgres::operate::acts::BatchResult;
use postgres::operate::selection::Batch;
use relay::failure::PostgresFault;

/// Events per transaction. A rejected event may be large.
const BATCH_ROWS: u64 = 100;

/// The result of all batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Total {
    /// Events processed.
    pub done: u64,
    /// Keys that were only unblocked.
    pub lifted: u64,
}

impl Total {
    fn all(self) -> u64 {
        self.done + self.lifted
    }
}

/// Repeats `act` until no id up to `up_to` is left or `most` are done. If a batch fails, earlier ones stay
/// committed, and the error contains the number of their events.
pub(crate) async fn in_batches(
    most: u64,
    up_to: i64,
    mut act: impl AsyncFnMut(Batch) -> Result<Option<BatchResult>, PostgresFault>,
) -> Result<Total, Failed> {
    let (mut total, mut after) = (Total::default(), i64::MIN);
    while total.all() < most {
        let rows = BATCH_ROWS.min(most - total.all()) as i64;
        match act(Batch { after, up_to, rows }).await {
            Ok(None) => break,
            Ok(Some(acted)) => {
                total.done += acted.done;
                total.lifted += acted.lifted;
                after = acted.last;
            }
            Err(fault) => {
                let failed = one_shot::fault(fault);
                return Err(if total.all() == 0 { failed } else { after_some(failed, total.all()) });
            }
        }
    }
    Ok(total)
}

fn after_some(failed: Failed, done: u64) -> Failed {
    let some = format!(
        "stopped after {} had been processed and recorded. Fix the cause, then run the command again for the rest",
        counted(done, "event")
    );
    match failed {
        Failed::Failure(error) => Failed::Failure(error.context(some)),
        Failed::Unavailable(error) => Failed::Unavailable(error.context(some)),
        Failed::Configuration(error) => Failed::Configuration(error.context(some)),
        usage @ Failed::Usage(_) => usage,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postgres::connection::fault::unavailable;

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
            "stopped after 7 events had been processed and recorded. Fix the cause, then run the command again \
             for the \
             rest: requeueing failed: gone"
        );
    }
}
