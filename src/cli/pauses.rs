//! `outbox-relay pause` and `resume`.

use super::arguments::reason;
use super::failed::Failed;
use super::frame::{ConfigFile, Outbox, on_outbox};
use super::output::{self, counted};
use crate::config;
use clap::Args;
use postgres::access::grants::{PAUSE_PRIVILEGES, RESUME_PRIVILEGES};
use postgres::operate::pauses::{PostgresPauses, Scope};
use relay::topic::TopicRules;
use settings::text::thousands;

/// The maximum number of remaining pauses to list.
const NAMED_MAX: i64 = 10;

#[derive(Debug, Args)]
#[command(after_help = include_str!("help/pause.txt").trim_ascii_end())]
pub(crate) struct Pause {
    #[command(flatten)]
    selector: Selector,
    /// Reason, shown in `status`, the log and the history.
    #[arg(long, value_name = "TEXT", help_heading = None::<&str>, value_parser = reason)]
    reason: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = include_str!("help/resume.txt").trim_ascii_end())]
pub(crate) struct Resume {
    #[command(flatten)]
    selector: Selector,
    /// Remove every pause.
    #[arg(long, conflicts_with_all = ["topic", "key"])]
    all: bool,
}

/// The scope of a pause. By default, everything.
#[derive(Debug, Args)]
#[command(next_help_heading = "Scope")]
struct Selector {
    /// Only this topic [default: everything].
    #[arg(long, conflicts_with = "key")]
    topic: Option<String>,
    /// Only this key: the values of aggregate_type and aggregate_id.
    #[arg(long, num_args = 2, value_names = ["AGGREGATE_TYPE", "KEY"])]
    key: Option<Vec<String>>,
}

impl Selector {
    fn scope(&self) -> Scope {
        match (&self.topic, self.key.as_deref()) {
            (None, Some([aggregate_type, aggregate_id])) => {
                Scope::Key { aggregate_type: aggregate_type.clone(), aggregate_id: aggregate_id.clone() }
            }
            (None, _) => Scope::Everything,
            (Some(topic), _) => Scope::Topic(topic.clone()),
        }
    }
}

impl Pause {
    pub(crate) fn run(self, file: &ConfigFile) -> Result<(), Failed> {
        let config = file.load_for_database()?;
        let scope = self.selector.scope();
        check(&scope, &config.outbox)?;
        let reason = self.reason.as_deref().filter(|reason| !reason.is_empty());
        let begun = on_outbox(&config, PAUSE_PRIVILEGES, async |outbox| {
            Ok(pauses(outbox).pause(&scope, reason).await?)
        })?;
        let done = if begun { "paused" } else { "was already paused" };
        output::text(format!("{}: {} {done}\n", config.outbox.table, scope.name()))
    }
}

impl Resume {
    pub(crate) fn run(self, file: &ConfigFile) -> Result<(), Failed> {
        let config = file.load_for_database()?;
        let scope = self.selector.scope();
        let (done, left) = on_outbox(&config, RESUME_PRIVILEGES, async |outbox| {
            let pauses = pauses(outbox);
            let done = match pauses.resume(&scope, self.all).await? {
                ended if self.all => counted(ended, "pause") + " ended",
                0 => format!("{} was not paused", scope.name()),
                _ => format!("{} resumed", scope.name()),
            };
            Ok((done, pauses.list(NAMED_MAX).await))
        })?;
        output::text(format!("{}: {done}\n", config.outbox.table))?;
        let (left, total) = left?;
        let more = total.unsigned_abs().saturating_sub(left.len() as u64);
        let left: String =
            left.iter().map(|pause| format!("still paused: {}\n", pause.scope.name())).collect();
        let more = if more > 0 { format!("and {} more\n", thousands(more as usize)) } else { String::new() };
        output::text(left + &more)
    }
}

fn pauses(outbox: Outbox<'_>) -> PostgresPauses {
    let table = outbox.table();
    PostgresPauses::new(outbox.database, table)
}

/// Fails for a topic that no event of this outbox can have.
fn check(scope: &Scope, outbox: &config::Outbox) -> Result<(), Failed> {
    let topics = TopicRules::from(outbox);
    let Scope::Topic(topic) = scope else { return Ok(()) };
    if topics.matches(topic) {
        return Ok(());
    }
    let allow = topics.allow.map(|allow| format!(", and topic_allow is \"{allow}\"")).unwrap_or_default();
    Err(Failed::Usage(format!(
        "Events of {} cannot have the topic {topic:?}. [outbox] topic is \"{}\"{allow}. Fix: pass the name of a topic that \
         can occur.",
        outbox.table, topics.template,
    )))
}
