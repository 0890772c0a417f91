//! The prose check: documentation and printed strings use plain, idiomatic English.
//!
//! It covers the pages, the manual pages, the example configuration and the string literals of the programs. Help texts
//! are covered by the manual pages. Comments in the code are not checked.

use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Files and folders that are checked.
const PLACES: [&str; 12] = [
    "docs",
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "man",
    "config.example.toml",
    "src",
    "crates",
    "client/src",
    "idempotency/src",
    "bench/src",
    "demo/src",
];

/// Phrases in lower case, and their replacements.
const REPLACE: [(&str, &str); 47] = [
    ("mend", "fix"),
    ("mends", "fixes"),
    ("mended", "fixed"),
    ("goes on", "continues"),
    ("went on", "continued"),
    ("taken up", "applied"),
    ("stands in", "is in"),
    ("stand in", "are in"),
    ("stands behind", "follows"),
    ("told apart", "distinguished"),
    ("anew", "again"),
    ("for want of", "because there is no"),
    ("on account of", "because of"),
    ("goes round", "skips"),
    ("go round", "skip"),
    ("as it must be", "valid"),
    ("is at it", "in progress"),
    ("dearer", "more expensive"),
    ("let flow", "resume"),
    ("flow again", "resume"),
    ("flows again", "resumes"),
    ("all others flow", "others continue"),
    ("lets go of", "releases"),
    ("let go of", "release"),
    ("what came of", "the result of"),
    ("what became of", "the result of"),
    ("what becomes of", "the result of"),
    ("look whether", "check whether"),
    ("looks whether", "checks whether"),
    ("hands on", "passes"),
    ("hands over", "passes"),
    ("comes by", "arrives"),
    ("is had", "is available"),
    ("to be had", "available"),
    ("throw away", "discard"),
    ("throws away", "discards"),
    ("thrown away", "discarded"),
    ("for good", "permanently"),
    ("of late", "recently"),
    ("no more than sense", "a rule of thumb"),
    ("makes tables", "creates tables"),
    ("makes topics", "creates topics"),
    ("the wrong way round", "out of order"),
    ("asked to end", "shutdown requested"),
    ("whoever", "anyone who"),
    ("somebody", "another session, an operator, or a user"),
    ("nobody", "no one, or name the person or role"),
];

/// Sentences with more words than this are counted in the report.
const LONG_SENTENCE: usize = 25;

fn files_below(path: &Path, files: &mut Vec<PathBuf>) {
    if path.is_dir() {
        let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        entries.for_each(|entry| files_below(&entry, files));
    } else if path
        .extension()
        .is_some_and(|kind| ["md", "toml", "html", "rs", "1", "5"].iter().any(|x| kind == *x))
    {
        files.push(path.to_owned());
    }
}

/// The words of a text in lower case, with one space before and after each.
fn words(text: &str) -> String {
    let mut words = String::from(" ");
    for word in text.split(|c: char| !(c.is_alphanumeric() || c == '\'' || c == '-' || c == '_')) {
        if !word.is_empty() {
            words.push_str(&word.to_lowercase());
            words.push(' ');
        }
    }
    words
}

fn found(text: &str) -> Vec<(&'static str, &'static str)> {
    let words = words(text);
    REPLACE.into_iter().filter(|(phrase, _)| words.contains(&format!(" {phrase} "))).collect()
}

/// The string literals of a Rust file before its unit tests, with the lines where they begin.
fn strings(source: &str) -> Vec<(usize, String)> {
    let source = source.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let mut strings = Vec::new();
    let mut rest = source;
    while let Some(at) = rest.find(['"', '\'', '/']) {
        let (sign, line) = (&rest[at..], source[..source.len() - rest.len() + at].lines().count());
        rest = if sign.starts_with("//") {
            &sign[sign.find('\n').unwrap_or(sign.len())..]
        } else if let Some(text) = sign.strip_prefix('"') {
            let hashes = rest[..at].chars().rev().take_while(|c| *c == '#').count();
            let raw = rest[..at - hashes].ends_with('r');
            let end = if raw { format!("\"{}", "#".repeat(hashes)) } else { "\"".to_owned() };
            let length = literal_length(text, &end, raw);
            strings.push((line, text[..length].replace("\\n", " ").replace("\\\n", " ")));
            &text[length + end.len()..]
        } else if sign.starts_with('\'') {
            &sign[character_length(sign)..]
        } else {
            &sign[1..]
        };
    }
    strings
}

