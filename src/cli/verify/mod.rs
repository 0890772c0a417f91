//! `outbox-relay verify`: compares the events of a time range with the records in Kafka.

mod history;
mod range;
mod records;
mod report;
mod topics;

use super::arguments::moment::{Moment, moment};
use super::exit::Failed;
use super::one_shot;
use super::terminal::output;
use super::terminal::progress::Progress;
use super::{ConfigFile, block_on};
use crate::config::{Config, Part};
use clap::Args;
use history::Collector;
use kafka::cluster::KafkaCluster;
use kafka::operate::reader::{ReadError, TopicReader};
use postgres::access::grants::VERIFY_PRIVILEGES;
use postgres::operate::sent::PostgresHistory;
use relay::reason::{fix, remedy};
use report::Report;
use std::path::PathBuf;
use std::sync::Arc;
use topics::Topics;

/// Compare the outbox with the records in Kafka.
#[derive(Debug, Args)]
#[command(after_help = "\
Reads the events that were created in the range and have been sent, and the records of their topics, starting at \
--since. Reports:

  lost       an event has no record
  reordered  the first record of an event follows that of a later event of its key
  altered    a record does not match its event in topic, partition, key, value or headers
  unknown    a record belongs to no event
  duplicate  an event has an additional record (allowed after a failure, exit code 0)

The command changes nothing, delays neither inserts nor relays, joins no consumer group and commits no offsets. It \
reads the \
whole outbox table, and sorts in temporary files of about 100 bytes per event and record. The Kafka user needs \
Read and Describe on the topics, and DescribeConfigs if offsets are missing, to find out whether a topic is \
compacted. docs/verify-and-replay.md describes what cannot be judged, such as expired records.

Examples:
  outbox-relay verify --config config.toml --since 2h
  outbox-relay verify --config config.toml --json \\
      --since 2026-01-31T12:00:00Z --until 2026-01-31T13:00:00Z

Exit codes: 0 no problem found, 1 an event is lost, reordered or altered, a record is unknown (unless --allow-unknown) \
or the command failed, 2 usage error, 69 PostgreSQL or Kafka unreachable, 78 invalid configuration or schema, or missing privileges.")]
pub(crate) struct Verify {
    #[command(flatten)]
    config: ConfigFile,
    /// Verify events created at or after this time: a duration before now, such as 2h, or a time, such as
    /// 2026-01-31T12:00:00Z.
    #[arg(long, value_name = "TIME", default_value = "1h", allow_hyphen_values = true, value_parser = moment)]
    since: Moment,
    /// Verify events created before this time [default: now].
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = moment)]
    until: Option<Moment>,
    /// Verify only these topics, separated by commas [default: the topics of all events in the range].
    #[arg(long, value_delimiter = ',')]
    topic: Vec<String>,
    /// Report unknown records without failing, for topics to which other producers publish too.
    #[arg(long)]
    allow_unknown: bool,
    /// Show at most this many findings of each kind. All are counted.
    #[arg(long, value_name = "N", default_value_t = 10)]
    limit: usize,
    /// Directory for temporary files [default: $TMPDIR or /tmp].
    #[arg(long, value_name = "DIR")]
    temp_dir: Option<PathBuf>,
    /// Print a JSON object. Later versions may add fields, but never rename or remove them.
    #[arg(long)]
    json: bool,
}

impl Verify {
    pub(crate) fn run(self) -> Result<(), Failed> {
        let config = self.config.load()?;
        let id_header = id_header(&config)?;
        let cluster = config.cluster().map_err(|f| one_shot::kafka(&f))?;
        cluster.check_settings().map_err(|failure| one_shot::kafka(&failure))?;
        let report = block_on(self.verify(&config, &cluster, &id_header))??;
        output::print(if self.json { report.json()? } else { report.to_string() }.as_bytes())?;
        match report.broken {
            0 => Ok(()),
            1 => Err(Failed::Failure(anyhow::anyhow!("1 guarantee violation found"))),
            broken => Err(Failed::Failure(anyhow::anyhow!("{broken} guarantee violations found"))),
        }
    }

    /// The directory for temporary files. Small comparisons need none, but a mistake must not show only in large ones.
    fn folder(&self) -> Result<PathBuf, Failed> {
        let folder = self.temp_dir.clone().unwrap_or_else(std::env::temp_dir);
        match tempfile::tempfile_in(&folder) {
            Ok(_) => Ok(folder),
            Err(error) => Err(Failed::Usage(format!(
                "Cannot write temporary files in {}: {error}. Choose another directory with --temp-dir.",
                folder.display()
            ))),
        }
    }

    async fn verify(
        &self,
        config: &Config,
        cluster: &KafkaCluster,
        id_header: &str,
    ) -> Result<Report, Failed> {
        let database = one_shot::database(config)?;
        let facts = one_shot::allowed(config, &database, VERIFY_PRIVILEGES).await?;
        let history = PostgresHistory::new(
            database.clone(),
            &config.outbox.table,
            facts.topics(&config.outbox),
            facts.payload,
        );
        let bounds = history.bounds().await.map_err(one_shot::fault)?;
        let range = range::resolve(self.since, self.until, bounds.now)?;
        let cluster_id = cluster.id().await.map_err(|failure| one_shot::kafka(&failure))?;
        if let Some(failure) = cluster.unusable_addresses().await {
            output::note(&format!("warning: {failure}. {}", fix(remedy(failure.reason))));
        }
        if let Some(problem) = one_shot::other_clusters(config, &database, Some(cluster_id)).await? {
            output::note(&format!("warning: {problem}"));
        }
        let reader =
            TopicReader::new(&config.kafka, id_header).map_err(|failure| one_shot::kafka(&failure))?;
        let topics = Topics::new(Arc::new(reader), &self.topic).await?;
        let folder = self.folder()?;
        let progress = Progress::new();
        let rules = facts.topics(&config.outbox);
        let mut collector = Collector::new(config, rules, cluster.record_bytes_max(), topics, &folder);
        collector.read_rows(&history, &range, &bounds, &progress).await?;
        collector.read_other_ids(&history).await?;
        let compared = records::compare(config, cluster, collector, &range, self.limit, progress).await?;
        Ok(Report::new(config, &range, compared, self.allow_unknown))
    }
}

/// The header that identifies the event of a record.
fn id_header(config: &Config) -> Result<String, Failed> {
    one_shot::keeps_history(config)?;
    let header = config.outbox.headers.iter().find(|header| header.value == [Part::EventId]);
    header.map(|header| header.name.clone()).ok_or_else(|| {
        Failed::Configuration(anyhow::anyhow!(
            "Records cannot be matched with events: no header in [outbox.headers] is {{event_id}}. Add event_id = \
             \"{{event_id}}\"."
        ))
    })
}

fn read_error(error: ReadError) -> Failed {
    match error {
        ReadError::Kafka(failure) => one_shot::kafka(&failure),
        ReadError::Denied(_) => Failed::Configuration(error.into()),
        ReadError::Expired(_) | ReadError::Files(_) => Failed::Failure(error.into()),
    }
}
