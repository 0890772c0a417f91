//! The command line, with one file per subcommand. Only this folder prints or ends the process.

pub(crate) mod blocked_keys;
pub(crate) mod check_config;
pub mod completions;
pub(crate) mod dead_letters;
pub(crate) mod doctor;
pub mod exit;
pub mod log;
pub(crate) mod migrate;
mod one_shot;
mod operator;
pub mod output;
pub mod panic;
pub(crate) mod pauses;
pub(crate) mod reap;
mod reload;
pub mod run;
mod selection;
pub(crate) mod status;
mod systemd;
pub mod version;

use crate::config::{self, Config, Findings};
use crate::kafka::library::keep_openssl;
use crate::kafka::properties::check;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use exit::Failed;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Publish events from a PostgreSQL outbox table to Apache Kafka.
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
    /// Print a shell completion script.
    Completions(completions::Completions),
}

/// The configuration file.
#[derive(Clone, Debug, Args)]
pub struct ConfigFile {
    /// Configuration file. Environment variables named OUTBOX_RELAY__SECTION__KEY override its settings. Without a
    /// file, they must provide all required settings.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ConfigFile {
    /// The path, if one was given.
    pub fn path(&self) -> Option<PathBuf> {
        self.config.clone()
    }

    /// Reads the configuration and prints its warnings.
    pub fn load(&self) -> Result<Config, Failed> {
        loaded(config::load(self.config.as_deref(), config::environment(), check))
    }

    /// As [`ConfigFile::load`], for a command that does not use Kafka. Its user may not be allowed to read the Kafka secrets.
    pub(crate) fn load_for_database(&self) -> Result<Config, Failed> {
        loaded(config::load_for_database(self.config.as_deref(), config::environment(), check))
    }
}

fn loaded(loaded: Result<Config, Findings>) -> Result<Config, Failed> {
    let config = loaded.map_err(|findings| {
        Failed::Configuration(anyhow::anyhow!("The configuration is invalid.\n{findings}"))
    })?;
    if !config.warnings.is_empty() {
        eprintln!("{}", config.warnings);
    }
    Ok(config)
}

/// The command line, from which man pages and completions are generated.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Parses the arguments. Ends the process for errors, help and version.
fn arguments() -> Cli {
    let matches = command().long_version(version::long()).get_matches();
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// Runs the command that the arguments name.
pub fn main() -> ExitCode {
    panic::abort_on_panic();
    keep_openssl();
    let done = match arguments().command {
        Command::Run(run) => run.run(),
        Command::Migrate(migrate) => migrate.run(),
        Command::CheckConfig(check) => check.run(),
        Command::Status(status) => status.run(),
        Command::Doctor(doctor) => doctor.run(),
        Command::DeadLetters(dead_letters) => dead_letters.run(),
        Command::BlockedKeys(blocked_keys) => blocked_keys.run(),
        Command::Pause(pause) => pause.run(),
        Command::Resume(resume) => resume.run(),
        Command::Reap(reap) => reap.run(),
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
