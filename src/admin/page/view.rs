//! The content of the page as text. The template escapes all of it.

use super::chart::{Chart, charts};
use super::facts::{CURRENT, FRESH, Known};
use super::history::{Interval, SAMPLE_EVERY};
use super::style::STYLE;
use super::tables::{self, Table};
use crate::config::{Config, SettingInForce};
use crate::status::report::{LocalRelay, Report};
use crate::status::verdict::{OutboxState, Verdict};
use askama::Template;
use postgres::diagnose::status::LaneStatus;
use relay::health::stats::Stats;
use relay::lanes::LANES;
use settings::text::{command, rate, seconds, span, thousands, time};
use std::time::{Duration, SystemTime};

/// An unsent event that is older is late.
const LATE: Duration = Duration::from_secs(10);

/// Everything that a page shows.
pub(super) struct Shown<'a> {
    pub(super) known: &'a Known,
    pub(super) here: LocalRelay,
    pub(super) stats: &'a Stats,
    pub(super) intervals: &'a [Interval],
    pub(super) config: &'a Config,
    pub(super) shows_keys: bool,
    pub(super) refreshes: bool,
    pub(super) now: SystemTime,
}

#[derive(Template)]
#[template(path = "page.html")]
pub(super) struct View {
    style: &'static str,
    refresh_seconds: Option<u64>,
    table: String,
    version: &'static str,
    now: String,
    /// The age of the figures of the database, if they are older than a refresh.
    age: Option<String>,
    verdict: Banner,
    notices: Vec<Notice>,
    figures: Vec<Figure>,
    charts: Vec<Chart>,
    lanes: Option<Lanes>,
    waiting: Vec<Table>,
    relays: Option<Table>,
    outbox: Option<Table>,
    settings: Vec<SettingsOf>,
}

/// The verdict. The symbol repeats the word for readers who do not see colors.
struct Banner {
    class: &'static str,
    symbol: &'static str,
    words: &'static str,
    why: String,
    command: Option<String>,
}

struct Notice {
    title: &'static str,
    text: String,
}

struct Figure {
    name: &'static str,
    value: String,
    note: String,
    /// Needs attention.
    is_raised: bool,
}

struct Lanes {
    summary: String,
    cells: Vec<Cell>,
}

struct Cell {
    x: usize,
    y: usize,
    class: &'static str,
    label: String,
    title: String,
}

/// The settings of one section.
struct SettingsOf {
    section: &'static str,
    settings: Vec<SettingInForce>,
}

impl View {
    pub(super) fn new(shown: &Shown<'_>) -> View {
        let snapshot = shown.known.last.as_deref();
        let report = snapshot.map(|snapshot| &snapshot.report);
        View {
            style: STYLE,
            refresh_seconds: shown.refreshes.then_some(SAMPLE_EVERY.as_secs()),
            table: shown.config.outbox.table.to_string(),
            version: env!("CARGO_PKG_VERSION"),
            now: tables::utc(&time(shown.now)),
            age: shown.age().filter(|age| (FRESH..=CURRENT).contains(age)).map(span),
            verdict: Banner::new(shown),
            notices: notices(shown),
            figures: figures(shown, report),
            charts: charts(shown.intervals),
            lanes: snapshot.map(|snapshot| Lanes::new(&snapshot.lanes)),
            waiting: report.map(|report| tables::waiting(report, shown.shows_keys)).unwrap_or_default(),
            relays: report.map(tables::relays),
            outbox: report.map(tables::outbox),
            settings: settings(shown.config),
        }
    }
}

impl Shown<'_> {
    /// The age of the result of the database.
    fn age(&self) -> Option<Duration> {
        let snapshot = self.known.last.as_ref()?;
        Some(self.now.duration_since(snapshot.read_at).unwrap_or_default())
    }

    /// The verdict of `status`, if the result of the database is current.
    fn verdict(&self) -> Option<&Verdict> {
        let is_current = self.known.fault.is_none() && self.age().is_some_and(|age| age <= CURRENT);
        self.known.last.as_ref().filter(|_| is_current).map(|snapshot| &snapshot.report.verdict)
    }
}

