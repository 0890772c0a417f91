//! `outbox-relay dead-letters requeue`.

use super::act::{Action, act};
use crate::cli::arguments::selection::{ChangeOptions, Filters};
use crate::cli::exit::Failed;
use crate::cli::terminal::output::counted;
use crate::cli::{ConfigFile, one_shot};
use crate::config::Config;
use clap::Args;
use kafka::cluster::record_bytes_max;
use postgres::access::grants::REQUEUE_PRIVILEGES;
use postgres::operate::rejected::HeaderChanges;
use postgres::operate::rejected::{Filter, PostgresDeadLetters, RejectedAgain};

const REQUEUE: Action =
    Action { name: "requeue", verb: "Requeue", participle: "requeued", privileges: REQUEUE_PRIVILEGES };

/// Put dead letters back into the outbox.
#[derive(Debug, Args)]
#[command(after_help = "\
Fix the cause of the rejection first, such as the topic's max.message.bytes. Otherwise the event becomes a dead letter \
again.

Each event becomes a new outbox row with the same event_id, type, key, headers, created_at and payload. With the options under \
Headers, the event is published with corrected headers, and the history shows \"headers corrected\". If events would be rejected \
again, the command warns, with --dry-run too. It does not ask Kafka. The dead \
letter is kept and marked as requeued. Requeued dead letters are skipped unless you pass --again. If two operators run \
the command at the same time, each event is requeued once.

Order: a requeued event arrives AFTER later events of its key that were published in the meantime. \
Consumers must deduplicate by event_id and recognize outdated events, for example by the version of the aggregate. If \
they cannot, discard the event and have the application publish the current state. To keep the order, use [outbox] \
on_rejected = \"block-key\".

Examples:
  outbox-relay dead-letters requeue --config config.toml --topic events.order --dry-run
  outbox-relay dead-letters requeue --config config.toml --id 17,18
  outbox-relay dead-letters requeue --config config.toml --reason invalid-headers --stringify-headers --dry-run
  outbox-relay dead-letters requeue --config config.toml --all --drop-header attempt --set-header source=shop
  outbox-relay dead-letters requeue --config config.toml --all --limit 10

Exit codes: 0 success, even if nothing matched, 1 failure, 2 usage error, 69 PostgreSQL unreachable, 78 invalid \
configuration or schema, or missing privileges.")]
pub(crate) struct Requeue {
    #[command(flatten)]
    config: ConfigFile,
    #[command(flatten)]
    filters: Filters,
    #[command(flatten)]
    options: ChangeOptions,
    /// Include dead letters that were already requeued.
    #[arg(long)]
    again: bool,
    /// Only dead letters that were not requeued. This is the default.
    #[arg(long, conflicts_with = "again")]
    not_requeued: bool,
    /// Replace header values that are not strings by their JSON text, and drop null.
    #[arg(long, help_heading = "Headers")]
    stringify_headers: bool,
    /// Drop the header NAME. May be repeated.
    #[arg(long, value_name = "NAME", help_heading = "Headers")]
    drop_header: Vec<String>,
    /// Set the header NAME to VALUE. May be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = header, help_heading = "Headers")]
    set_header: Vec<(String, String)>,
}

/// Parses a header.
fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE, such as source=shop")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl Requeue {
    pub(crate) fn run(self) -> Result<(), Failed> {
        let config = self.config.load_for_database()?;
        let requeued = if self.again { None } else { Some(false) };
        let filter = Filter { selection: self.filters.selection(), requeued };
        let changes = HeaderChanges::new(self.stringify_headers, &self.drop_header, &self.set_header);
        let most = self.options.most_rows();
        let check = async |letters: &PostgresDeadLetters, up_to| {
            refuse_to_lose_topics(&config, letters, &filter, up_to).await?;
            let reserved = config.outbox.headers.iter().filter(|header| header.is_reserved());
            let reserved: Vec<&str> = reserved.map(|header| header.name.as_str()).collect();
            let bytes_max = record_bytes_max(&config.kafka);
            let again = letters.rejected_again(&filter, (up_to, most), &changes, &reserved, bytes_max).await;
            warn(again.map_err(one_shot::fault)?, bytes_max);
            Ok(())
        };
        act(&config, &REQUEUE, &filter, &self.options, check, async |letters, batch| {
            letters.requeue(&filter, batch, &changes).await
        })
    }
}

fn warn(RejectedAgain { headers, too_large, topic }: RejectedAgain, bytes_max: usize) {
    let fix_headers = "correct them with --stringify-headers, --drop-header or --set-header".to_owned();
    let raise = format!("raise message.max.bytes = {bytes_max} in [kafka.properties] and restart the relays");
    let allow = "correct [outbox] topic or topic_allow and restart the relays, or insert the events again";
    for (count, reason, fix) in [
        (headers, "their headers are invalid", fix_headers),
        (too_large, "they are larger than the relay allows", raise),
        (topic, "the name of their topic is invalid or not allowed", allow.to_owned()),
    ] {
        if count > 0 {
            let events = counted(count, "event");
            eprintln!("warning: {events} will be rejected again: {reason}. Fix: {fix}.");
        }
    }
}

/// Without the column `topic`, an event that names its topic would be published to the topic of the template.
async fn refuse_to_lose_topics(
    config: &Config,
    letters: &PostgresDeadLetters,
    filter: &Filter,
    up_to: i64,
) -> Result<(), Failed> {
    let losing = letters.losing_their_topic(filter, up_to).await.map_err(one_shot::fault)?;
    if losing == 0 {
        return Ok(());
    }
    Err(Failed::Failure(anyhow::anyhow!(
        "the events of {} name their topic, but {} no longer has the column topic. Nothing was requeued. Add the column again, \
         discard these dead letters, or select others, for example with --id",
        counted(losing, "dead letter"),
        config.outbox.table,
    )))
}
