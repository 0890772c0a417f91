//! What a command prints: results on stdout; notes, questions and the progress bar on stderr.

use super::arguments::ListOptions;
use super::failed::Failed;
use crate::config::Secret;
use anyhow::{Context, Error};
use indicatif::{ProgressBar, ProgressStyle};
use relay::failure::PostgresFault;
use rustix::fs::fstat;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use settings::text::{commands, printable, printable_bytes};
pub use settings::text::{counted, thousands};
use std::fmt::Display;
use std::io::{BufRead, ErrorKind, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

/// Rows per page of a list, so that long lists need little memory.
const PAGE_ROWS: i64 = 100;

/// Whether stdout is still read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    There,
    /// The reader closed it, as `head` does. This is not a failure.
    Gone,
}

/// Prints text or JSON. Escapes what could control a terminal, even in a pipe, because a pager or a later `cat` may show it.
pub fn print(text: &[u8]) -> Result<Reader, Failed> {
    raw(printable_bytes(text).as_bytes())
}

/// Prints these bytes unchanged.
pub(crate) fn raw(bytes: &[u8]) -> Result<Reader, Failed> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(Reader::There),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(Failed::Failure(Error::new(error).context("writing to stdout"))),
    }
}

/// Prints a complete result. A closed stdout is not an error.
pub(crate) fn text(text: impl AsRef<[u8]>) -> Result<(), Failed> {
    print(text.as_ref()).map(|_| ())
}

/// Like [`text`], with all bytes unchanged.
pub(crate) fn unchanged(bytes: impl AsRef<[u8]>) -> Result<(), Failed> {
    raw(bytes.as_ref()).map(|_| ())
}

pub(crate) fn line(text: &str) -> Result<Reader, Failed> {
    print(format!("{text}\n").as_bytes())
}

/// Prints a line on stderr, like [`print`]. The commands in it name the configuration file.
pub(crate) fn note(text: &str) {
    aside(printable(&commands(text)));
}

/// Whether the log is JSON, so that each line of stderr must be an object.
pub(super) static LOGS_JSON: AtomicBool = AtomicBool::new(false);

/// Like [`note`]. In the journal, the lines have this priority. Without one, they would count as information (sd-daemon(3)).
pub(crate) fn note_with_priority(priority: u8, text: &str) {
    if LOGS_JSON.load(Ordering::Relaxed) {
        let (level, text) = match priority {
            ..=3 => ("ERROR", text.trim_start_matches("error: ")),
            4 => ("WARN", text.trim_start_matches("warning: ")),
            5.. => ("INFO", text),
        };
        // Not through the log, because its level does not apply to these.
        let at = humantime::format_rfc3339_micros(SystemTime::now()).to_string();
        let fields = json!({"message": text});
        return aside(json!({"timestamp": at, "level": level, "fields": fields, "target": module_path!()}));
    }
    if !goes_to_the_journal() {
        return note(text);
    }
    for line in text.lines() {
        note(&format!("<{priority}>{line}"));
    }
}

/// Whether stderr is the journal. A program whose stderr is a file may inherit the variable too (systemd.exec(5)).
pub(super) fn goes_to_the_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    fstat(std::io::stderr()).is_ok_and(|stderr| stream == format!("{}:{}", stderr.st_dev, stderr.st_ino))
}

/// Prints a line on stderr as it is. If stderr is closed or its disk is full, the command continues.
pub(crate) fn aside(text: impl Display) {
    _ = writeln!(std::io::stderr(), "{text}");
}

/// A JSON object on one line.
pub fn json(object: &impl Serialize) -> Result<String, Failed> {
    Ok(serde_json::to_string(object).context("writing JSON")?)
}

/// A JSON object on several lines, with the last line break.
pub(crate) fn pretty_json(object: &impl Serialize) -> Result<String, Failed> {
    Ok(serde_json::to_string_pretty(object).context("writing JSON")? + "\n")
}