impl Banner {
    fn new(shown: &Shown<'_>) -> Banner {
        if let Some(Verdict { state, why, command }) = shown.verdict() {
            let (class, symbol) = match state {
                OutboxState::Healthy => ("healthy", "✓"),
                OutboxState::Behind => ("behind", "!"),
                OutboxState::NotRelaying => ("stopped", "✕"),
            };
            let (why, command) = (why.clone(), command.clone());
            return Banner { class, symbol, words: state.words(), why, command };
        }
        if shown.here.ready {
            let why = "the relay is ready, but PostgreSQL did not report the state of the outbox".to_owned();
            return Banner { class: "unknown", symbol: "?", words: "unknown", why, command: None };
        }
        let why = format!("the relay at {} is not ready: {}", shown.here.address, shown.here.says);
        let words = OutboxState::NotRelaying.words();
        Banner { class: "stopped", symbol: "✕", words, why, command: Some(command("doctor")) }
    }
}

/// What is wrong with this relay or this page, in addition to the verdict.
fn notices(shown: &Shown<'_>) -> Vec<Notice> {
    let mut notices = Vec::new();
    let in_verdict = shown.verdict().is_none_or(|verdict| verdict.why.contains(&shown.here.says));
    if !shown.here.ready && !in_verdict {
        notices.push(Notice { title: "This relay is not ready", text: shown.here.says.clone() });
    }
    let age = shown.age();
    let shown_is = match age {
        Some(age) => format!("The outbox figures are {} old.", span(age)),
        None => "The state of the outbox is unknown.".to_owned(),
    };
    match &shown.known.fault {
        Some(fault) => {
            let text = format!("{shown_is} PostgreSQL: {fault}");
            notices.push(Notice { title: "The database could not be read", text });
        }
        None if age.is_none_or(|age| age > CURRENT) => {
            let text = format!("{shown_is} PostgreSQL has not answered yet.");
            notices.push(Notice { title: "Waiting for the database", text });
        }
        None => {}
    }
    notices
}

fn figures(shown: &Shown<'_>, report: Option<&Report>) -> Vec<Figure> {
    let stats = shown.stats;
    let busy = format!("{} of {LANES} lanes claimed", stats.claimed_lanes.get());
    let sent = shown.intervals.last().map_or(0.0, |interval| interval.sent_per_second);
    let count = |name, value: i64, at_least: bool, note: &str| Figure {
        name,
        value: format!(
            "{}{}",
            thousands(value.max(0).unsigned_abs() as usize),
            if at_least { "+" } else { "" }
        ),
        note: note.to_owned(),
        is_raised: value > 0,
    };
    let paused = ["everything", "topic", "key"].map(|scope| stats.pauses(scope)).iter().sum();
    let mut figures = vec![
        unsent(stats, report),
        Figure {
            name: "Sent",
            value: format!("{}/s", rate(sent)),
            note: format!("{} since this relay started", thousands(stats.published.get() as usize)),
            is_raised: false,
        },
        latency(report),
        Figure {
            name: "Workers",
            value: format!("{} of {} busy", stats.workers_busy.get(), stats.workers.get()),
            note: busy,
            is_raised: false,
        },
        count("Pauses", report.map_or(paused, |report| report.paused.len() as i64), false, "by operators"),
    ];
    let held = report.map_or(stats.held_topics.get(), |report| report.held_topics_total);
    figures.push(count("Held topics", held, false, "their events wait"));
    let (blocked, more) = report.map_or((stats.blocked_keys.get(), false), |report| {
        (report.blocked_keys.keys, report.blocked_keys.at_least)
    });
    figures.push(count("Blocked keys", blocked, more, "wait for an operator"));
    figures.push(match report {
        Some(report) => {
            count("Dead letters", report.dead_letters.rows, report.dead_letters.at_least, "to review")
        }
        None => count("Dead letters", stats.dead_letters.get() as i64, false, "by this relay"),
    });
    figures
}

