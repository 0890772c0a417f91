//! `outbox-relay status`: the state of an outbox, from the database and from a relay on this host, if one answers. Prints the
//! report as a screen or as JSON, once or repeatedly.

use super::failed::Failed;
use super::frame::{self, ConfigFile, block_on};
use super::output::{self, Reader};
use super::run::Signals;
use crate::status::{LocalRelay, Monitor, MonitorError, Report};
use askama::Template;
use clap::Args;
use http_body_util::{BodyExt, Empty, Limited};
use humantime::format_rfc3339_seconds;
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use settings::text::{bytes, command, commands, counted, in_line, rate, seconds, span, thousands, time};
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant, SystemTime};
use tokio::time::timeout;

/// How long a single report measures the rates.
const SAMPLE: Duration = Duration::from_secs(1);
const INTERVAL_MIN: Duration = Duration::from_millis(200);
const INTERVAL_MAX: Duration = Duration::from_secs(3600);
/// A relay on this host answers at once or not at all.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);
const ANSWER_BYTES_MAX: usize = 4096;
const ANSWER_SHOWN: usize = 300;
/// The longest topic name in Kafka.
const TOPIC_SHOWN: usize = 249;
const TEXT_SHOWN: usize = 100;

#[derive(Debug, Args)]
#[command(after_help = include_str!("help/status.txt").trim_ascii_end())]
pub(crate) struct Status {
    /// Print a JSON object; with --watch, one per line. Later versions may add fields, but never rename or remove them.
    /// docs/status.md describes the fields.
    #[arg(long)]
    json: bool,
    /// Refresh at this interval until Ctrl-C [default: 2s].
    #[arg(long, value_name = "INTERVAL", num_args = 0..=1, default_missing_value = "2s", value_parser = interval)]
    watch: Option<Duration>,
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = humantime::parse_duration(text).map_err(|_| "write a number and a unit, such as 2s")?;
    if (INTERVAL_MIN..=INTERVAL_MAX).contains(&interval) {
        Ok(interval)
    } else {
        Err("must be from 200ms to 1h".to_owned())
    }
}

impl Status {
    pub(crate) fn run(self, file: &ConfigFile) -> Result<(), Failed> {
        let path = file.path();
        let config = file.load_for_database()?;
        block_on(async {
            let mut monitor = Monitor::new(config, path.as_deref(), "status", None)?;
            match self.watch {
                Some(interval) => watch(&mut monitor, interval, self.json).await,
                None => {
                    let report = report(&mut monitor, Some(SAMPLE)).await?;
                    output::text(if self.json { output::pretty_json(&report)? } else { text(&report) })
                }
            }
        })?
    }
}

/// A report with the relay on this host.
async fn report(monitor: &mut Monitor, sample: Option<Duration>) -> Result<Report, MonitorError> {
    let here = local_relay(monitor.config.admin.listen);
    let report = monitor.report(sample, here).await?;
    frame::warn_of(monitor.difference.take().as_deref());
    Ok(report)
}

impl From<MonitorError> for Failed {
    fn from(error: MonitorError) -> Failed {
        match error {
            MonitorError::Settings(error) => Failed::Unavailable(anyhow::Error::new(error)),
            MonitorError::Check(error) => error.into(),
            MonitorError::Read(fault) => fault.into(),
        }
    }
}

pub(crate) fn text(report: &Report) -> String {
    format!("{}\n", AsText { report })
}

/// Prints a report every `interval`. If Postgres is unavailable, or a statement waits too long for a lock or takes too
/// long, it reports that and keeps trying.
async fn watch(monitor: &mut Monitor, interval: Duration, json: bool) -> Result<(), Failed> {
    let mut signals = Signals::new()?;
    let is_terminal = !json && std::io::stdout().is_terminal();
    let mut screen = Screen { json, is_terminal, drawn: false, last: None, failing_since: None };
    loop {
        let report = tokio::select! {
            report = report(monitor, None) => report,
            () = signals.next() => return Ok(()),
        };
        let reader = match report {
            Ok(report) => screen.show(&report)?,
            Err(MonitorError::Read(fault)) if fault.kind.keeps_connection() => {
                screen.show_failure("PostgreSQL could not answer", &fault.to_string(), interval)?
            }
            Err(error) => match error.into() {
                Failed::Unavailable(error) => {
                    screen.show_failure("PostgreSQL unreachable", &format!("{error:#}"), interval)?
                }
                failed => return Err(failed),
            },
        };
        if reader == Reader::Gone {
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            () = signals.next() => return Ok(()),
        }
    }
}

/// Draws over the last screen on a terminal, and below it elsewhere.
struct Screen {
    json: bool,
    is_terminal: bool,
    drawn: bool,
    /// The last report and its time.
    last: Option<(String, SystemTime)>,
    failing_since: Option<Instant>,
}

impl Screen {
    fn show(&mut self, report: &Report) -> Result<Reader, Failed> {
        self.failing_since = None;
        if self.json {
            return output::line(&output::json(report)?);
        }
        let text = text(report);
        let reader = self.draw(&text);
        self.last = Some((text, SystemTime::now()));
        reader
    }

