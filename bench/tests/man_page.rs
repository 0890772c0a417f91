//! The manual page `man/outbox-bench.1` matches the code. `make docs` writes it.

#[path = "../../tests/integration/project/man_pages/commands.rs"]
#[allow(dead_code)] // the pages of the relay use the rest of it
mod commands;

use std::fs;
use std::io::ErrorKind;
use std::process::Command;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../man/outbox-bench.1");
const MANUAL: &str = "outbox-relay";

#[test]
fn manual_page_matches_the_code() {
    let mut pages = commands::pages(outbox_bench::cli::command());
    let page = pages.remove("outbox-bench.1").unwrap();
    assert!(pages.is_empty(), "{pages:?}");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(FILE, &page).unwrap();
    }
    let written = fs::read_to_string(FILE).unwrap_or_default();
    assert!(written == page, "man/outbox-bench.1 is out of date; run `make docs`");
}

#[test]
fn groff_accepts_the_manual_page() {
    let output = match Command::new("groff").args(["-man", "-ww", "-z", "-Tutf8", FILE]).output() {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("SKIPPED: groff is not installed");
            return;
        }
        Err(error) => panic!("groff: {error}"),
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}
