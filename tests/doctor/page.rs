//! `docs/doctor.md` contains the table of finding codes. `make docs` writes it.

use outbox_relay::doctor::codes::CODES;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/doctor.md");
const BEGIN: &str = "<!-- rendered from src/doctor/codes.rs";
const END: &str = "<!-- end -->";

fn rendered() -> String {
    let mut table = String::from("| Code | Severity | What it means |\n|---|---|---|\n");
    for code in CODES {
        table += &format!("| `{}` | {} | {} |\n", code.word, code.severity.word(), code.means);
    }
    table
}

#[test]
fn page_shows_the_codes() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let begin = page.find(BEGIN).expect("the marker of the table");
    let begin = begin + page[begin..].find('\n').unwrap() + 1;
    let end = begin + page[begin..].find(END).expect("the end of the table");
    let wanted = format!("{}{}{}", &page[..begin], rendered(), &page[end..]);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(PAGE, &wanted).unwrap();
        return;
    }
    let differs = page.lines().zip(wanted.lines()).find(|(is, should)| is != should);
    assert!(page == wanted, "docs/doctor.md is out of date; run `make docs`: {differs:#?}");
}

/// Every code must be named in a test, because otherwise no test covers it.
#[test]
fn every_code_is_covered_by_a_test() {
    let tests = [
        include_str!("../doctor.rs"),
        include_str!("../topic_column.rs"),
        include_str!("bounded.rs"),
        include_str!("events.rs"),
        include_str!("pooler.rs"),
        include_str!("privileges.rs"),
        include_str!("schema.rs"),
        include_str!("servers.rs"),
        include_str!("topic_template.rs"),
        include_str!("topics.rs"),
        include_str!("vacuum.rs"),
    ];
    for code in CODES {
        let named = format!("\"{}\"", code.word);
        assert!(tests.iter().any(|test| test.contains(&named)), "no test names {}", code.word);
    }
}