fn unsent(stats: &Stats, report: Option<&Report>) -> Figure {
    let (rows, estimated, oldest) = match report {
        Some(report) => (report.backlog.rows, report.backlog.estimated, report.backlog.oldest_age_seconds),
        None => (stats.backlog.get(), false, Some(stats.oldest_seconds.get())),
    };
    let about = if estimated { "about " } else { "" };
    let oldest = oldest.filter(|_| rows > 0);
    Figure {
        name: "Unsent events",
        value: format!("{about}{}", thousands(rows.max(0).unsigned_abs() as usize)),
        note: oldest
            .map_or_else(|| "none waiting".to_owned(), |age| format!("the oldest is {} old", seconds(age))),
        is_raised: oldest.is_some_and(|age| age > LATE.as_secs_f64()),
    }
}

fn latency(report: Option<&Report>) -> Figure {
    let figure = |value, note| Figure { name: "Latency", value, note, is_raised: false };
    let Some(report) = report else { return figure("–".to_owned(), "unknown".to_owned()) };
    let latency = report.latency.as_ref();
    match latency.map(|latency| (latency.p50_seconds, latency.p99_seconds, latency.rows)) {
        Some((Some(p50), Some(p99), rows)) => {
            let events = thousands(rows.max(0).unsigned_abs() as usize);
            figure(
                super::chart::duration(p50),
                format!("p50 of the last {events} events; p99 {}", super::chart::duration(p99)),
            )
        }
        Some(_) => figure("–".to_owned(), "no events sent yet".to_owned()),
        None => figure("–".to_owned(), "events are deleted when they are sent".to_owned()),
    }
}

impl Lanes {
    const COLUMNS: usize = 16;

    fn new(unsent: &[LaneStatus]) -> Lanes {
        let cells = (0..LANES).map(|lane| {
            let status = unsent.iter().find(|status| usize::try_from(status.lane) == Ok(lane));
            Cell::new(lane, status)
        });
        let oldest = unsent.iter().filter_map(|lane| Some((lane.oldest?, lane.lane))).max();
        let oldest =
            oldest.map(|(age, lane)| format!("; the oldest event is {} old, in lane {lane}", span(age)));
        let summary =
            format!("{} of {LANES} lanes have unsent events{}", unsent.len(), oldest.unwrap_or_default());
        Lanes { summary, cells: cells.collect() }
    }
}

impl Cell {
    fn new(lane: usize, status: Option<&LaneStatus>) -> Cell {
        let (x, y) = (lane % Lanes::COLUMNS * 20, lane / Lanes::COLUMNS * 20);
        let Some(status) = status else {
            return Cell {
                x,
                y,
                class: "idle",
                label: String::new(),
                title: format!("lane {lane}: nothing unsent"),
            };
        };
        let full = status.rows >= postgres::diagnose::status::FIRST_ROWS_A_LANE;
        let label = if full { "99+".to_owned() } else { status.rows.to_string() };
        let age = status.oldest.map(|age| format!(", the oldest is {} old", span(age))).unwrap_or_default();
        let class = if status.oldest.is_some_and(|age| age > LATE) { "late" } else { "unsent" };
        Cell { x, y, class, title: format!("lane {lane}: {label} unsent{age}"), label }
    }
}

fn settings(config: &Config) -> Vec<SettingsOf> {
    let mut sections: Vec<SettingsOf> = Vec::new();
    for setting in config.shown() {
        match sections.last_mut().filter(|last| last.section == setting.section) {
            Some(last) => last.settings.push(setting),
            None => sections.push(SettingsOf { section: setting.section, settings: vec![setting] }),
        }
    }
    sections
}
