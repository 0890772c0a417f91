//! Each guarantee in docs/guarantees.md names the tests that prove it, and those tests exist.

use std::fs;
use std::path::Path;

/// The section of a guarantee, up to the next heading.
fn section(page: &str, promise: u32) -> Option<&str> {
    let (_, rest) = page.split_once(&format!("\n## P{promise}: "))?;
    rest.split("\n## ").next()
}

/// The links whose text is inline code: the text, and the file relative to the repository.
fn links(section: &str) -> Vec<(&str, String)> {
    let text_and_rest = section.split("[`").skip(1).filter_map(|link| link.split_once("`]("));
    let target = |rest: &str| {
        let (target, _) = rest.split_once(')')?;
        Some(target.strip_prefix("../").map_or_else(|| format!("docs/{target}"), str::to_owned))
    };
    text_and_rest.filter_map(|(text, rest)| Some((text, target(rest)?))).collect()
}

/// Whether the file contains what the text names: a test or a make target.
fn shows(root: &Path, text: &str, file: &str) -> bool {
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap_or_default();
    match (text.split_once("::"), text.strip_prefix("make ")) {
        (Some((module, test)), _) => {
            let of_module = file == format!("tests/{module}.rs")
                || file.starts_with(&format!("tests/{module}/"))
                || file.contains(&format!("/tests/{module}/"))
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
fn every_guarantee_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/guarantees.md")).unwrap();
    for promise in 1..=6 {
        let section = section(&page, promise).unwrap_or_else(|| panic!("no section P{promise}"));
        let links = links(section);
        assert!(!links.is_empty(), "P{promise} names no test");
        let unlinked = section.split('`').skip(1).step_by(2).filter(|code| code.contains("::"));
        let unlinked: Vec<&str> =
            unlinked.filter(|code| !links.iter().any(|(text, _)| text == code)).collect();
        assert!(unlinked.is_empty(), "P{promise} names these and links to no file: {unlinked:#?}");
        let missing: Vec<_> = links.iter().filter(|(text, file)| !shows(root, text, file)).collect();
        assert!(missing.is_empty(), "P{promise} names what does not exist: {missing:#?}");
    }
}

#[test]
fn readme_has_a_row_for_each_guarantee() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |page: &str| fs::read_to_string(root.join(page)).unwrap();
    let (readme, page) = (read("README.md"), read("docs/guarantees.md"));
    let rows = readme.split_once("\n## Guarantees\n").unwrap().1.split("\n## ").next().unwrap();
    assert_eq!(rows.lines().filter(|line| line.starts_with("| **")).count(), 6, "{rows}");
    assert!(rows.contains("(docs/guarantees.md)"), "{rows}");
    assert_eq!(page.matches("\n## P").count(), 6);
}
