//! Each promise in the README names what shows it, and what it names is there.

use std::fs;
use std::path::Path;

/// A link in a cell of the table: its text without the backticks, and the file.
fn links(row: &str) -> Vec<(&str, &str)> {
    let text_and_rest = row.split("[`").skip(1).filter_map(|link| link.split_once("`]("));
    text_and_rest.filter_map(|(text, rest)| Some((text, rest.split_once(')')?.0))).collect()
}

/// Whether this file has what the link's text says: a test, or a target of make.
fn shows(root: &Path, text: &str, file: &str) -> bool {
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap_or_default();
    match (text.split_once("::"), text.strip_prefix("make ")) {
        (Some((module, test)), _) => {
            let of_module = file == format!("tests/{module}.rs")
                || file.starts_with(&format!("tests/{module}/"))
                || file.ends_with(&format!("/{module}.rs"));
            of_module && read(file).contains(&format!("fn {test}("))
        }
        (None, Some(target)) => {
            root.join(file).exists() && read("Makefile").contains(&format!("\n{target}: "))
        }
        (None, None) => false,
    }
}

#[test]
fn every_promise_in_the_readme_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    for promise in 1..=6 {
        let begins = format!("| **P{promise}**");
        let row = readme.lines().find(|line| line.starts_with(&begins));
        let row = row.unwrap_or_else(|| panic!("no row {begins}"));
        let links = links(row);
        assert!(!links.is_empty(), "P{promise} names no test");
        let unlinked = row.split('`').skip(1).step_by(2).filter(|code| code.contains("::"));
        let unlinked: Vec<&str> =
            unlinked.filter(|code| !links.iter().any(|(text, _)| text == code)).collect();
        assert!(unlinked.is_empty(), "P{promise} names these and links to no file: {unlinked:#?}");
        let missing: Vec<_> = links.iter().filter(|(text, file)| !shows(root, text, file)).collect();
        assert!(missing.is_empty(), "P{promise} names what is not there: {missing:#?}");
    }
}