    /// Keeps the last report below, with its time. With `--json`, prints one line on stderr instead.
    fn show_failure(&mut self, what: &str, error: &str, interval: Duration) -> Result<Reader, Failed> {
        let is_new = self.failing_since.is_none();
        let since = *self.failing_since.get_or_insert_with(Instant::now);
        if self.json {
            if is_new {
                output::note(&format!("{what}, retrying: {error}"));
            }
            return Ok(Reader::There);
        }
        let mut text = format!(
            "{what} for {}: {error}\n              retrying every {}\n",
            span(since.elapsed()),
            humantime::format_duration(interval)
        );
        if let Some((last, at)) = &self.last {
            _ = write!(text, "              last known state, at {}:\n{last}", format_rfc3339_seconds(*at));
        }
        self.draw(&text)
    }

    fn draw(&mut self, text: &str) -> Result<Reader, Failed> {
        let text = &*settings::text::printable(text);
        let first = !std::mem::replace(&mut self.drawn, true);
        let rows = terminal_size::terminal_size().map(|(_, height)| usize::from(height.0));
        let drawn = match self.is_terminal {
            true => over(text, first, rows),
            false if first => text.to_owned(),
            false => format!("\n{text}"),
        };
        output::raw(drawn.as_bytes())
    }
}

/// Draws over the terminal from its first line on: clears the rest of each line and everything below. Lines are not wrapped,
/// and those that do not fit are left out, so that the terminal does not scroll.
fn over(text: &str, first: bool, rows: Option<usize>) -> String {
    let mut drawn = String::from(if first { "\x1b[2J\x1b[H\x1b[?7l" } else { "\x1b[H\x1b[?7l" });
    let lines: Vec<&str> = text.lines().collect();
    let fitting = rows.map_or(lines.len(), |rows| rows.saturating_sub(1).min(lines.len()));
    for line in &lines[..fitting] {
        _ = write!(drawn, "{line}\x1b[K\r\n");
    }
    drawn.push_str("\x1b[J\x1b[?7h");
    drawn
}

/// The report as one screen. The first line is the verdict.
#[derive(Template)]
#[template(path = "status.txt")]
struct AsText<'a> {
    report: &'a Report,
}

/// "6 (retention)" instead of "6 retention".
fn migration(name: Option<&str>) -> String {
    let name = line(name.unwrap_or("unknown"));
    name.split_once(' ').map_or_else(|| name.clone(), |(number, name)| format!("{number} ({name})"))
}

fn latency(report: &Report) -> String {
    let Some(latency) = &report.latency else {
        return "unknown: rows are deleted when they are sent".to_owned();
    };
    let quantiles = [latency.p50, latency.p95, latency.p99, latency.max];
    let [Some(p50), Some(p95), Some(p99), Some(max)] = quantiles.map(|value| value.map(span)) else {
        return "unknown: no row has been sent".to_owned();
    };
    let rows = counted(latency.rows.unsigned_abs(), "row");
    let ago = span(latency.latest_age.unwrap_or_default());
    format!("p50 {p50}, p95 {p95}, p99 {p99}, max {max} (latest {rows}, the last sent {ago} ago)")
}

fn line(text: &str) -> String {
    in_line(text, TEXT_SHOWN)
}

fn number(number: &i64) -> String {
    thousands(number.unsigned_abs() as usize)
}

/// The relay on this host, from `/readyz` at this address, because the database does not show that Kafka is unavailable. `None`
/// if nothing or another program answers.
pub(in crate::cli) async fn local_relay(listen: Option<SocketAddr>) -> Option<LocalRelay> {
    let address = reachable(listen.filter(|address| address.port() != 0)?);
    let (status, text) = timeout(ANSWER_WITHIN, get(address)).await.ok().flatten()?;
    let ready = match status {
        StatusCode::OK if text.starts_with("ready") => true,
        StatusCode::SERVICE_UNAVAILABLE => false,
        _ => return None,
    };
    Some(LocalRelay { address: address.to_string(), ready, says: in_line(text.trim_end(), ANSWER_SHOWN) })
}

/// Replaces the address for "all interfaces" with the loopback address.
fn reachable(mut listen: SocketAddr) -> SocketAddr {
    if listen.ip().is_unspecified() {
        let is_ipv4 = listen.is_ipv4();
        listen.set_ip(if is_ipv4 { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
    }
    listen
}

async fn get(address: SocketAddr) -> Option<(StatusCode, String)> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let response = client.get(format!("http://{address}/readyz").parse().ok()?).await.ok()?;
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await.ok()?;
    Some((status, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::over;

    #[test]
    fn the_screen_is_cleared_once_and_then_overwritten() {
        assert_eq!(over("a\nb\n", true, None), "\x1b[2J\x1b[H\x1b[?7la\x1b[K\r\nb\x1b[K\r\n\x1b[J\x1b[?7h");
        assert!(!over("a\n", false, None).contains("\x1b[2J"));
    }

    #[test]
    fn lines_that_do_not_fit_are_left_out() {
        let drawn = over("a\nb\nc\nd\n", false, Some(3));
        assert!(drawn.contains("b\x1b[K\r\n") && !drawn.contains('c'), "{drawn:?}");
    }
}
