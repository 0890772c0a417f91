//! The frame of the commands. A command is its arguments, its work, and what it prints. The frame does the rest:
//! [`ConfigFile`] reads the settings, [`on_outbox`] connects, checks the schema and the privileges, and runs the work, and
//! `Failed` is the exit code with the error. `output` prints the result as text or JSON.

use super::failed::Failed;
use super::output;
use super::run::recorded::explained;
use crate::config::{self, Config, DEFAULT_FILE, Findings, OnSent, Postgres};
use crate::supervisor;
use anyhow::{Context, Error};
use clap::Args;
use postgres::access::grants::Privilege;
use postgres::connection::exec::ShortTransaction;
use postgres::connection::pool::{Database, monitoring_settings};
use postgres::operate::sent::PostgresHistory;
use postgres::schema::check::Facts;
use postgres::schema::identity::{self, Identity};
use postgres::table::TableName;
use relay::failure::FaultKind;
use relay::health::stats::Stats;
use relay::topic::TopicRules;
use settings::text::in_line;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Names the configuration file. If it is empty, only the environment is used.
pub const CONFIG_VARIABLE: &str = "OUTBOX_RELAY_CONFIG";

// The configuration file, before or after the command. Not a doc comment, which would replace the description of `outbox-relay`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ConfigFile {
    /// Configuration file [default: /etc/outbox-relay/config.toml, if it exists]. Environment variables named
    /// OUTBOX_RELAY__SECTION__KEY override its settings. Without a file, they must provide all required settings.
    #[arg(
        short,
        long,
        global = true,
        value_name = "FILE",
        env = CONFIG_VARIABLE,
        hide_env_values = true
    )]
    pub(super) config: Option<OsString>,
}

impl ConfigFile {
    /// The path, if there is a file.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        match &self.config {
            Some(file) => named(file),
            None => existing(Path::new(DEFAULT_FILE)),
        }
    }

    /// The path of the file that `init` writes.
    pub(super) fn target(&self) -> Result<PathBuf, Failed> {
        match &self.config {
            None => Ok(PathBuf::from(DEFAULT_FILE)),
            Some(file) => named(file).ok_or_else(|| {
                Failed::Usage(format!("{CONFIG_VARIABLE} is empty. Name a file with --config, or unset it"))
            }),
        }
    }

    /// The path. If the user did not name the file, prints it on stderr, because other files may belong to other relays.
    pub(crate) fn announced(&self) -> Option<PathBuf> {
        let path = self.path();
        if let (None, Some(file)) = (&self.config, &path) {
            output::note_with_priority(6, &format!("using {}", file.display()));
        }
        path
    }

    /// Reads the configuration and prints its warnings.
    pub(crate) fn load(&self) -> Result<Config, Failed> {
        load(self.announced().as_deref())
    }

    /// Reads the configuration. The caller prints its name and its warnings when it knows the format of the log.
    pub(crate) fn read(&self) -> Result<Config, Failed> {
        let file = self.path();
        valid(file.as_deref(), config::load(file.as_deref(), config::environment()))
    }

    /// Like [`ConfigFile::load`], for a command that does not use Kafka. Its user may not be allowed to read the Kafka secrets.
    pub(crate) fn load_for_database(&self) -> Result<Config, Failed> {
        let file = self.announced();
        loaded(file.as_deref(), config::load_for_database(file.as_deref(), config::environment()))
    }
}

/// The file with this name. Without a name, only the environment is used.
pub fn named(file: &OsStr) -> Option<PathBuf> {
    (!file.is_empty()).then(|| file.into())
}

/// A file that cannot be accessed counts as existing, because reading it then fails with the reason.
fn existing(file: &Path) -> Option<PathBuf> {
    (!matches!(file.try_exists(), Ok(false))).then(|| file.to_owned())
}

/// Reads this configuration file, if any, and the environment. Prints the warnings.
pub fn load(file: Option<&Path>) -> Result<Config, Failed> {
    loaded(file, config::load(file, config::environment()))
}

pub(super) fn loaded(file: Option<&Path>, loaded: Result<Config, Findings>) -> Result<Config, Failed> {
    let config = valid(file, loaded)?;
    print_warnings(&config);
    Ok(config)
}

fn valid(file: Option<&Path>, loaded: Result<Config, Findings>) -> Result<Config, Failed> {
    loaded.map_err(|findings| {
        let hint =
            if file.is_none() { "\nTo write a configuration file, run `outbox-relay init`." } else { "" };
        Failed::configuration(format!("The configuration is invalid.\n{findings}{hint}"))
    })
}

pub(crate) fn print_warnings(config: &Config) {
    config.warnings.iter().for_each(|warning| output::note_with_priority(4, &warning.to_string()));
}

