//! The rules of the source tree that the compiler does not enforce. Reads files and needs no servers.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in test functions; this covers what they call

use std::fs;
use std::path::Path;

const FILE_LINES_MAX: usize = 800;
const FUNCTION_LINES_MAX: usize = 70;
const FILE_LINES_MIN: usize = 60;

/// Files of the daemon that are shorter, each with the reason.
const SHORT: &[(&str, &str)] = &[
    ("crates/relay/src/fail_point.rs", "only for tests"),
    ("crates/settings/src/certificates.rs", "a table that both adapters use"),
];

/// The folders whose files and functions are measured.
const MEASURED: &[&str] = &[
    "src",
    "crates/kafka/src",
    "crates/postgres/src",
    "crates/relay/src",
    "crates/settings/src",
    "client/src",
    "client/derive/src",
    "idempotency/src",
    "bench/src",
    "demo/src",
];
/// The folders of which only the files are measured: some tests are long lists of cases.
const TESTS: &[&str] = &[
    "tests",
    "client/tests",
    "crates/relay/tests",
    "client/derive/tests",
    "idempotency/tests",
    "bench/tests",
    "demo/tests",
    "examples",
    "bench/benches",
    "fuzz/fuzz_targets",
];

/// Permitted violations, by the beginning of their report, with the reason. There are none at present.
const EXCEPTIONS: &[(&str, &str)] = &[];

/// The daemon.
const DAEMON: &[&str] = &["src", "crates"];

/// The first words of SQL statements.
const SQL: &[&str] =
    &["SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "LOCK", "CREATE", "ALTER", "GRANT", "TRUNCATE"];

/// A source file, by its path from the root.
struct Source {
    path: String,
    text: String,
}

impl Source {
    fn new(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), text: text.to_owned() }
    }

    /// The lines that are neither comments nor tests, numbered from 1.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let is_test = self.path.contains("/tests/") || self.path.ends_with("/tests.rs");
        let lines = self.text.lines().take_while(|line| !line.starts_with("#[cfg(test)]"));
        let code = (1..).zip(lines).filter(|(_, line)| !line.trim_start().starts_with("//"));
        code.take_while(move |_| !is_test)
    }

    fn is_in(&self, folder: &str) -> bool {
        self.path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
    }
}

fn sources(folders: &[&str]) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut left: Vec<_> = folders.iter().map(|folder| root.join(folder)).collect();
    let mut found = Vec::new();
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap();
                found.push(Source::new(name, &fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn long_files(sources: &[Source]) -> Vec<String> {
    let long = |source: &Source| {
        let lines = source.text.lines().count();
        (lines > FILE_LINES_MAX).then(|| format!("{}: {lines} lines, at most {FILE_LINES_MAX}", source.path))
    };
    sources.iter().filter_map(long).collect()
}

/// Tests aside. The roots of crates and folders may be short.
fn short_files(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        let name = source.path.rsplit('/').next().unwrap_or_default();
        let is_root = ["lib.rs", "main.rs", "mod.rs"].contains(&name);
        let is_known = is_root || SHORT.iter().any(|(path, _)| *path == source.path);
        let is_test = source.path.contains("/tests/") || ["tests.rs", "fixture.rs"].contains(&name);
        let lines = source.text.lines().take_while(|line| !line.starts_with("#[cfg(test)]")).count();
        if lines < FILE_LINES_MIN && !is_known && !is_test {
            found.push(format!("{}: {lines} lines, at least {FILE_LINES_MIN}", source.path));
        }
    }
    found
}

/// Files that only declare modules and import.
fn lists_of_modules(sources: &[Source]) -> Vec<String> {
    let declares = |line: &str| {
        let line = line.trim_start_matches("pub(crate) ").trim_start_matches("pub(super) ");
        let line = line.trim_start_matches("pub ");
        line.is_empty() || ["mod ", "use ", "#"].iter().any(|word| line.starts_with(word))
    };
    let lists = sources.iter().filter(|source| {
        source.path.ends_with("/mod.rs")
            && source.code().all(|(_, line)| declares(line))
            && !source.path.contains("/tests/")
    });
    lists.map(|source| format!("{} only lists modules", source.path)).collect()
}

/// Relies on rustfmt: a function ends at the first closing brace with the indentation of its first line.
fn long_functions(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        let lines: Vec<&str> = source.text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let Some(name) = function_name(line) else { continue };
            let length = 1 + lines[at..].iter().take_while(|end| !ends_function(line, end)).count();
            if length > FUNCTION_LINES_MAX {
                let path = &source.path;
                found.push(format!("{path}: fn {name} has {length} lines, at most {FUNCTION_LINES_MAX}"));
            }
        }
    }
    found
}

/// Whether `line` ends the function that begins with the line `first`.
fn ends_function(first: &str, line: &str) -> bool {
    let indent = &first[..first.len() - first.trim_start().len()];
    let Some(rest) = line.strip_prefix(indent) else { return false };
    let is_one_line = rest.ends_with(['}', ';']) && rest == first.trim_start();
    rest == "}" || is_one_line || rest.starts_with(')') && rest.ends_with(';')
}

fn function_name(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let is_qualifier = |word: &str| {
        ["const", "async", "unsafe", "default", "pub", "extern", "\"C\""].contains(&word)
            || word.starts_with("pub(")
    };
    let name = after.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    (before.split_whitespace().all(is_qualifier) && !name.is_empty()).then_some(name)
}

