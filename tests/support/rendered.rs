//! The parts of a page that are rendered from the code.

use std::fs;
use std::path::Path;

const END: &str = "<!-- end -->";

/// Checks that the page contains these parts: the source that its marker names, and the text up to the next end marker.
/// `make docs` writes them instead.
pub fn check(page: &str, parts: &[(&str, String)]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let written = fs::read_to_string(&path).unwrap();
    let wanted = parts.iter().fold(written.clone(), |text, (source, part)| replace(&text, source, part));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(path, wanted).unwrap();
        return;
    }
    let differs = written.lines().zip(wanted.lines()).find(|(is, should)| is != should);
    assert!(written == wanted, "{page} is out of date; run `make docs`: {differs:#?}");
}

fn replace(page: &str, source: &str, part: &str) -> String {
    let marker = format!("<!-- rendered from {source} by `make docs` -->\n");
    let (before, rest) = page.split_once(&marker).unwrap_or_else(|| panic!("the page has no {marker:?}"));
    let (_, after) = rest.split_once(END).unwrap_or_else(|| panic!("there is no {END} after {marker:?}"));
    format!("{before}{marker}{part}{END}{after}")
}