/// Runs on a runtime with one thread, because the relay's state is shared without locks.
pub fn block_on<T>(work: impl Future<Output = T>) -> Result<T, Failed> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    let done = runtime.block_on(tokio::task::LocalSet::new().run_until(work));
    // Give threads that wait for librdkafka a moment to end.
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(done)
}

/// A pool of up to `connections`. They have a name other than the relay's, because `status` finds relays by their name.
pub(crate) fn database(config: &Config, connections: usize) -> Result<Database, Failed> {
    let (_, mut settings) = renamed(config, "command")?;
    settings.prepared_statements = config.postgres.prepared_statements;
    Ok(Database::new(&settings, connections, Arc::new(Stats::new()))?)
}

/// For a command that only examines the database: a pool of two connections under a name other than the relay's.
pub(crate) fn monitoring_database(config: &Config, command: &str) -> Result<Database, Failed> {
    Ok(Database::new(&renamed(config, command)?.1, 2, Arc::new(Stats::new()))?)
}

/// The `application_name` of relays, and the settings with which a command connects.
pub(crate) fn renamed(config: &Config, purpose: &str) -> Result<(String, Postgres), Failed> {
    monitoring_settings(&config.postgres, purpose).map_err(|error| Failed::Unavailable(Error::new(error)))
}

/// Prints how the schema differs from that of this version.
pub(crate) fn warn_of(difference: Option<&str>) {
    if let Some(difference) = difference {
        output::aside(format_args!("warning: {}", in_line(difference, usize::MAX)));
    }
}

/// The outbox of a command, connected and checked.
pub(crate) struct Outbox<'a> {
    pub config: &'a Config,
    pub database: Database,
    pub facts: Facts,
}

/// Runs the work of a command on the configured outbox. Before that, runs the checks of a relay at start for a command that
/// needs these privileges instead of the relay's: the error has a GRANT statement for each missing one. On a schema of another
/// version, prints a warning.
pub(crate) fn on_outbox<T>(
    config: &Config,
    privileges: &[Privilege],
    work: impl AsyncFnOnce(Outbox<'_>) -> Result<T, Failed>,
) -> Result<T, Failed> {
    block_on(async {
        let database = database(config, 1)?;
        let facts = supervisor::check_schema(config, &database, Some(privileges)).await?;
        warn_of(facts.difference.as_deref());
        work(Outbox { config, database, facts }).await
    })?
}

impl Outbox<'_> {
    pub(crate) fn table(&self) -> TableName {
        self.config.outbox.table.clone()
    }

    pub(crate) fn topics(&self) -> TopicRules {
        self.facts.topics(&self.config.outbox)
    }

    pub(crate) fn history(&self) -> PostgresHistory {
        PostgresHistory::new(self.database.clone(), self.table(), self.topics(), self.facts.payload)
    }

    /// What differs if the database, or the Kafka cluster with this ID, is not the one that the outbox belongs to. Nothing is
    /// known without the privilege to read what is recorded.
    pub(crate) async fn other_clusters(&self, kafka: Option<String>) -> Result<Option<String>, Failed> {
        let transaction = ShortTransaction::reading(self.database.clone());
        let recorded = match identity::recorded(&transaction, &self.config.outbox.table).await {
            Err(refused) if refused.kind == FaultKind::Refused => return Ok(None),
            recorded => recorded?,
        };
        let mismatches =
            recorded.mismatches(&Identity { system: identity::system(&self.database).await?, kafka });
        Ok((!mismatches.is_empty()).then(|| explained(&mismatches)))
    }

    /// Fails if the outbox belongs to other clusters, because no relay would publish it here.
    pub(crate) async fn check_clusters(&self, kafka: Option<String>) -> Result<(), Failed> {
        self.other_clusters(kafka).await?.map_or(Ok(()), |problem| Err(Failed::configuration(problem)))
    }
}

/// For a command that needs sent events.
pub(crate) fn keeps_history(config: &Config) -> Result<(), Failed> {
    match config.outbox.on_sent {
        OnSent::Mark => Ok(()),
        OnSent::Delete => Err(Failed::configuration(
            "There are no sent events: [outbox] on_sent = \"delete\" deletes each event as soon as it is sent. Set on_sent = \
             \"mark\" to keep them for [reaper] retention.",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::existing;

    #[test]
    fn default_file_is_read_if_it_exists_or_cannot_be_accessed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        assert_eq!(existing(&file), None);
        std::fs::write(&file, "").unwrap();
        assert_eq!(existing(&file), Some(file.clone()));
        // Below a file, nothing can be accessed.
        assert_eq!(existing(&file.join("below")), Some(file.join("below")));
    }
}
