//! `docs/configuration.md` matches the code.

use super::page::manual;
use crate::config::catalogue::CATALOGUE;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md");

#[test]
fn the_manual_is_up_to_date() {
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(PAGE, manual()).unwrap();
    }
    let written = std::fs::read_to_string(PAGE).unwrap_or_default();
    let refresh = "docs/configuration.md is out of date; run `make docs`";
    assert!(written == manual(), "{refresh}");
}

#[test]
fn the_manual_has_every_setting_once_in_a_row_of_four_cells() {
    let page = manual();
    for setting in CATALOGUE.settings() {
        let section = page.split(&format!("\n## [{}]\n", setting.section)).nth(1).unwrap();
        let section = section.split("\n## ").next().unwrap();
        let begins = format!("| `{}` | ", setting.key);
        let rows: Vec<&str> = section.lines().filter(|line| line.starts_with(&begins)).collect();
        assert_eq!(rows.len(), 1, "[{}] {}", setting.section, setting.key);
        assert_eq!(rows[0].replace("\\|", "").matches('|').count(), 5, "{}", rows[0]);
    }
}
