//! The status page: `GET /`, the report of `outbox-relay status` as HTML, without scripts and without other resources.
//!
//! The database is queried only while there are viewers, on a connection of its own, and at most every few seconds, however many
//! viewers there are. A page never waits long for the result. It shows no payload and no secret, and keys only if it is served
//! on a loopback address.

mod chart;

use super::{AdminState, Observed};
use crate::config::{Config, SettingInForce};
use crate::status::verdict::{OutboxState, Verdict};
use crate::status::{LocalRelay, Monitor, MonitorError, Relays, Report};
use askama::Template;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use chart::{History, Interval, SAMPLE_EVERY, charts, duration, not_ready};
use openssl::base64::encode_block;
use openssl::sha::sha256;
use postgres::diagnose::status::{DeadLetters, FIRST_ROWS_A_LANE, LaneStatus};
use postgres::operate::pauses::{PausedScope, Scope};
use relay::health::stats::Stats;
use relay::lanes::LANES;
use relay::reason::{fix, reason};
use settings::text::{bytes, command, counted, in_line, rate, seconds, span, thousands, time};
use std::convert::Infallible;
use std::future::ready;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

const SAYS: usize = 300;
const STYLE: &str = include_str!("style.css");
const REFRESH_SECONDS: u64 = SAMPLE_EVERY.as_secs();
/// The longest name of a topic.
const TOPIC: usize = 249;
const TEXT: usize = 200;
const ERROR: usize = 1_000;
const FAULT: usize = 600;
/// An unsent event that is older is late.
const LATE: Duration = Duration::from_secs(10);

/// Younger results are shown again. Slightly shorter than the interval at which the page refreshes itself.
const FRESH: Duration = Duration::from_secs(4);
/// How old a result may be without a notice.
const CURRENT: Duration = Duration::from_secs(15);
/// How long a page waits for a result if there is no current one.
const PATIENCE_FIRST: Duration = Duration::from_secs(1);
/// How long the next ones wait, before they show the previous result.
const PATIENCE: Duration = Duration::from_millis(30);
/// After this, the connection is closed and the result is discarded.
const UNWATCHED: Duration = Duration::from_secs(30);
/// How long the server may work on one statement.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a reading may take. A new connection may run a `password_command`. No page waits that long.
const READ_WITHIN: Duration = Duration::from_secs(15);

pub(super) struct Page {
    stats: Arc<Stats>,
    config: watch::Receiver<Config>,
    config_file: Option<PathBuf>,
    address: SocketAddr,
    history: History,
    facts: Facts,
}

impl Page {
    pub(super) fn new(observed: Observed, address: SocketAddr) -> Page {
        let Observed { stats, config, config_file } = observed;
        Page { stats, config, config_file, address, history: History::default(), facts: Facts::default() }
    }

    /// Takes samples, and reads the database while there are viewers. Runs forever.
    pub(super) async fn keep(&self) -> Infallible {
        let mut config = self.config.clone();
        tokio::select! {
            never = self.keep_sampling() => match never {},
            never = self.facts.keep(async |open| self.read(&mut config, open).await) => match never {},
        }
    }

    async fn keep_sampling(&self) -> Infallible {
        let mut ticks = interval(SAMPLE_EVERY);
        // After a freeze, one sample is enough.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.history.sample(&self.stats);
        }
    }

    /// Reads the report of `outbox-relay status`. Opens a new connection if the settings have changed. After a failure, the
    /// connection is dropped, because another server may answer the next time.
    async fn read(
        &self,
        config: &mut watch::Receiver<Config>,
        open: Option<Monitor>,
    ) -> Result<(Monitor, Snapshot), String> {
        let open = open.filter(|_| matches!(config.has_changed(), Ok(false)));
        // In a separate allocation, because the process needs it only while there are viewers.
        let read = Box::pin(async {
            let mut monitor = match open {
                Some(monitor) => monitor,
                None => {
                    let config = config.borrow_and_update().clone();
                    Monitor::new(config, self.config_file.as_deref(), "page", Some(STATEMENT_TIMEOUT))?
                }
            };
            let report = monitor.report(None, ready(Some(self.here()))).await?;
            let lanes = monitor.status.lanes().await?;
            Ok((monitor, Snapshot { report, lanes, read_at: SystemTime::now() }))
        });
        let describe = |error: MonitorError| in_line(&error.to_string(), FAULT);
        match timeout(READ_WITHIN, read).await {
            Ok(read) => read.map_err(describe),
            Err(_) => Err(format!("no response within {READ_WITHIN:?}")),
        }
    }

    /// The state of this relay, as `/readyz` reports it.
    fn here(&self) -> LocalRelay {
        let not_ready = self.stats.not_ready();
        LocalRelay {
            address: self.address.to_string(),
            ready: not_ready.is_none(),
            says: in_line(&not_ready.unwrap_or_else(|| self.stats.notes.ready()), SAYS),
        }
    }
}