/// A JSON object whose fields stay in this order.
pub(crate) struct Object<V = Value>(pub(crate) Vec<(&'static str, V)>);

impl<V: Serialize> Serialize for Object<V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// An entry of a list, which is a line of text or of JSON.
pub(crate) trait Entry: Serialize {
    fn id(&self) -> i64;
    fn text(&self) -> String;
}

/// Prints a list page by page. `page` reads a number of rows below an id. Prints a hint on stderr if there is more. Without
/// rows, prints `none`, except as JSON.
pub(crate) async fn list<T: Entry>(
    &ListOptions { limit, json: as_json }: &ListOptions,
    none: &str,
    mut page: impl AsyncFnMut(i64, i64) -> Result<Vec<T>, PostgresFault>,
) -> Result<(), Failed> {
    let (mut below, mut left) = (i64::MAX, i64::from(limit));
    loop {
        // Read one row more to find out whether there is more.
        let wanted = (left + 1).min(PAGE_ROWS);
        let rows = page(below, wanted).await?;
        let complete = (rows.len() as i64) < wanted;
        for row in rows {
            if left == 0 {
                aside(format_args!(
                    "Showing the newest {limit}. Use --limit to show more, or a filter to show fewer."
                ));
                return Ok(());
            }
            if line(&if as_json { json(&row)? } else { row.text() })? == Reader::Gone {
                return Ok(());
            }
            (below, left) = (row.id(), left - 1);
        }
        if complete && below == i64::MAX && !as_json {
            return text(format!("{none}\n"));
        }
        if complete {
            return Ok(());
        }
    }
}

/// Whether a person can answer.
pub(crate) fn can_ask() -> bool {
    std::io::stdin().is_terminal()
}

/// Asks. `default` is used for an empty answer.
pub(crate) fn ask(question: &str, default: &str) -> Result<String, Failed> {
    prompt(&format!("{question} [{default}]: "))?;
    let answer = answer()?;
    Ok(if answer.trim().is_empty() { default } else { answer.trim() }.to_owned())
}

/// Asks for a password, which the terminal does not show. `None` for an empty one.
pub(crate) fn ask_password(question: &str) -> Result<Option<Secret>, Failed> {
    let stdin = std::io::stdin();
    let unusable = |error: rustix::io::Errno| no_terminal(&error.into());
    let shown = tcgetattr(&stdin).map_err(unusable)?;
    let mut hidden = shown.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    hidden.local_modes.insert(LocalModes::ECHONL);
    // Before the question, so that even a quick answer is hidden.
    tcsetattr(&stdin, OptionalActions::Flush, &hidden).map_err(unusable)?;
    let answer = prompt(&format!("{question}: ")).and_then(|()| answer());
    tcsetattr(&stdin, OptionalActions::Flush, &shown).map_err(unusable)?;
    let answer = answer?;
    Ok((!answer.is_empty()).then(|| Secret::new(answer)))
}

/// Asks whether to continue. Anything but yes means no, and the command ends.
pub(crate) fn confirm(question: &str) -> Result<(), Failed> {
    prompt(&format!("{question} [y/N] "))?;
    match ["y", "yes"].contains(&answer()?.trim().to_lowercase().as_str()) {
        true => Ok(()),
        false => Err(Failed::failure("Canceled. Nothing was changed.")),
    }
}

/// On stderr, because stdout may be a file.
fn prompt(text: &str) -> Result<(), Failed> {
    let mut stderr = std::io::stderr().lock();
    stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush()).map_err(|error| no_terminal(&error))
}

/// A line without its line break.
fn answer() -> Result<String, Failed> {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line) {
        Ok(0) => Err(Failed::failure("There was no answer, so nothing was changed.")),
        Ok(_) => Ok(line.trim_end_matches(['\r', '\n']).to_owned()),
        Err(error) => Err(no_terminal(&error)),
    }
}

fn no_terminal(error: &std::io::Error) -> Failed {
    Failed::failure(format!(
        "Cannot use the terminal: {error}. Nothing was changed. Pass the settings as arguments, with --yes"
    ))
}

const BAR: &str = "{msg:32!} [{bar:30}] {percent:>3}%  {eta} left";

/// The progress bar, which is only shown on a terminal. The library clears it when it is dropped.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    pub(crate) fn new() -> Progress {
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template(BAR) {
            bar.set_style(style.progress_chars("=> "));
        }
        Progress(bar)
    }

    pub(crate) fn begin(&self, what: &str, length: u64) {
        self.0.set_length(length);
        self.0.set_message(what.to_owned());
        self.0.reset();
    }

    pub(crate) fn advance_by(&self, done: u64) {
        self.0.inc(done);
    }
}
