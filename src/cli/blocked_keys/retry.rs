//! `outbox-relay blocked-keys retry`.

use super::act::{Act, Chosen, act};
use crate::cli::exit::Failed;
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
    chosen: Chosen,
}

impl Retry {
    /// Runs it.
    pub fn run(self) -> Result<(), Failed> {
        act(&self.chosen, &RETRY, async |keys, selection, batch| keys.retry(selection, batch).await)
    }
}