/// The lines that match `names`, in the sources that match `is_judged`.
fn lines_where(
    sources: &[Source],
    is_judged: impl Fn(&Source) -> bool,
    names: impl Fn(&str) -> bool,
) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources.iter().filter(|source| is_judged(source)) {
        let lines = source.code().filter(|(_, line)| names(line));
        found.extend(lines.map(|(number, line)| format!("{}:{number}: {}", source.path, line.trim())));
    }
    found
}

/// A literal may start with a line break, so the line after an open quote also counts as its beginning.
fn sql_elsewhere(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources.iter().filter(|source| !source.is_in("crates/postgres")) {
        let code: Vec<(usize, &str)> = source.code().collect();
        for (at, (number, line)) in code.iter().enumerate() {
            let opens = line.strip_suffix('\\').unwrap_or(line).ends_with('"');
            let next = code.get(at + 1).map_or("", |(_, next)| next.trim_start());
            if line.split('"').skip(1).any(is_sql) || opens && is_sql(next) {
                found.push(format!("{}:{number}: {}", source.path, line.trim()));
            }
        }
    }
    found
}

fn is_sql(literal: &str) -> bool {
    let first = literal.trim_start().split(' ').next().unwrap_or_default();
    SQL.contains(&first) && literal.contains(' ')
}

fn clocks_in_relay(sources: &[Source]) -> Vec<String> {
    let names = |line: &str| {
        ["SystemTime", "UNIX_EPOCH", "chrono"].iter().any(|word| has_word(line, word))
            || line.contains("std::time") && has_word(line, "Instant")
    };
    lines_where(sources, |source| source.is_in("crates/relay/src"), names)
}

fn has_word(line: &str, word: &str) -> bool {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|found| found == word)
}

/// Asserts that only the exceptions break the rule. `remedy` tells how to fix the others.
#[track_caller]
fn assert_none(broken: &[String], remedy: &str) {
    let is_known = |found: &&String| EXCEPTIONS.iter().any(|(known, _)| found.starts_with(known));
    let unknown: Vec<&String> = broken.iter().filter(|found| !is_known(found)).collect();
    assert!(unknown.is_empty(), "{remedy}: {unknown:#?}");
}

#[test]
fn files_and_functions_are_short() {
    let measured = sources(MEASURED);
    let long = [long_files(&measured), long_files(&sources(TESTS)), long_functions(&measured)];
    assert_none(&long.concat(), "split them");
}

#[test]
fn files_of_the_daemon_are_one_thing() {
    let sources = sources(DAEMON);
    assert_none(&short_files(&sources), "merge them with what they belong to");
    assert_none(&lists_of_modules(&sources), "declare the modules in the file above");
}

#[test]
fn only_postgres_contains_sql() {
    assert_none(&sql_elsewhere(&sources(DAEMON)), "move the statement to crates/postgres");
}

#[test]
fn relay_uses_no_wall_clock() {
    assert_none(&clocks_in_relay(&sources(DAEMON)), "use tokio's clock, which the simulation pauses");
}

#[test]
fn each_rule_finds_violations() {
    let body = "    work();\n".repeat(FUNCTION_LINES_MAX);
    let long = Source::new(
        "src/a.rs",
        &format!("trait T {{\n    fn f(\n    );\n}}\npub(crate) async fn g() {{\n{body}}}\n"),
    );
    let found = long_functions(&[long]);
    assert_eq!(found, ["src/a.rs: fn g has 72 lines, at most 70"]);
    let file = Source::new("src/a.rs", &"//\n".repeat(FILE_LINES_MAX + 1));
    assert_eq!(long_files(&[file]), ["src/a.rs: 801 lines, at most 800"]);

    let short = |path: &str| short_files(&[Source::new(path, "fn f() {}\n")]);
    assert_eq!(short("src/a.rs"), ["src/a.rs: 1 lines, at least 60"]);
    assert_eq!(
        [short("src/a/mod.rs"), short("src/a/tests.rs"), short("crates/settings/src/certificates.rs")]
            .concat(),
        [""; 0]
    );
    let lists = |text: &str| lists_of_modules(&[Source::new("src/a/mod.rs", text)]).len();
    assert_eq!((lists("//! A.\n\npub(crate) mod b;\nuse b::B;\n"), lists("mod b;\nfn f() {}\n")), (1, 0));

    let text = "const A: &str = \"\nSELECT 1\";\nlet b = (x, \"UPDATE t SET a = 1\");\nlet c = \"SELECT the rows\";\nlet d = \"Update\";\n";
    let numbers = |path: &str| sql_elsewhere(&[Source::new(path, text)]).len();
    assert_eq!((numbers("src/cli/a.rs"), numbers("crates/postgres/src/a.rs")), (3, 0));

    let text = "use std::time::{Duration, Instant};\nuse tokio::time::Instant;\nlet a = SystemTime::now();\n#[cfg(test)]\nmod tests { use chrono; }\n";
    assert_eq!(clocks_in_relay(&[Source::new("crates/relay/src/a.rs", text)]).len(), 2);
    assert_eq!(clocks_in_relay(&[Source::new("src/cli/a.rs", text)]).len(), 0);
}
