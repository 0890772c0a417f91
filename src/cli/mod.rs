//! The command line, with one file per subcommand. Only this folder prints or ends the process.

mod arguments;
pub(crate) mod blocked_keys;
pub(crate) mod check_config;
pub mod completions;
pub(crate) mod confirm;
pub(crate) mod dead_letters;
pub mod doctor;
pub mod exit;
pub(crate) mod init;
pub mod log;
pub mod memory;
pub(crate) mod migrate;
mod one_shot;
mod operator;
pub mod panic;
pub(crate) mod pauses;
pub(crate) mod reap;
pub(crate) mod replay;
pub mod run;
pub(crate) mod status;
pub mod terminal;
pub(crate) mod verify;
pub mod version;

use crate::config::{self, Config, DEFAULT_FILE, Findings};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use exit::Failed;
use kafka::library::keep_openssl;
use settings::text;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Publish PostgreSQL outbox events to Apache Kafka.
#[derive(Debug, Parser)]
#[command(name = "outbox-relay", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the relay.
    Run(run::Run),
    /// Create the tables, roles and configuration of a new outbox.
    Init(init::Init),
    /// Create or upgrade the outbox tables.
    Migrate(migrate::Migrate),
    /// Validate the configuration.
    CheckConfig(check_config::CheckConfig),
    /// Show backlog, throughput and problems.
    Status(status::Status),
    /// Diagnose the database, topics and events.
    Doctor(doctor::Doctor),
    /// List, requeue or discard rejected events.
    DeadLetters(dead_letters::DeadLetters),
    /// List and resolve blocked keys.
    BlockedKeys(blocked_keys::BlockedKeys),
    /// Pause publishing: everything, one topic, or one key.
    Pause(pauses::Pause),
    /// Resume publishing.
    Resume(pauses::Resume),
    /// Delete sent rows past retention.
    Reap(reap::Reap),
    /// Publish sent events again.
    Replay(replay::Replay),
    /// Compare the outbox with the records in Kafka.
    Verify(verify::Verify),
    /// Confirm that the outbox has moved to another cluster.
    Confirm(confirm::Confirm),
    /// Print a shell completion script.
    Completions(completions::Completions),
}

/// Names the configuration file. If it is empty, only the environment is used.
pub const CONFIG_VARIABLE: &str = "OUTBOX_RELAY_CONFIG";

// The configuration file. Not a doc comment, which would replace the description of `outbox-relay`.
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
    config: Option<OsString>,
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
    fn target(&self) -> Result<PathBuf, Failed> {
        match &self.config {
            None => Ok(PathBuf::from(DEFAULT_FILE)),
            Some(file) => named(file).ok_or_else(|| {
                Failed::Usage(format!("{CONFIG_VARIABLE} is empty. Name a file with --config, or unset it"))
            }),
        }
    }

    /// The path. If the user did not name the file, prints it on stderr, because other files may belong to other relays.
    fn announced(&self) -> Option<PathBuf> {
        let path = self.path();
        if let (None, Some(file)) = (&self.config, &path) {
            eprintln!("using {}", file.display());
        }
        path
    }

    /// Reads the configuration and prints its warnings.
    pub(crate) fn load(&self) -> Result<Config, Failed> {
        load(self.announced().as_deref())
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

fn loaded(file: Option<&Path>, loaded: Result<Config, Findings>) -> Result<Config, Failed> {
    let config = loaded.map_err(|findings| {
        let hint =
            if file.is_none() { "\nTo write a configuration file, run `outbox-relay init`." } else { "" };
        Failed::Configuration(anyhow::anyhow!("The configuration is invalid.\n{findings}{hint}"))
    })?;
    if !config.warnings.is_empty() {
        terminal::output::note(&config.warnings.to_string());
    }
    Ok(config)
}

/// The command line, from which man pages and completions are generated. `--config` is accepted before the subcommand too.
pub fn command() -> clap::Command {
    ConfigFile::augment_args(Cli::command())
}

/// Parses the arguments. Ends the process for errors, help and version.
fn arguments() -> Cli {
    let matches = command().long_version(version::long()).get_matches();
    let deepest = std::iter::successors(Some(&matches), |matches| Some(matches.subcommand()?.1)).last();
    let file = deepest.and_then(|matches| matches.try_get_one::<OsString>("config").ok().flatten());
    if let Some(file) = file.filter(|file| !file.is_empty()) {
        text::note_config(&file.to_string_lossy());
    }
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// Runs the command that the arguments name.
pub fn main() -> ExitCode {
    panic::abort_on_panic();
    memory::hide();
    keep_openssl();
    let done = match arguments().command {
        Command::Run(run) => run.run(),
        Command::Init(init) => init.run(),
        Command::Migrate(migrate) => migrate.run(),
        Command::CheckConfig(check) => check.run(),
        Command::Status(status) => status.run(),
        Command::Doctor(doctor) => doctor.run(),
        Command::DeadLetters(dead_letters) => dead_letters.run(),
        Command::BlockedKeys(blocked_keys) => blocked_keys.run(),
        Command::Pause(pause) => pause.run(),
        Command::Resume(resume) => resume.run(),
        Command::Reap(reap) => reap.run(),
        Command::Replay(replay) => replay.run(),
        Command::Verify(verify) => verify.run(),
        Command::Confirm(confirm) => confirm.run(),
        Command::Completions(completions) => completions.run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => failed.report(),
    }
}

/// Runs on a runtime with one thread, because the relay's state is shared without locks.
pub fn block_on<T>(work: impl Future<Output = T>) -> Result<T, Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failed::Failure(anyhow::Error::new(error).context("starting the runtime")))?;
    let done = runtime.block_on(tokio::task::LocalSet::new().run_until(work));
    // Give threads that wait for librdkafka a moment to end.
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(done)
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
