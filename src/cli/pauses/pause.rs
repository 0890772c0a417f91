//! `outbox-relay pause`.

use super::{Selector, open};
use crate::cli::arguments::selection::reason;
use crate::cli::exit::Failed;
use crate::cli::one_shot;
use crate::cli::terminal::output;
use crate::cli::{ConfigFile, block_on};
use crate::config::Outbox;
use clap::Args;
use postgres::access::grants::PAUSE_PRIVILEGES;
use postgres::operate::pauses::Scope;
use relay::topic::TopicRules;

/// Pause publishing: everything, one topic, or one key.
#[derive(Debug, Args)]
#[command(after_help = "\
Events accumulate in the outbox and are published in order after `resume`. Other topics and keys continue, and \
applications keep inserting. The pause applies to all relays from their next claim; events that were already claimed \
are still published. A pause has no timeout and survives restarts. `status` lists each pause with its start time, role \
and reason.

Usually, a key belongs to one aggregate type. If [outbox] topic is a fixed name or contains {event_type}, or if [outbox] \
topic_allow is set, aggregates of different types with the same ID share a key. Pausing the key then covers the events \
of all these aggregates, in every topic. A held topic that is paused stays held, and is \
not probed until you resume it.

Examples:
  outbox-relay pause --config config.toml --reason \"migrating consumers\"
  outbox-relay pause --config config.toml --topic events.order
  outbox-relay pause --config config.toml --key order 42

Exit codes: 0 success, even if already paused, 1 failure, 2 usage error, 69 PostgreSQL unreachable, 78 invalid configuration or schema, \
or missing privileges.")]
pub(crate) struct Pause {
    #[command(flatten)]
    config: ConfigFile,
    #[command(flatten)]
    selector: Selector,
    /// Reason, shown in `status`, the log and the history.
    #[arg(long, value_name = "TEXT", help_heading = None::<&str>, value_parser = reason)]
    reason: Option<String>,
}

impl Pause {
    pub(crate) fn run(self) -> Result<(), Failed> {
        let config = self.config.load_for_database()?;
        let scope = self.selector.scope();
        check(&scope, &config.outbox)?;
        let begun = block_on(async {
            let pauses = open(&config, PAUSE_PRIVILEGES).await?;
            pauses
                .pause(&scope, self.reason.as_deref().filter(|reason| !reason.is_empty()))
                .await
                .map_err(one_shot::fault)
        })??;
        let done = if begun { "paused" } else { "was already paused" };
        output::line(&format!("{}: {} {done}", config.outbox.table, scope.name())).map(|_| ())
    }
}

/// Fails for a topic that no event of this outbox can have.
fn check(scope: &Scope, outbox: &Outbox) -> Result<(), Failed> {
    let topics = TopicRules::from(outbox);
    let Scope::Topic(topic) = scope else { return Ok(()) };
    if topics.matches(topic) {
        return Ok(());
    }
    let allow = topics.allow.map(|allow| format!(", and topic_allow is \"{allow}\"")).unwrap_or_default();
    Err(Failed::Usage(format!(
        "Events of {} cannot have the topic {topic:?}. [outbox] topic is \"{}\"{allow}. \
         Fix: pass the name of a topic that can occur.",
        outbox.table, topics.template,
    )))
}
