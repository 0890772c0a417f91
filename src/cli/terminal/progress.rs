//! The progress bar on stderr. It is only shown on a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use kafka::operate::reader;
use settings::text::in_line;

const STYLE: &str = "{msg:32!} [{bar:30}] {percent:>3}%  {eta} left";

pub(crate) struct Progress(ProgressBar);

impl Progress {
    pub(crate) fn new() -> Progress {
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template(STYLE) {
            bar.set_style(style.progress_chars("=> "));
        }
        Progress(bar)
    }

    /// Begins a phase.
    pub(crate) fn begin(&self, what: &str, length: u64) {
        self.0.set_length(length);
        self.0.set_message(what.to_owned());
        self.0.reset();
    }

    pub(crate) fn advance_by(&self, done: u64) {
        self.0.inc(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

impl reader::Progress for Progress {
    fn begin(&self, topic: &str, records: u64) {
        self.begin(&format!("reading {}", in_line(topic, 249)), records);
    }

    fn advance(&self, records: u64) {
        self.advance_by(records);
    }
}
