//! The verdict in the first line: the state, the reason, and the next command to run.

use super::Report;
use crate::config::{DEFAULT_FILE, unit};
use postgres::diagnose::status::DeadLetters;
use postgres::operate::pauses::Scope;
use serde::Serialize;
use settings::text::{counted, in_line, span, thousands};
use std::time::Duration;

/// This many rejected events within ten minutes show that something is wrong with the events or their topic.
const WAVE: i64 = 10;

/// A relay without problems sends every event within this time.
pub(super) const PROMPT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OutboxState {
    /// Events are sent at once.
    #[default]
    Healthy,
    /// Events wait, but some are sent, or nothing has been measured yet.
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

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Verdict {
    pub(crate) state: OutboxState,
    /// A sentence without a full stop.
    pub(crate) why: String,
    /// The next command to run, if any.
    pub(crate) command: Option<String>,
}

/// The verdict: first why nothing is relayed, then what is late, then what waits for an operator. `config` is
/// ` --config FILE`, or nothing.
pub(super) fn verdict(report: &Report, config: &str) -> Verdict {
    let Report { relays, .. } = report;
    let with_command =
        |state, why, command: &str| Verdict { state, why, command: Some(format!("{command}{config}")) };
    if relays.at_work.is_empty() && !relays.pooled {
        let why = format!("no relay is connected as {:?}{}", relays.application_name, waiting(report));
        return Verdict { state: OutboxState::NotRelaying, why, command: Some(start(config)) };
    }
    if let Some(pause) = report.paused.iter().find(|pause| pause.scope == Scope::Everything) {
        let reason = pause.reason.as_deref().map(|reason| format!(" ({})", in_line(reason, 100)));
        let (by, reason) = (in_line(&pause.role, 63), reason.unwrap_or_default());
        let why = format!("everything is paused by {by}{reason}{}", waiting(report));
        return with_command(OutboxState::NotRelaying, why, "outbox-relay resume");
    }
    // The relay on this host knows the reason, even before events are late.
    if let Some(here) = relays.here.as_ref().filter(|here| !here.ready)
        && !moves(report)
    {
        let why = format!("the relay at {} is not ready: {}{}", here.address, here.says, waiting(report));
        return with_command(OutboxState::NotRelaying, why, "outbox-relay doctor");
    }
    if let Some(age) = report.backlog.first.age.filter(|age| *age > PROMPT) {
        let late = format!("the oldest event that is ready to be sent is {} old", span(age));
        // Only the rates show what was sent if rows are deleted, or if the latest sent rows are far from the first unsent one. The
        // first report has none.
        if moves(report) || report.rates.is_none() {
            let why = format!("{late}{}{}", of(report), forecast(report));
            return with_command(OutboxState::Behind, why, "outbox-relay status --watch");
        }
        let since = last_sent(report).map(|age| format!(" for {}", span(age))).unwrap_or_default();
        let why = format!("nothing was sent{since}, and {late}{}", of(report));
        return with_command(OutboxState::NotRelaying, why, "outbox-relay doctor");
    }
    let blocked = counted(report.blocked_keys.keys.unsigned_abs(), "key");
    if let Some(held) = report.held_topics.first() {
        let topics = counted(report.held_topics_total.unsigned_abs(), "topic");
        let keys =
            if report.blocked_keys.keys > 0 { format!(" and {blocked} blocked") } else { String::new() };
        let (topic, reason) = (in_line(&held.topic, 249), in_line(&held.reason, 100));
        let why = format!("{topics} held ({topic}: {reason}){keys}, but other events continue; see below");
        return with_command(OutboxState::Behind, why, "outbox-relay doctor");
    }
    if report.blocked_keys.keys > 0 {
        let why = format!("{blocked} blocked, but other keys continue");
        return with_command(OutboxState::Behind, why, "outbox-relay blocked-keys list");
    }
    if !report.paused.is_empty() {
        let pauses = counted(report.paused_total.unsigned_abs(), "pause");
        let why = format!("{pauses} active, but other events continue; see below");
        return with_command(OutboxState::Behind, why, "outbox-relay dead-letters history");
    }
    if let Some(why) = wave(report) {
        return with_command(OutboxState::Behind, why, "outbox-relay dead-letters list");
    }
    if let Some(age) = report.reaper.oldest_sent.filter(|_| report.reaper.enabled && report.reaper.behind) {
        let why =
            format!("events are sent, but old rows are not deleted: the oldest was sent {} ago", span(age));
        return with_command(OutboxState::Behind, why, "outbox-relay doctor");
    }
    healthy(report, config)
}

/// The command that starts a relay, or shows why the unit of this configuration does not run.
fn start(config: &str) -> String {
    let unit = unit(config.strip_prefix(" --config ").unwrap_or(DEFAULT_FILE));
    unit.map_or_else(|| format!("outbox-relay run{config}"), |unit| format!("systemctl status {unit}"))
}

/// Many recent rejections, and the most frequent reason.
fn wave(report: &Report) -> Option<String> {
    let DeadLetters { recent, by_reason, .. } = &report.dead_letters;
    let most = by_reason.iter().max_by_key(|dead| dead.recent).filter(|_| *recent >= WAVE)?;
    let (events, reason) = (counted(recent.unsigned_abs(), "event"), in_line(&most.reason, 100));
    Some(format!("{events} rejected in the last 10 minutes (most: {reason}), but other events continue"))
}

fn healthy(report: &Report, config: &str) -> Verdict {
    let mut why = match report.backlog.first.age {
        None if report.backlog.first.free > 0 => {
            "events are waiting, but none has a finite created_at".to_owned()
        }
        None => "no events are waiting".to_owned(),
        Some(age) => format!("the oldest waiting event is {} old", span(age)),
    };
    let dead = report.dead_letters.rows;
    let mut command = None;
    if dead > 0 {
        why.push_str(&format!("; {} to review", counted(dead.unsigned_abs(), "dead letter")));
        command = Some(format!("outbox-relay dead-letters list{config}"));
    }
    Verdict { state: OutboxState::Healthy, why, command }
}

/// Whether events are being sent: during the sample, or recently.
fn moves(report: &Report) -> bool {
    last_sent(report).is_some_and(|age| age < PROMPT)
        || report.rates.as_ref().is_some_and(|rates| rates.sent_per_second > 0.0)
}

/// The time since the latest event was sent.
fn last_sent(report: &Report) -> Option<Duration> {
    report.latency.as_ref()?.latest_age
}

fn waiting(report: &Report) -> String {
    match report.backlog.rows {
        0 => String::new(),
        1 => ", and 1 row waits".to_owned(),
        _ => format!(", and {} wait", rows(report)),
    }
}

fn of(report: &Report) -> String {
    format!(" ({} unsent)", rows(report))
}

fn rows(report: &Report) -> String {
    let about = if report.backlog.estimated { "about " } else { "" };
    let plural = if report.backlog.rows == 1 { "row" } else { "rows" };
    format!("{about}{} {plural}", thousands(report.backlog.rows.unsigned_abs() as usize))
}

/// When the backlog would be cleared at this rate.
fn forecast(report: &Report) -> String {
    let Some(rates) = &report.rates else { return String::new() };
    let net = rates.sent_per_second - rates.inserted_per_second;
    if net <= 0.0 {
        return if net < 0.0 { "; the backlog is growing" } else { "" }.to_owned();
    }
    let left = Duration::try_from_secs_f64(report.backlog.rows as f64 / net).unwrap_or(Duration::MAX);
    format!("; at this rate it clears in about {}", span(Duration::from_secs(left.as_secs().max(1))))
}

#[cfg(test)]
mod tests;
