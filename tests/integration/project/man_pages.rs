//! The manual pages in `man/` match the code. `make docs` writes them.

mod commands;
mod configuration;

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/man");
const MANUAL: &str = "outbox-relay";

/// All pages, by file name.
fn rendered() -> BTreeMap<String, String> {
    let mut pages = commands::pages(outbox_relay::cli::command());
    pages.insert("outbox-relay.toml.5".to_owned(), configuration::page());
    pages
}

/// The pages in `man/`, except that of `outbox-bench`, which `bench/tests/command_line.rs` compares.
fn written() -> BTreeMap<String, String> {
    let files = fs::read_dir(FOLDER).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let files = files.filter(|path| name(path).starts_with(MANUAL));
    files.map(|path| (name(&path), fs::read_to_string(&path).unwrap())).collect()
}

fn write(pages: &BTreeMap<String, String>) {
    fs::create_dir_all(FOLDER).unwrap();
    for name in written().keys().filter(|name| !pages.contains_key(*name)) {
        fs::remove_file(Path::new(FOLDER).join(name)).unwrap();
    }
    for (name, page) in pages {
        fs::write(Path::new(FOLDER).join(name), page).unwrap();
    }
}

#[test]
fn manual_pages_match_the_code() {
    let rendered = rendered();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        write(&rendered);
    }
    let written = written();
    let stale: Vec<_> = rendered.iter().filter(|(name, page)| written.get(*name) != Some(page)).collect();
    let stale: Vec<_> = stale.iter().map(|(name, _)| *name).collect();
    let unknown: Vec<_> = written.keys().filter(|name| !rendered.contains_key(*name)).collect();
    assert!(
        stale.is_empty() && unknown.is_empty(),
        "man/ is out of date ({stale:?}, and no longer there: {unknown:?}); run `make docs`"
    );
}

#[test]
fn groff_reports_no_problems_in_the_manual_pages() {
    for name in written().keys() {
        let page = Path::new(FOLDER).join(name);
        let output = match Command::new("groff").args(["-man", "-ww", "-z", "-Tutf8"]).arg(&page).output() {
            Ok(output) => output,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                eprintln!("SKIPPED: groff is not installed");
                return;
            }
            Err(error) => panic!("groff: {error}"),
        };
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{name}: {said}");
    }
}