fn literal_length(text: &str, end: &str, raw: bool) -> usize {
    let mut at = 0;
    while !text[at..].starts_with(end) {
        let escaped = usize::from(!raw && text[at..].starts_with('\\'));
        let next = text[at..].chars().take(1 + escaped).map(char::len_utf8).sum::<usize>();
        at += next;
    }
    at
}

/// The length of a character literal, or 1 for the quote of a lifetime.
fn character_length(text: &str) -> usize {
    let mut inner = text[1..].chars();
    let length = match (inner.next(), inner.next()) {
        (Some('\\'), Some(escaped)) => {
            text[2 + escaped.len_utf8()..].find('\'').map(|end| end + 3 + escaped.len_utf8())
        }
        (Some(character), Some('\'')) => Some(2 + character.len_utf8()),
        _ => None,
    };
    length.unwrap_or(1)
}

/// The paragraphs of a text file. Lines are joined, so that a phrase may span two lines.
fn paragraphs(text: &str) -> Vec<(usize, String)> {
    let mut paragraphs: Vec<(usize, String)> = Vec::new();
    let mut ended = true;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_start_matches(['#', ' ']).replace("\\-", "-");
        match paragraphs.last_mut().filter(|_| !ended) {
            Some((_, paragraph)) => paragraph.push_str(&format!(" {line}")),
            None => paragraphs.push((number + 1, line.clone())),
        }
        ended = line.is_empty() || line.starts_with(['|', '.']);
    }
    paragraphs
}

#[test]
fn documentation_and_messages_are_in_plain_english() {
    let mut files = Vec::new();
    PLACES.iter().for_each(|place| files_below(&Path::new(ROOT).join(place), &mut files));
    assert!(files.len() > 200, "only {} files were found", files.len());
    let (mut problems, mut long, mut sentences) = (Vec::new(), 0, 0);
    for file in files {
        let (text, name) = (fs::read_to_string(&file).unwrap(), file.strip_prefix(ROOT).unwrap());
        let rust = file.extension().is_some_and(|kind| kind == "rs");
        if rust && name.components().any(|part| ["tests", "tests.rs"].iter().any(|x| part.as_os_str() == *x))
        {
            continue;
        }
        let texts = if rust { strings(&text) } else { paragraphs(&text) };
        for (line, text) in texts {
            for (phrase, better) in found(&text) {
                problems.push(format!("{}:{line}: {phrase:?}; write {better:?}", name.display()));
            }
            for sentence in text.split_terminator(". ").filter(|_| !rust) {
                sentences += 1;
                long += usize::from(sentence.split_whitespace().count() > LONG_SENTENCE);
            }
        }
    }
    println!("{long} of {sentences} sentences in pages have more than {LONG_SENTENCE} words");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn prose_check_finds_phrases_in_strings_and_pages() {
    let source = "fn f<'a>() { let q = '\"'; let c = '\\''; let s = \"it is \\\n    mended\"; // anew\n r#\"he \"goes on\"\"#; }";
    let strings = strings(source);
    let phrases: Vec<_> =
        strings.iter().flat_map(|(_, text)| found(text)).map(|(phrase, _)| phrase).collect();
    assert_eq!(phrases, ["mended", "goes on"], "{strings:?}");
    let page = paragraphs("A page.\n\nIt is thrown\naway, and amended.\n");
    let phrases: Vec<_> = page.iter().flat_map(|(_, text)| found(text)).map(|(phrase, _)| phrase).collect();
    assert_eq!(phrases, ["thrown away"], "{page:?}");
}
