//! `docs/doctor.md` contains the table of finding codes. `make docs` writes it.

use crate::support::rendered;
use outbox_relay::cli::doctor;
use std::fs;
use std::path::Path;

fn table() -> String {
    let mut table = String::from("| Code | Severity | What it means |\n|---|---|---|\n");
    for code in doctor::all() {
        table += &format!("| `{}` | {} | {} |\n", code.word, code.severity.word(), code.means);
    }
    table
}

#[test]
fn page_shows_the_codes() {
    rendered::check("docs/doctor.md", &[("src/cli/doctor.rs", table())]);
}

/// Every code must be named in a test, because otherwise no test covers it.
#[test]
fn every_code_is_covered_by_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = root.join("tests/integration/operating/doctor");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let others = [
        "operating/doctor.rs",
        "operating/commands/schema.rs",
        "rows/topic_column.rs",
        "rows/waves.rs",
        "failures/advertised.rs",
        "schema/planted.rs",
        "service/clusters.rs",
        "../faults/kafka_partitions.rs",
    ];
    let others = others.map(|file| root.join("tests/integration").join(file));
    let tests: String = files.chain(others).map(|file| fs::read_to_string(file).unwrap()).collect();
    let uncovered =
        doctor::all().map(|code| code.word).filter(|word| !tests.contains(&format!("\"{word}\"")));
    let uncovered: Vec<_> = uncovered.collect();
    assert!(uncovered.is_empty(), "no test names {uncovered:?}");
}
