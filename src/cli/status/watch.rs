//! `status --watch`: refreshes the screen until Ctrl-C.

use super::report;
use crate::cli::frame::Failed;
use crate::cli::output::{self, Reader};
use crate::cli::run::Signals;
use crate::status::monitor::Monitor;
use crate::status::report::Report;
use humantime::format_rfc3339_seconds;
use settings::text::{printable, span};
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::time::{Duration, Instant, SystemTime};

/// Prints a report every `interval`. If Postgres is unavailable, it reports that and keeps trying.
pub(super) async fn watch(monitor: &mut Monitor, interval: Duration, json: bool) -> Result<(), Failed> {
    let mut signals = Signals::new()?;
    let mut screen = Screen::new(json);
    loop {
        let report = tokio::select! {
            report = report(monitor, None) => report,
            () = signals.next() => return Ok(()),
        };
        let reader = match report {
            Ok(report) => screen.show(&report)?,
            Err(Failed::Unavailable(error)) => screen.show_unreachable(&format!("{error:#}"), interval)?,
            Err(failed) => return Err(failed),
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
    unreachable_since: Option<Instant>,
}

impl Screen {
    fn new(json: bool) -> Screen {
        let is_terminal = !json && std::io::stdout().is_terminal();
        Screen { json, is_terminal, drawn: false, last: None, unreachable_since: None }
    }

    fn show(&mut self, report: &Report) -> Result<Reader, Failed> {
        self.unreachable_since = None;
        if self.json {
            return output::line(&output::json(report)?);
        }
        let text = report.to_string();
        let reader = self.draw(&text);
        self.last = Some((text, SystemTime::now()));
        reader
    }

    /// Keeps the last report below, with its time. With `--json`, prints one line on stderr instead.
    fn show_unreachable(&mut self, error: &str, interval: Duration) -> Result<Reader, Failed> {
        let is_new = self.unreachable_since.is_none();
        let since = *self.unreachable_since.get_or_insert_with(Instant::now);
        if self.json {
            if is_new {
                output::note(&format!("PostgreSQL unreachable, retrying: {error}"));
            }
            return Ok(Reader::There);
        }
        let mut text = format!(
            "PostgreSQL unreachable for {}: {error}\n              retrying every {}\n",
            span(since.elapsed()),
            humantime::format_duration(interval)
        );
        if let Some((last, at)) = &self.last {
            _ = write!(text, "              last known state, at {}:\n{last}", format_rfc3339_seconds(*at));
        }
        self.draw(&text)
    }

    fn draw(&mut self, text: &str) -> Result<Reader, Failed> {
        let text = &*printable(text);
        let first = !std::mem::replace(&mut self.drawn, true);
        let drawn = match self.is_terminal {
            true => over(text, first, rows()),
            false if first => text.to_owned(),
            false => format!("\n{text}"),
        };
        output::raw(drawn.as_bytes())
    }
}

fn rows() -> Option<usize> {
    terminal_size::terminal_size().map(|(_, height)| usize::from(height.0))
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
