//! Output on stdout.

use super::exit::Failed;
use crate::relay::failure::Fault;
use humantime::format_rfc3339_seconds;
use serde::Serialize;
use std::io::{ErrorKind, Write};
use std::time::SystemTime;

/// Rows per page of a list, so that long lists need little memory.
const PAGE_ROWS: i64 = 100;

/// Whether stdout is still read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// It is read.
    There,
    /// The reader closed it, as `head` does. This is not a failure.
    Gone,
}

/// Prints raw bytes.
pub fn print(bytes: &[u8]) -> Result<Reader, Failed> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(Reader::There),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(Failed::Failure(anyhow::Error::new(error).context("writing to stdout"))),
    }
}

pub(crate) fn line(text: &str) -> Result<Reader, Failed> {
    print(format!("{text}\n").as_bytes())
}

/// A JSON object in one line.
pub fn json(object: &impl Serialize) -> Result<String, Failed> {
    serde_json::to_string(object)
        .map_err(|error| Failed::Failure(anyhow::Error::new(error).context("writing JSON")))
}

/// Prints a list page by page. `page` reads a number of rows below an id, and `show` returns the id and the line of a row.
/// Prints a hint on stderr if there is more.
pub(crate) async fn list<T>(
    limit: u32,
    mut page: impl AsyncFnMut(i64, i64) -> Result<Vec<T>, Fault>,
    show: impl Fn(&T) -> Result<(i64, String), Failed>,
) -> Result<(), Failed> {
    let (mut below, mut left) = (i64::MAX, i64::from(limit));
    loop {
        // Read one row more to find out whether there is more.
        let wanted = (left + 1).min(PAGE_ROWS);
        let rows = page(below, wanted).await.map_err(super::one_shot::fault)?;
        let complete = (rows.len() as i64) < wanted;
        for row in rows {
            if left == 0 {
                eprintln!("Showing the newest {limit}. Use --limit to show more, or a filter to show fewer.");
                return Ok(());
            }
            let (id, text) = show(&row)?;
            if line(&text)? == Reader::Gone {
                return Ok(());
            }
            (below, left) = (id, left - 1);
        }
        if complete {
            return Ok(());
        }
    }
}

/// RFC 3339, in UTC, to the second.
pub(crate) fn time(at: SystemTime) -> String {
    format_rfc3339_seconds(at).to_string()
}

/// "1 event", "2 events".
pub fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// `1,234,567`.
pub fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Makes untrusted text safe for one line of a terminal: escapes control characters and cuts it to `most` characters.
pub(crate) fn in_line(text: &str, most: usize) -> String {
    let mut shown = String::new();
    for (count, c) in text.chars().enumerate() {
        if count == most {
            shown.push('…');
            break;
        }
        if c.is_control() { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::{in_line, thousands};

    #[test]
    fn untrusted_text_stays_in_its_line_without_control_characters() {
        assert_eq!(in_line("a\nb\u{1b}[31mä", 100), r"a\nb\u{1b}[31mä");
        assert_eq!(in_line("äöü", 3), "äöü");
        assert_eq!(in_line("äöüß", 3), "äöü…");
    }

    #[test]
    fn numbers_are_grouped() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(thousands(number), text);
        }
    }
}
