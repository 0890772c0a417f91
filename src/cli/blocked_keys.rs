//! `outbox-relay blocked-keys`: keys whose events wait for a rejected event.

use super::arguments::{ChangeOptions, ListOptions};
use super::frame::{ConfigFile, Failed, Outbox, on_outbox};
use super::output::{Entry, Object, list};
use super::rejected::{Action, Filters, Rejected, Total, change, opened};
use clap::{Args, Subcommand};
use postgres::access::grants::{BLOCK_PRIVILEGES, RETRY_PRIVILEGES, UNBLOCK_PRIVILEGES};
use postgres::operate::rejected::{Batch, BatchResult, BlockedKey, PostgresBlockedKeys, Selection};
use relay::failure::PostgresFault;
use relay::reason::blocked_key_remedy;
use settings::text::{in_line, time};

#[derive(Debug, Args)]
#[command(after_help = include_str!("help/blocked-keys.txt").trim_ascii_end())]
pub(crate) struct BlockedKeys {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List blocked keys, newest first.
    List(List),
    /// Retry rejected events, in order.
    Retry(Retry),
    /// Move rejected events to the dead letters.
    DeadLetter(DeadLetter),
}

impl BlockedKeys {
    pub(crate) fn run(self) -> Result<(), Failed> {
        match self.command {
            Command::List(list) => list.run(),
            Command::Retry(retry) => retry.run(),
            Command::DeadLetter(dead_letter) => dead_letter.run(),
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = include_str!("help/blocked-keys-list.txt").trim_ascii_end())]
struct List {
    #[command(flatten)]
    config: ConfigFile,
    #[command(flatten)]
    filters: Filters,
    #[command(flatten)]
    options: ListOptions,
}

impl List {
    fn run(self) -> Result<(), Failed> {
        let config = self.config.load_for_database()?;
        on_outbox(&config, BLOCK_PRIVILEGES, async |outbox| {
            let keys = Keys::new(outbox, self.filters.selection());
            list(&self.options, "no blocked keys", async |before, rows| {
                keys.store.newest(&keys.selection, before, rows).await
            })
            .await
        })
    }
}

const RETRY: Action = Action {
    name: "retry",
    question: "Apply retry to all blocked keys of",
    done: "will be retried",
    preview: "would be retried",
    privileges: RETRY_PRIVILEGES,
};

const DEAD_LETTER: Action = Action {
    name: "dead-letter",
    question: "Apply dead-letter to all blocked keys of",
    done: "moved to the dead letters",
    preview: "would be moved to the dead letters",
    privileges: UNBLOCK_PRIVILEGES,
};

/// The selection of blocked keys and the options.
#[derive(Debug, Args)]
struct Chosen {
    #[command(flatten)]
    config: ConfigFile,
    #[command(flatten)]
    filters: Filters,
    #[command(flatten)]
    options: ChangeOptions,
}

impl Chosen {
    fn change(
        &self,
        action: &Action,
        batch: impl AsyncFnMut(&Keys, Batch) -> Result<Option<BatchResult>, PostgresFault>,
    ) -> Result<(), Failed> {
        let config = self.config.load_for_database()?;
        let selection = self.filters.selection();
        self.options.check(!selection.is_all())?;
        let open = async |outbox: Outbox<'_>| opened(Keys::new(outbox, selection)).await;
        change(&config, action, &self.options, open, batch)
    }
}

#[derive(Debug, Args)]
#[command(after_help = include_str!("help/blocked-keys-retry.txt").trim_ascii_end())]
struct Retry {
    #[command(flatten)]
    chosen: Chosen,
}

impl Retry {
    fn run(self) -> Result<(), Failed> {
        self.chosen.change(&RETRY, async |keys, batch| keys.store.retry(&keys.selection, batch).await)
    }
}

#[derive(Debug, Args)]
#[command(after_help = include_str!("help/blocked-keys-dead-letter.txt").trim_ascii_end())]
struct DeadLetter {
    #[command(flatten)]
    chosen: Chosen,
}

impl DeadLetter {
    fn run(self) -> Result<(), Failed> {
        let batch = async |keys: &Keys, batch| keys.store.dead_letter(&keys.selection, batch).await;
        self.chosen.change(&DEAD_LETTER, batch)
    }
}

struct Keys {
    store: PostgresBlockedKeys,
    selection: Selection,
}

impl Keys {
    fn new(outbox: Outbox<'_>, selection: Selection) -> Keys {
        let table = outbox.table();
        Keys { store: PostgresBlockedKeys::new(outbox.database, table, &outbox.facts), selection }
    }
}

impl Rejected for Keys {
    type Event = BlockedKey;
    const COUNTED: &str = "rejected event";
    const FIELD: &str = "blocked_keys";
    const LIFTS: bool = true;

    async fn oldest(&self, up_to: i64, rows: i64) -> Result<Vec<BlockedKey>, PostgresFault> {
        self.store.oldest(&self.selection, up_to, rows).await
    }

    async fn highest_id(&self) -> Result<i64, PostgresFault> {
        self.store.highest_id().await
    }

    async fn count(&self, up_to: i64, most: i64) -> Result<Total, PostgresFault> {
        let found = self.store.count(&self.selection, up_to, most).await?;
        Ok(found.map_or(Total::default(), |found| Total { done: found.done, lifted: found.lifted }))
    }

    fn no_match(&self) -> String {
        "No blocked key matches. To list all, run: outbox-relay blocked-keys list".to_owned()
    }
}

impl Entry for BlockedKey {
    fn id(&self) -> i64 {
        self.outbox_id
    }

    fn text(&self) -> String {
        let gone = if self.unsent { "" } else { "  event gone (marked as sent or deleted manually)" };
        format!(
            "{id}  {since}  {reason}  {topic}  key {name}  event {event}{gone}",
            id = self.outbox_id,
            since = time(self.blocked_at),
            reason = in_line(&self.reason, 100),
            topic = in_line(&self.topic, 249),
            name = in_line(&self.aggregate_id, 100),
            event = self.event_id,
        )
    }

    fn json(&self) -> Object {
        Object(vec![
            ("id", self.outbox_id.into()),
            ("event_id", self.event_id.to_string().into()),
            ("aggregate_type", self.aggregate_type.as_str().into()),
            ("aggregate_id", self.aggregate_id.as_str().into()),
            ("topic", self.topic.as_str().into()),
            ("reason", self.reason.as_str().into()),
            ("error", self.error.as_str().into()),
            ("blocked_at", time(self.blocked_at).into()),
            ("event_gone", (!self.unsent).into()),
            ("remedy", blocked_key_remedy(&self.reason).into()),
        ])
    }
}
