//! The verdict in the first line: the state, the reason, and the next command to run.

use super::report::{LocalRelay, Rates};
use crate::config::DEFAULT_FILE;
use postgres::diagnose::status::{BACKLOG_COUNTED_MAX, OutboxStatus};
use postgres::operate::pauses::Scope;
use serde::Serialize;
use settings::text::{counted, in_line, span, thousands};
use std::time::Duration;

/// This many rejected events within ten minutes show that something is wrong with the events or their topic.
const WAVE: i64 = 10;

/// A relay without problems sends every event within this time.
const PROMPT: Duration = Duration::from_secs(10);

/// The state of the outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OutboxState {
    /// Events are sent at once.
    Healthy,
    /// Events wait, but some are sent.
    Behind,
    /// No events are sent, or none would be.
    NotRelaying,
}

impl OutboxState {
    pub(crate) fn words(self) -> &'static str {
        match self {
            OutboxState::Healthy => "healthy",
            OutboxState::Behind => "behind",
            OutboxState::NotRelaying => "not relaying",
        }
    }
}

/// The state and the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Verdict {
    pub(crate) state: OutboxState,
    /// A sentence without a full stop.
    pub(crate) why: String,
    /// The next command to run, if any.
    pub(crate) command: Option<String>,
}

/// What the verdict depends on in addition to the status.
pub(super) struct Circumstances<'a> {
    pub(super) relay_name: &'a str,
    pub(super) pooled: bool,
    pub(super) rates: Option<&'a Rates>,
    /// The relay on this host, if it answers.
    pub(super) here: Option<&'a LocalRelay>,
    /// The age of the oldest sent row, if the reaper should have deleted it.
    pub(super) not_reaped: Option<Duration>,
    /// ` --config FILE`, or nothing.
    pub(super) config: &'a str,
}

/// The verdict: first why nothing is relayed, then what is late, then what waits for an operator.
pub(super) fn verdict(status: &OutboxStatus, circumstances: &Circumstances<'_>) -> Verdict {
    let Circumstances { relay_name, pooled, config, .. } = circumstances;
    let with_command =
        |state, why, command: &str| Verdict { state, why, command: Some(format!("{command}{config}")) };
    if status.relays.is_empty() && !pooled {
        let why = format!("no relay is connected as {relay_name:?}{}", waiting(status));
        let command = start(config);
        return Verdict { state: OutboxState::NotRelaying, why, command: Some(command) };
    }
    if let Some(pause) = status.paused.iter().find(|pause| pause.scope == Scope::Everything) {
        let reason = pause.reason.as_deref().map(|reason| format!(" ({})", in_line(reason, 100)));
        let (by, reason) = (in_line(&pause.role, 63), reason.unwrap_or_default());
        let why = format!("everything is paused by {by}{reason}{}", waiting(status));
        return with_command(OutboxState::NotRelaying, why, "outbox-relay resume");
    }
    // The relay on this host knows the reason, even before events are late.
    if let Some(here) = circumstances.here.filter(|here| !here.ready)
        && !moves(status, circumstances.rates)
    {
        let why = format!("the relay at {} is not ready: {}{}", here.address, here.says, waiting(status));
        return with_command(OutboxState::NotRelaying, why, "outbox-relay doctor");
    }
    if let Some(age) = status.first.age.filter(|age| *age > PROMPT) {
        let late = format!("the oldest event that is ready to be sent is {} old", span(age));
        if moves(status, circumstances.rates) {
            let why = format!("{late}{}{}", of(status), forecast(status, circumstances.rates));
            return with_command(OutboxState::Behind, why, "outbox-relay status --watch");
        }
        let since = status.sent.as_ref().and_then(|sent| sent.latest_age);
        let since = since.map(|age| format!(" for {}", span(age))).unwrap_or_default();
        let why = format!("nothing was sent{since}, and {late}{}", of(status));
        return with_command(OutboxState::NotRelaying, why, "outbox-relay doctor");
    }
    let blocked = counted(status.blocked_keys.unsigned_abs(), "key");
    if let Some(held) = status.held.first() {
        let topics = counted(status.held_topics.unsigned_abs(), "topic");
        let keys = if status.blocked_keys > 0 { format!(" and {blocked} blocked") } else { String::new() };
        let held = format!("{topics} held ({}: {}){keys}", held.topic, held.reason);
        let why = format!("{held}, but other events continue; see below");
        return with_command(OutboxState::Behind, why, "outbox-relay doctor");
    }
    if status.blocked_keys > 0 {
        let why = format!("{blocked} blocked, but other keys continue");
        return with_command(OutboxState::Behind, why, "outbox-relay blocked-keys list");
    }
    if !status.paused.is_empty() {
        let pauses = counted(status.paused.len() as u64, "pause");
        let why = format!("{pauses} active, but other events continue; see below");
        return with_command(OutboxState::Behind, why, "outbox-relay dead-letters history");
    }
    if let Some(why) = wave(status) {
        return with_command(OutboxState::Behind, why, "outbox-relay dead-letters list");
    }
    if let Some(age) = circumstances.not_reaped {
        let why =
            format!("events are sent, but old rows are not deleted: the oldest was sent {} ago", span(age));
        return with_command(OutboxState::Behind, why, "outbox-relay doctor");
    }
    healthy(status, config)
}

