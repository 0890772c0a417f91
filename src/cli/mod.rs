//! The command line. A command is one file or folder here; `frame` is what they share. Only this folder prints or ends the
//! process.

mod arguments;
mod check_config;
mod confirm;
pub mod doctor;
pub mod failed;
pub mod frame;
mod init;
pub mod log;
mod migrate;
pub mod output;
mod pauses;
mod reap;
mod rejected;
mod replay;
pub mod run;
pub(crate) mod status;
mod verify;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::{Shell, generate};
use frame::ConfigFile;
use kafka::client;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use settings::text;
use std::env;
use std::process::ExitCode;
use std::sync::LazyLock;

/// Publish PostgreSQL outbox events to Apache Kafka.
#[derive(Debug, Parser)]
#[command(name = "outbox-relay", version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    config: ConfigFile,
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
    #[command(subcommand, after_help = include_str!("help/dead-letters.txt").trim_ascii_end())]
    DeadLetters(rejected::DeadLetters),
    /// List and resolve blocked keys.
    #[command(subcommand, after_help = include_str!("help/blocked-keys.txt").trim_ascii_end())]
    BlockedKeys(rejected::BlockedKeys),
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
    #[command(after_help = include_str!("help/completions.txt").trim_ascii_end())]
    Completions {
        /// Shell to generate the script for.
        shell: Shell,
    },
}

/// Runs the command that the arguments name.
pub fn main() -> ExitCode {
    log::abort_on_panic();
    hide_memory();
    client::keep_openssl();
    let Cli { config, command } = arguments();
    let done = match command {
        Command::Run(run) => run.run(&config),
        Command::Init(init) => init.run(),
        Command::Migrate(migrate) => migrate.run(&config),
        Command::CheckConfig(check) => check.run(&config),
        Command::Status(status) => status.run(&config),
        Command::Doctor(doctor) => doctor.run(&config),
        Command::DeadLetters(dead_letters) => dead_letters.run(&config),
        Command::BlockedKeys(blocked_keys) => blocked_keys.run(&config),
        Command::Pause(pause) => pause.run(&config),
        Command::Resume(resume) => resume.run(&config),
        Command::Reap(reap) => reap.run(&config),
        Command::Replay(replay) => replay.run(&config),
        Command::Verify(verify) => verify.run(&config),
        Command::Confirm(confirm) => confirm.run(&config),
        Command::Completions { shell } => {
            output::unchanged(completions(shell, &mut self::command(), "outbox-relay"))
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => failed.report(),
    }
}

/// The command line, from which man pages and completions are generated.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Parses the arguments. Ends the process for errors, help and version.
fn arguments() -> Cli {
    let matches = command().long_version(long_version()).get_matches();
    let arguments = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    if let Some(file) = arguments.config.config.as_ref().filter(|file| !file.is_empty()) {
        text::note_config(&file.to_string_lossy());
    }
    arguments
}

/// Set to `1` to allow core dumps and debuggers.
const CORE_VARIABLE: &str = "OUTBOX_RELAY_ALLOW_CORE_DUMPS";

/// Makes the process, whose memory contains secrets and payloads, not dumpable: the kernel writes no core dump, and other
/// processes of the same user can neither attach a debugger nor read `/proc/PID/mem` and `/proc/PID/environ`. A program that it
/// starts is dumpable again.
fn hide_memory() {
    if env::var_os(CORE_VARIABLE).is_some_and(|value| value == "1") {
        return;
    }
    // It fails only if a filter of system calls forbids it. The limit of the service, LimitCORE=0, remains.
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        output::aside(format_args!("warning: cannot disable core dumps, which contain secrets: {error}"));
    }
}

/// The completion script of a program with this command line and name.
pub fn completions(shell: Shell, command: &mut clap::Command, name: &str) -> String {
    let mut script = Vec::new();
    generate(shell, command, name, &mut script);
    // Works around clap_complete 4.6.11, which writes the hyphen of the name in two ways, so that bash finds no subcommand.
    let (written, correct) = (name.replace('-', "__subcmd__"), name.replace('-', "__"));
    String::from_utf8_lossy(&script).replace(&written, &correct)
}

const COMPRESSIONS: [&str; 4] = ["gzip", "snappy", "lz4", "zstd"];

/// The output of `--version`, for bug reports: the version, then one line each about the build and the libraries.
pub fn long_version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let features = client::features();
        let compressions = features.iter().filter(|feature| COMPRESSIONS.contains(&feature.as_str()));
        let has_tls = features.iter().any(|feature| feature == "ssl");
        let (compiler, target) = (env!("OUTBOX_RELAY_BUILT_BY"), env!("OUTBOX_RELAY_BUILT_FOR"));
        let mut text = env!("CARGO_PKG_VERSION").to_owned();
        for (name, value) in [
            ("commit", option_env!("OUTBOX_RELAY_BUILT_FROM").unwrap_or("unknown")),
            ("built", &format!("by {compiler} for {target}")),
            ("librdkafka", &client::version()),
            ("TLS", if has_tls { openssl::version::version() } else { "none" }),
            ("SASL", &words(features.iter().filter_map(|feature| mechanism(feature)))),
            ("AWS IAM", if cfg!(feature = "aws") { "built in" } else { "not built in" }),
            ("compression", &words(compressions.cloned())),
        ] {
            text += &format!("\n{name:<12}{value}");
        }
        text + if cfg!(feature = "fail-points") { "\nfor tests   fail points" } else { "" }
    });
    &TEXT
}

fn words(words: impl Iterator<Item = String>) -> String {
    let words: Vec<_> = words.collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

/// The SASL mechanisms of a feature, as values of `sasl.mechanism`.
fn mechanism(feature: &str) -> Option<String> {
    match feature.strip_prefix("sasl_")? {
        "scram" => Some("SCRAM-SHA-256, SCRAM-SHA-512".to_owned()),
        other => Some(other.to_uppercase()),
    }
}