pub(super) async fn show(
    State(AdminState { page, .. }): State<AdminState>,
    RawQuery(query): RawQuery,
) -> Result<impl IntoResponse, StatusCode> {
    let view = View {
        known: &page.facts.current().await,
        here: page.here(),
        stats: &page.stats,
        intervals: &page.history.intervals(),
        config: &page.config.borrow().clone(),
        shows_keys: page.address.ip().is_loopback(),
        refreshes: query.as_deref() != Some("refresh=off"),
        now: SystemTime::now(),
    };
    let html = view.render().map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok((protection(), [(header::CONTENT_TYPE, "text/html; charset=utf-8")], html))
}

/// Headers that forbid scripts, other resources, framing, caching and reading by other sites.
fn protection() -> [(HeaderName, HeaderValue); 6] {
    [
        (header::CONTENT_SECURITY_POLICY, POLICY.clone()),
        (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
        (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    ]
}

/// Allows the style sheet of the page, and nothing else.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let hash = encode_block(&sha256(STYLE.as_bytes()));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    // The policy is ASCII, so this never fails. Without a policy, nothing would be allowed.
    HeaderValue::from_str(&policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
});

/// The state of the outbox at one moment.
#[derive(Debug)]
struct Snapshot {
    report: Report,
    lanes: Vec<LaneStatus>,
    read_at: SystemTime,
}

#[derive(Clone, Debug, Default)]
struct Known {
    /// The latest successful reading.
    last: Option<Arc<Snapshot>>,
    /// Why the latest reading failed.
    fault: Option<String>,
    /// The end of the latest reading.
    read: Option<Instant>,
}

impl Known {
    fn is_fresh(&self) -> bool {
        self.read.is_some_and(|read| read.elapsed() < FRESH)
    }
}

/// Shared by the viewers and the reader.
#[derive(Default)]
struct Facts {
    wanted: Notify,
    known: watch::Sender<Known>,
}

impl Facts {
    /// What is known, for a viewer. Asks for a new reading if the last one is old.
    async fn current(&self) -> Known {
        let mut known = self.known.subscribe();
        let now = known.borrow_and_update().clone();
        if now.is_fresh() {
            return now;
        }
        self.wanted.notify_one();
        let is_current = now.read.is_some_and(|read| read.elapsed() < CURRENT);
        let patience = if is_current { PATIENCE } else { PATIENCE_FIRST };
        // Without an answer in time, the previous result is shown.
        _ = timeout(patience, known.changed()).await;
        known.borrow().clone()
    }

    /// Reads whenever a viewer asks for it, forever. Does nothing while there are no viewers. `read` gets the connection of the
    /// last reading, if it is still open, takes a bounded time, and fails with an error that the page shows.
    async fn keep<C>(
        &self,
        mut read: impl AsyncFnMut(Option<C>) -> Result<(C, Snapshot), String>,
    ) -> Infallible {
        let mut connection = None;
        loop {
            if timeout(UNWATCHED, self.wanted.notified()).await.is_err() {
                connection = None;
                self.known.send_replace(Known::default());
                self.wanted.notified().await;
            }
            if self.known.borrow().is_fresh() {
                continue; // several viewers asked for the same reading
            }
            let result = read(connection.take()).await;
            self.known.send_modify(|known| {
                known.read = Some(Instant::now());
                match result {
                    Ok((open, snapshot)) => {
                        connection = Some(open);
                        (known.last, known.fault) = (Some(Arc::new(snapshot)), None);
                    }
                    Err(fault) => known.fault = Some(fault),
                }
            });
        }
    }
}

/// Everything that a page shows. The template escapes all of it.
#[derive(Template)]
#[template(path = "page.html")]
struct View<'a> {
    known: &'a Known,
    here: LocalRelay,
    stats: &'a Stats,
    intervals: &'a [Interval],
    config: &'a Config,
    shows_keys: bool,
    refreshes: bool,
    now: SystemTime,
}

/// The verdict. The symbol repeats the word for readers who do not see colors.
struct Banner {
    class: &'static str,
    symbol: &'static str,
    words: &'static str,
    why: String,
    command: Option<String>,
}

struct Figure {
    name: &'static str,
    value: String,
    note: String,
    /// Needs attention.
    is_raised: bool,
}

struct Cell {
    class: &'static str,
    label: String,
    title: String,
}

