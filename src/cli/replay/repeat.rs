//! What an operator needs to repeat or continue a replay that did not finish.

use super::{REASON, Replay};
use crate::cli::exit::Failed;
use crate::cli::run::Signals;
use crate::cli::terminal::output::{counted, note};
use humantime::format_rfc3339_micros;
use postgres::operate::sent::SentSelection;
use std::cell::Cell;
use uuid::Uuid;

/// Runs until the work is done. After the first signal, the work must end with the current batch; after the second one, it is
/// dropped.
pub(super) async fn until_stopped(
    work: impl Future<Output = Result<(), Failed>>,
    is_stopped: &Cell<bool>,
) -> Result<(), Failed> {
    let mut signals = Signals::new()?;
    let twice = async {
        signals.next().await;
        is_stopped.set(true);
        eprintln!("signal received, finishing the current batch");
        signals.next().await;
    };
    tokio::select! {
        biased;
        done = work => done,
        () = twice => Err(Failed::Failure(anyhow::anyhow!("A second signal ended the command during a batch"))),
    }
}

impl Replay {
    /// The command that publishes the rest. Durations are relative to each run, so it has absolute times. Copies start again
    /// from the first event, because no row shows that it was copied.
    pub(super) fn rest(&self, selection: &SentSelection, done: u64) -> Rest {
        let done = if self.to_topic.is_some() { 0 } else { done };
        let mut command = "outbox-relay replay".to_owned();
        let mut add = |name: &str, value: Option<String>| {
            command += &value.map_or_else(String::new, |value| option(name, &value));
        };
        add("config", self.config.config.as_ref().map(|file| file.to_string_lossy().into_owned()));
        let time = |at: Option<_>| at.map(|at| format_rfc3339_micros(at).to_string());
        add("since", time(selection.since));
        add("until", time(selection.until));
        add("sent-before", time(selection.sent_before));
        let filters = &self.filters;
        add("topic", filters.topic.clone());
        add("key", filters.key.clone());
        let ids: Vec<String> = filters.event_id.iter().map(Uuid::to_string).collect();
        add("event-id", (!ids.is_empty()).then(|| ids.join(",")));
        add("limit", self.options.limit.map(|limit| u64::from(limit).saturating_sub(done).to_string()));
        add("rate", self.rate.map(|rate| rate.to_string()));
        add("to-topic", self.to_topic.clone());
        add("reason", Some(self.reason.clone()).filter(|reason| reason != REASON));
        let flags = [("created", filters.created), ("all", self.options.all), ("json", self.options.json)];
        for (name, _) in flags.iter().filter(|(_, is_set)| *is_set) {
            command += &format!(" --{name}");
        }
        Rest { command, is_copy: self.to_topic.is_some() }
    }
}

/// How to publish the rest.
pub(super) struct Rest {
    command: String,
    is_copy: bool,
}

impl Rest {
    /// Prints it before the first event, because a lost connection or a SIGKILL leaves no time for it.
    pub(super) fn announce(&self) {
        match self.is_copy {
            false => note(&format!("To continue if this is interrupted, run:\n  {}", self.command)),
            true => {
                note(&format!(
                    "To publish all events again if this is interrupted, run:\n  {}",
                    self.command
                ));
            }
        }
    }

    /// Adds what was done to an error, and how to continue.
    pub(super) fn explain(&self, failed: Failed, done: u64) -> Failed {
        if done == 0 {
            return failed;
        }
        let explain = |error: anyhow::Error| {
            let (error, done) = (format!("{error:#}"), counted(done, "event"));
            let error = error.trim_end_matches('.');
            let (what, how) = match self.is_copy {
                false => ("set back to unsent", "To continue"),
                true => ("published", "To publish all events again"),
            };
            anyhow::anyhow!("{error}. {done} had been {what} and recorded. {how}, run: {}", self.command)
        };
        match failed {
            Failed::Failure(error) => Failed::Failure(explain(error)),
            Failed::Unavailable(error) => Failed::Unavailable(explain(error)),
            Failed::Configuration(error) => Failed::Configuration(explain(error)),
            usage @ Failed::Usage(_) => usage,
        }
    }
}

/// An option as a shell reads it.
fn option(name: &str, value: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.,:/@%+=".contains(&byte);
    // A value that begins with a hyphen could be taken for an option.
    let between = if value.starts_with('-') { '=' } else { ' ' };
    if !value.is_empty() && value.bytes().all(is_plain) {
        return format!(" --{name}{between}{value}");
    }
    format!(" --{name}{between}'{}'", value.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::time::{Duration, SystemTime};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        replay: Replay,
    }

    fn replay(args: &[&str]) -> Replay {
        Line::parse_from([&["replay"], args].concat()).replay
    }

    fn rest(args: &[&str], done: u64) -> String {
        let (replay, now) = (replay(args), SystemTime::UNIX_EPOCH + Duration::from_secs(86_400));
        let Ok(selection) = replay.filters.selection(now, now) else { panic!("{args:?}") };
        replay.rest(&selection, done).command
    }

    #[test]
    fn rest_has_absolute_times_and_every_option() {
        let filters = ["--config", "my config.toml", "--since", "2h", "--until", "1h", "--created"];
        assert_eq!(
            rest(&[&filters[..], &["--topic", "events.order", "--key=-1'", "--limit", "9"]].concat(), 4),
            "outbox-relay replay --config 'my config.toml' --since 1970-01-01T22:00:00.000000Z --until \
             1970-01-01T23:00:00.000000Z --sent-before 1970-01-02T00:00:00.000000Z --topic events.order \
             --key='-1'\\''' --limit 5 --created"
        );
        let id = "0199d6c1-3a52-7b1e-9c55-0a4f0d6f3b7e";
        let others = ["--config", "c", "--event-id", id, "--rate", "5", "--reason", "a b", "--json"];
        assert_eq!(
            rest(&others, 4),
            format!(
                "outbox-relay replay --config c --sent-before 1970-01-02T00:00:00.000000Z --event-id {id} --rate 5 \
                 --reason 'a b' --json"
            )
        );
        let copy = rest(&["--config", "c", "--all", "--to-topic", "backfill", "--limit", "9"], 4);
        assert_eq!(
            copy,
            "outbox-relay replay --config c --sent-before 1970-01-02T00:00:00.000000Z --limit 9 --to-topic backfill --all"
        );
    }
}
