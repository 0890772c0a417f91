//! Output on stdout.

use crate::cli::arguments::selection::ListOptions;
use crate::cli::exit::Failed;
use relay::failure::PostgresFault;
use serde::Serialize;
use settings::text::printable_bytes;
pub(crate) use settings::text::{commands, in_line, printable, time};
pub use settings::text::{counted, thousands};
use std::io::{ErrorKind, Write};

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
        Err(error) => Err(Failed::Failure(anyhow::Error::new(error).context("writing to stdout"))),
    }
}

pub(crate) fn line(text: &str) -> Result<Reader, Failed> {
    print(format!("{text}\n").as_bytes())
}

/// Prints a line on stderr, like [`print`]. The commands in it name the configuration file.
pub(crate) fn note(text: &str) {
    eprintln!("{}", printable(&commands(text)));
}

/// A JSON object on one line.
pub fn json(object: &impl Serialize) -> Result<String, Failed> {
    serde_json::to_string(object)
        .map_err(|error| Failed::Failure(anyhow::Error::new(error).context("writing JSON")))
}

/// Prints a list page by page. `page` reads a number of rows below an id, and `show` returns the id and the line of a row.
/// Prints a hint on stderr if there is more. Without rows, prints `none`, except as JSON.
pub(crate) async fn list<T>(
    &ListOptions { limit, json }: &ListOptions,
    none: &str,
    mut page: impl AsyncFnMut(i64, i64) -> Result<Vec<T>, PostgresFault>,
    show: impl Fn(&T) -> Result<(i64, String), Failed>,
) -> Result<(), Failed> {
    let (mut below, mut left) = (i64::MAX, i64::from(limit));
    loop {
        // Read one row more to find out whether there is more.
        let wanted = (left + 1).min(PAGE_ROWS);
        let rows = page(below, wanted).await.map_err(crate::cli::one_shot::fault)?;
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
        if complete && below == i64::MAX && !json {
            return line(none).map(|_| ());
        }
        if complete {
            return Ok(());
        }
    }
}