impl View<'_> {
    fn report(&self) -> Option<&Report> {
        self.known.last.as_deref().map(|snapshot| &snapshot.report)
    }

    /// The age of the result of the database.
    fn age(&self) -> Option<Duration> {
        let snapshot = self.known.last.as_ref()?;
        Some(self.now.duration_since(snapshot.read_at).unwrap_or_default())
    }

    /// The same, if it is older than a refresh and there is no notice about it.
    fn shown_age(&self) -> Option<String> {
        self.age().filter(|age| (FRESH..=CURRENT).contains(age)).map(span)
    }

    /// The verdict of `status`, if the result of the database is current.
    fn verdict(&self) -> Option<&Verdict> {
        let is_current = self.known.fault.is_none() && self.age().is_some_and(|age| age <= CURRENT);
        self.report().filter(|_| is_current).map(|report| &report.verdict)
    }

    fn banner(&self) -> Banner {
        let (state, why, command) = match self.verdict() {
            Some(Verdict { state, why, command }) => (Some(*state), why.clone(), command.clone()),
            None if self.here.ready => {
                let why = "the relay is ready, but PostgreSQL did not report the state of the outbox";
                (None, why.to_owned(), None)
            }
            None => {
                let why = format!("the relay at {} is not ready: {}", self.here.address, self.here.says);
                (Some(OutboxState::NotRelaying), why, Some(command("doctor")))
            }
        };
        let (class, symbol) = match state {
            Some(OutboxState::Healthy) => ("healthy", "✓"),
            Some(OutboxState::Behind) => ("behind", "!"),
            Some(OutboxState::NotRelaying) => ("stopped", "✕"),
            None => ("unknown", "?"),
        };
        Banner { class, symbol, words: state.map_or("unknown", OutboxState::words), why, command }
    }

    /// What is wrong with this relay or this page, in addition to the verdict: titles and texts.
    fn notices(&self) -> Vec<(&'static str, String)> {
        let mut notices = Vec::new();
        let in_verdict = self.verdict().is_none_or(|verdict| verdict.why.contains(&self.here.says));
        if !self.here.ready && !in_verdict {
            notices.push(("This relay is not ready", self.here.says.clone()));
        }
        let age = self.age();
        let shown_is = match age {
            Some(age) => format!("The outbox figures are {} old.", span(age)),
            None => "The state of the outbox is unknown.".to_owned(),
        };
        if let Some(fault) = &self.known.fault {
            notices.push(("The database could not be read", format!("{shown_is} PostgreSQL: {fault}")));
        } else if age.is_none_or(|age| age > CURRENT) {
            notices
                .push(("Waiting for the database", format!("{shown_is} PostgreSQL has not answered yet.")));
        }
        notices
    }

    /// Without the database, the figures are those of this relay.
    fn figures(&self) -> Vec<Figure> {
        let (stats, report) = (self.stats, self.report());
        let plain = |name, value, note| Figure { name, value, note, is_raised: false };
        let count = |name, value: i64, at_least: bool, note: &str| Figure {
            name,
            value: format!("{}{}", number(&value), if at_least { "+" } else { "" }),
            note: note.to_owned(),
            is_raised: value > 0,
        };
        let sent = self.intervals.last().map_or(0.0, |interval| interval.sent_per_second);
        let since_start = format!("{} since this relay started", thousands(stats.published.get() as usize));
        let busy = format!("{} of {} busy", stats.workers_busy.get(), stats.workers.get());
        let claimed = format!("{} of {LANES} lanes claimed", stats.claimed_lanes.get());
        let paused = ["everything", "topic", "key"].map(|scope| stats.pauses(scope)).iter().sum();
        let paused = report.map_or(paused, |report| report.paused_total);
        let held = report.map_or(stats.held_topics.get(), |report| report.held_topics_total);
        let (blocked, more) = report.map_or((stats.blocked_keys.get(), false), |report| {
            (report.blocked_keys.keys, report.blocked_keys.at_least)
        });
        let (dead, dead_more, whose) = report
            .map_or((stats.dead_letters.get() as i64, false, "by this relay"), |report| {
                (report.dead_letters.rows, report.dead_letters.at_least, "to review")
            });
        vec![
            self.unsent(),
            plain("Sent", format!("{}/s", rate(sent)), since_start),
            self.latency(),
            plain("Workers", busy, claimed),
            count("Pauses", paused, false, "by operators"),
            count("Held topics", held, false, "their events wait"),
            count("Blocked keys", blocked, more, "wait for an operator"),
            count("Dead letters", dead, dead_more, whose),
        ]
    }

    fn unsent(&self) -> Figure {
        let (rows, estimated, oldest) = match self.report().map(|report| &report.backlog) {
            Some(backlog) => {
                (backlog.rows, backlog.estimated, backlog.oldest_age.map(|age| age.as_secs_f64()))
            }
            None => (self.stats.backlog.get(), false, Some(self.stats.oldest_seconds.get())),
        };
        let about = if estimated { "about " } else { "" };
        let oldest = oldest.filter(|_| rows > 0);
        Figure {
            name: "Unsent events",
            value: format!("{about}{}", number(&rows)),
            note: oldest.map_or_else(
                || "none waiting".to_owned(),
                |age| format!("the oldest is {} old", seconds(age)),
            ),
            is_raised: oldest.is_some_and(|age| age > LATE.as_secs_f64()),
        }
    }

    fn latency(&self) -> Figure {
        let figure =
            |value, note: &str| Figure { name: "Latency", value, note: note.to_owned(), is_raised: false };
        let none = |note| figure("–".to_owned(), note);
        let Some(report) = self.report() else { return none("unknown") };
        let Some(latency) = &report.latency else { return none("events are deleted when they are sent") };
        let (Some(p50), Some(p99)) = (latency.p50, latency.p99) else {
            return none("no events sent yet");
        };
        let note =
            format!("p50 of the last {} events; p99 {}", number(&latency.rows), duration(p99.as_secs_f64()));
        figure(duration(p50.as_secs_f64()), &note)
    }

    /// Whether and how the lanes are busy, in words.
    fn lanes_summary(&self, unsent: &[LaneStatus]) -> String {
        let oldest = unsent.iter().filter_map(|lane| Some((lane.oldest?, lane.lane))).max();
        let oldest =
            oldest.map(|(age, lane)| format!("; the oldest event is {} old, in lane {lane}", span(age)));
        format!("{} of {LANES} lanes have unsent events{}", unsent.len(), oldest.unwrap_or_default())
    }

    fn cells(&self, unsent: &[LaneStatus]) -> Vec<Cell> {
        let cell = |lane| {
            let Some(status) = unsent.iter().find(|status| usize::try_from(status.lane) == Ok(lane)) else {
                let title = format!("lane {lane}: nothing unsent");
                return Cell { class: "idle", label: String::new(), title };
            };
            let full = status.rows >= FIRST_ROWS_A_LANE;
            let label = if full { "99+".to_owned() } else { status.rows.to_string() };
            let age =
                status.oldest.map(|age| format!(", the oldest is {} old", span(age))).unwrap_or_default();
            let class = if status.oldest.is_some_and(|age| age > LATE) { "late" } else { "unsent" };
            Cell { class, title: format!("lane {lane}: {label} unsent{age}"), label }
        };
        (0..LANES).map(cell).collect()
    }

    fn scope(&self, scope: &Scope) -> String {
        match scope {
            Scope::Key { aggregate_type, .. } if !self.shows_keys => {
                format!("a key of {}", in_line(aggregate_type, TEXT))
            }
            _ => scope.name(),
        }
    }

    fn settings(&self) -> Vec<Vec<SettingInForce>> {
        let shown = self.config.shown();
        shown.chunk_by(|one, next| one.section == next.section).map(<[SettingInForce]>::to_vec).collect()
    }
}

