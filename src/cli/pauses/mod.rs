//! `outbox-relay pause` and `resume`.

mod pause;
mod resume;

pub(crate) use pause::Pause;
pub(crate) use resume::Resume;

use super::exit::Failed;
use super::one_shot;
use crate::config::Config;
use clap::Args;
use postgres::access::grants::Privilege;
use postgres::operate::pauses::{PostgresPauses, Scope};

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

/// Connects to the pauses of the configured outbox, and checks that the role has these privileges.
async fn open(config: &Config, privileges: &[Privilege]) -> Result<PostgresPauses, Failed> {
    let database = one_shot::database(config)?;
    one_shot::allowed(config, &database, privileges).await?;
    Ok(PostgresPauses::new(database, config.outbox.table.clone()))
}