/// The command that starts a relay, or shows why the service does not run. The service has the default configuration.
fn start(config: &str) -> String {
    if config.is_empty() || config.contains(DEFAULT_FILE) {
        "systemctl status outbox-relay".to_owned()
    } else {
        format!("outbox-relay run{config}")
    }
}

/// Many recent rejections, and the most frequent reason.
fn wave(status: &OutboxStatus) -> Option<String> {
    let recent: i64 = status.dead_letters.iter().map(|dead| dead.recent).sum();
    let most = status.dead_letters.iter().max_by_key(|dead| dead.recent).filter(|_| recent >= WAVE)?;
    let (events, reason) = (counted(recent.unsigned_abs(), "event"), in_line(&most.reason, 100));
    Some(format!("{events} rejected in the last 10 minutes (most: {reason}), but other events continue"))
}

fn healthy(status: &OutboxStatus, config: &str) -> Verdict {
    let mut why = match status.first.age {
        None => "no events are waiting".to_owned(),
        Some(age) => format!("the oldest waiting event is {} old", span(age)),
    };
    let dead: i64 = status.dead_letters.iter().map(|dead| dead.rows).sum();
    let mut command = None;
    if dead > 0 {
        why.push_str(&format!("; {} to review", counted(dead.unsigned_abs(), "dead letter")));
        command = Some(format!("outbox-relay dead-letters list{config}"));
    }
    Verdict { state: OutboxState::Healthy, why, command }
}

/// Whether events are being sent: during the sample, or recently.
fn moves(status: &OutboxStatus, rates: Option<&Rates>) -> bool {
    let recently = status.sent.as_ref().and_then(|sent| sent.latest_age).is_some_and(|age| age < PROMPT);
    recently || rates.is_some_and(|rates| rates.sent_per_second > 0.0)
}

fn waiting(status: &OutboxStatus) -> String {
    match status.backlog_rows {
        0 => String::new(),
        1 => ", and 1 row waits".to_owned(),
        _ => format!(", and {} wait", rows(status)),
    }
}

fn of(status: &OutboxStatus) -> String {
    format!(" ({} unsent)", rows(status))
}

fn rows(status: &OutboxStatus) -> String {
    let about = if status.backlog_rows > BACKLOG_COUNTED_MAX { "about " } else { "" };
    let plural = if status.backlog_rows == 1 { "row" } else { "rows" };
    format!("{about}{} {plural}", thousands(status.backlog_rows.unsigned_abs() as usize))
}

/// When the backlog would be cleared at this rate.
fn forecast(status: &OutboxStatus, rates: Option<&Rates>) -> String {
    let Some(rates) = rates else { return String::new() };
    let net = rates.sent_per_second - rates.inserted_per_second;
    if net <= 0.0 {
        return "; the backlog is growing".to_owned();
    }
    let left = Duration::try_from_secs_f64(status.backlog_rows as f64 / net).unwrap_or(Duration::MAX);
    format!("; at this rate it clears in about {}", span(Duration::from_secs(left.as_secs().max(1))))
}

#[cfg(test)]
mod tests;