/// `2026-11-23 13:47:05 UTC` instead of `2026-11-23T13:47:05Z`.
fn utc(at: SystemTime) -> String {
    let text = time(at);
    text.strip_suffix('Z').map_or_else(|| text.clone(), |time| time.replace('T', " ") + " UTC")
}

/// A remedy without the marks around commands and names.
fn plain(text: &str) -> String {
    text.replace('`', "")
}

fn relays_about(relays: &Relays) -> String {
    let connections = counted(relays.connections as u64, "connection");
    let pooled = if relays.pooled { " They belong to a pooler, not to the relays." } else { "" };
    format!("{connections} as {}.{pooled}", in_line(&relays.application_name, TEXT))
}

fn dead_letters_about(dead: &DeadLetters) -> &'static str {
    if dead.at_least { "Only the latest dead letters are counted." } else { "" }
}

fn meaning(word: &str) -> String {
    reason(word).map_or_else(String::new, |reason| plain(reason.means))
}

fn number(number: &i64) -> String {
    thousands((*number).max(0).unsigned_abs() as usize)
}

/// What a table shows, if it does not show everything.
fn oldest_of(shown: usize, all: &i64) -> String {
    if *all > shown as i64 {
        format!("Showing the oldest {shown} of {}.", number(all))
    } else {
        String::new()
    }
}

/// The command that ends the pause of everything. It does not end others.
fn resume(paused: &[PausedScope]) -> &'static str {
    if paused.iter().any(|pause| pause.scope == Scope::Everything) { "resume" } else { "" }
}

#[cfg(test)]
mod tests;
