//! The terminal: a panel that is redrawn in place. If stdout is not a terminal, one line per second.

use super::ledger::Figures;
use outbox_relay::cli::output::thousands;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::time::Duration;

const REDRAW_EVERY: Duration = Duration::from_millis(250);
const LINE_EVERY: Duration = Duration::from_secs(1);
/// The rate covers this time.
const RATE_PERIOD: Duration = Duration::from_secs(2);
const BAR: usize = 40;

/// What is displayed at one moment.
pub(super) struct View {
    pub(super) elapsed: Duration,
    /// How long the shop is open.
    pub(super) time: Duration,
    pub(super) figures: Figures,
    /// What the demo waits for or does, other than its normal work.
    pub(super) doing: Option<String>,
}

/// The output of the demo.
pub(super) struct Screen {
    is_terminal: bool,
    has_colors: bool,
    /// The number of lines of the panel above the cursor.
    drawn: usize,
    seen: VecDeque<(Duration, usize)>,
}

impl Screen {
    /// The screen of this process.
    pub(super) fn new() -> Screen {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let is_terminal = std::io::stdout().is_terminal() && !is_dumb;
        Screen { is_terminal, has_colors: is_terminal && !set("NO_COLOR"), drawn: 0, seen: VecDeque::new() }
    }

    /// Whether log lines would be written into the panel.
    pub(super) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// How often the figures are updated.
    pub(super) fn interval(&self) -> Duration {
        if self.is_terminal { REDRAW_EVERY } else { LINE_EVERY }
    }

    /// Prints a permanent text. The panel, if any, stays above it.
    pub(super) fn say(&mut self, text: &str) {
        self.drawn = 0;
        put(&format!("{text}\n"));
    }

    /// Updates the figures.
    pub(super) fn show(&mut self, view: &View) {
        let rate = self.rate(view);
        if !self.is_terminal {
            put(&format!("{}\n", line(view, rate)));
            return;
        }
        let panel = self.panel(view, rate);
        let mut text = String::new();
        if self.drawn > 0 {
            _ = write!(text, "\x1b[{}A", self.drawn);
        }
        // Lines that are too long for the terminal are cut off, because wrapped lines could not be counted.
        text.push_str("\x1b[?7l");
        for line in &panel {
            _ = write!(text, "\r\x1b[2K{line}\r\n");
        }
        text.push_str("\x1b[?7h");
        self.drawn = panel.len();
        put(&text);
    }

    fn rate(&mut self, view: &View) -> usize {
        self.seen.push_back((view.elapsed, view.figures.received));
        while self.seen.len() > 2 && view.elapsed.saturating_sub(self.seen[1].0) >= RATE_PERIOD {
            self.seen.pop_front();
        }
        let (since, received) = self.seen[0];
        let seconds = view.elapsed.saturating_sub(since).as_secs_f64();
        if seconds == 0.0 {
            return 0;
        }
        ((view.figures.received - received) as f64 / seconds) as usize
    }

    fn panel(&self, view: &View, rate: usize) -> [String; 6] {
        let Figures { orders, rolled_back, written, received, waiting, latency } = view.figures;
        let share = (view.elapsed.as_secs_f64() / view.time.as_secs_f64()).min(1.0);
        let filled = (share * BAR as f64) as usize;
        let bar = format!("{}{}", "=".repeat(filled), self.dim(&"-".repeat(BAR - filled)));
        let number = |count: usize| self.bold(&format!("{:>10}", thousands(count)));
        [
            format!(
                "  shop       {} orders placed     {:>10} rolled back",
                number(orders),
                thousands(rolled_back)
            ),
            format!("  PostgreSQL {} events written    {:>10} waiting", number(written), thousands(waiting)),
            format!("  Kafka      {} events received   {:>10} per second", number(received), thousands(rate)),
            format!(
                "  latency    {} p50               {:>10} p99   {}",
                self.bold(&format!("{:>10}", milliseconds(latency.p50))),
                milliseconds(latency.p99),
                self.dim("COMMIT to consumer")
            ),
            String::new(),
            format!(
                "  [{bar}] {:>2} s  {}",
                view.elapsed.as_secs(),
                self.dim(view.doing.as_deref().unwrap_or("press Ctrl-C to stop early"))
            ),
        ]
    }

    pub(super) fn bold(&self, text: &str) -> String {
        self.styled("1", text)
    }

    pub(super) fn green(&self, text: &str) -> String {
        self.styled("1;32", text)
    }

    pub(super) fn red(&self, text: &str) -> String {
        self.styled("1;31", text)
    }

    fn dim(&self, text: &str) -> String {
        self.styled("2", text)
    }

    fn styled(&self, style: &str, text: &str) -> String {
        if self.has_colors { format!("\x1b[{style}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// One line without terminal control.
fn line(view: &View, rate: usize) -> String {
    let Figures { orders, rolled_back, written, received, waiting, latency } = view.figures;
    let doing = view.doing.as_ref().map_or_else(String::new, |doing| format!("  ({doing})"));
    format!(
        "{:>3} s  {orders} orders, {rolled_back} rolled back, {written} events written, {received} received, \
         {waiting} waiting, {rate}/s, p50 {}, p99 {}{doing}",
        view.elapsed.as_secs(),
        milliseconds(latency.p50),
        milliseconds(latency.p99),
    )
}

/// The reader may have closed stdout, as `head` does. The demo must still clean up.
fn put(text: &str) {
    let mut stdout = std::io::stdout().lock();
    _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

/// `4.2 ms`.
pub(super) fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(seconds: u64, received: usize) -> View {
        let figures = Figures { orders: 1_234, written: 5_000, received, waiting: 3, ..Figures::default() };
        let (elapsed, time) = (Duration::from_secs(seconds), Duration::from_secs(15));
        View { elapsed, time, figures, doing: None }
    }

    fn screen(has_colors: bool) -> Screen {
        Screen { is_terminal: true, has_colors, drawn: 0, seen: VecDeque::new() }
    }

    #[test]
    fn rate_covers_the_last_seconds() {
        let mut screen = screen(false);
        let rates: Vec<_> = [(0, 0), (1, 500), (2, 1_000), (3, 3_000), (4, 5_000)]
            .map(|(s, n)| screen.rate(&view(s, n)))
            .into();
        assert_eq!(rates, [0, 500, 500, 1_250, 2_000]);
    }

    #[test]
    fn panel_fits_80_columns_and_is_plain_without_colors() {
        for line in screen(false).panel(&view(12, 4_997), 1_234) {
            assert!(line.chars().count() < 80 && !line.contains('\x1b'), "{line:?}");
        }
        assert!(screen(true).panel(&view(12, 4_997), 1_234)[0].contains("\x1b[1m"));
    }
}
