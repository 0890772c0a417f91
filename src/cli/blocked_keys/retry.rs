//! `outbox-relay blocked-keys retry`.

use super::act::{Act, act};
use crate::cli::ConfigFile;
use crate::cli::exit::Failed;
use crate::cli::selection::{Deed, Filters};
use crate::postgres::access::grants::RETRY_RIGHTS;
use clap::Args;

const RETRY: Act =
    Act { name: "retry", done: "to be tried again", foreseen: "would be tried again", rights: RETRY_RIGHTS };

/// Let the relay try the refused events again, in order.
#[derive(Debug, Args)]
#[command(after_help = "\
First mend what they were refused for, such as the topic's max.message.bytes. The block is lifted, and a running relay \
reads the key again from the refused event on, so the key stays in order. If Kafka refuses it again, the key is blocked \
again. A block whose event is gone (sent or deleted by hand) is just lifted.

Examples:
  outbox-relay blocked-keys retry --config config.toml --topic events.order --dry-run
  outbox-relay blocked-keys retry --config config.toml --key 42

Exit codes: 0 done, even if nothing fits, 1 failed, 2 usage, 69 Postgres cannot be reached, 78 the configuration, the \
grants or the schema have to be mended.")]
pub struct Retry {
    #[command(flatten)]
    config: ConfigFile,
    #[command(flatten)]
    filters: Filters,
    #[command(flatten)]
    deed: Deed,
}

impl Retry {
    /// Runs it.
    pub fn run(self) -> Result<(), Failed> {
        let config = self.config.load_for_database()?;
        let selection = self.filters.selection();
        act(&config, &RETRY, &selection, &self.deed, async |keys, after, up_to, rows| {
            keys.retry(&selection, after, up_to, rows).await
        })
    }
}
