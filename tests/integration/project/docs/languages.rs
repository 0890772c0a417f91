//! The pages in docs/languages show the programs in examples/ as they are. `make examples` runs them with the commands
//! of the same pages.

use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const FENCE: &str = "```";

/// Programs and lists of dependencies. A page shows each of them, except those below.
const SHOWN: [&str; 11] = ["go", "java", "prisma", "py", "rs", "ts", "mod", "toml", "txt", "xml", "json"];
const NOT_SHOWN: [&str; 1] = ["package-lock.json"];

fn pages() -> Vec<PathBuf> {
    let entries = fs::read_dir(Path::new(ROOT).join("docs/languages")).unwrap();
    let mut pages: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    pages.sort();
    pages
}

/// The source that a fence names: `go examples/go/pay.go` shows the file, `xml part examples/java/pom.xml` some lines.
fn named(fence: &str) -> Option<(&str, bool)> {
    let (_, rest) = fence.strip_prefix(FENCE)?.split_once(' ')?;
    let part = rest.strip_prefix("part ");
    let path = part.unwrap_or(rest);
    path.starts_with("examples/").then_some((path, part.is_some()))
}

/// The page with the current text of each file, and the files and parts that it shows.
fn rendered(page: &str, text_of: impl Fn(&str) -> String) -> (String, Vec<String>) {
    let (mut text, mut shown) = (String::new(), Vec::new());
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        text += &format!("{line}\n");
        let Some((path, is_part)) = named(line) else { continue };
        let block: String =
            lines.by_ref().take_while(|line| *line != FENCE).map(|line| format!("{line}\n")).collect();
        let source = text_of(path);
        if is_part {
            assert!(source.contains(&block), "{path} does not contain these lines of the page:\n{block}");
        }
        text += if is_part { &block } else { &source };
        text += &format!("{FENCE}\n");
        shown.push(path.to_owned());
    }
    (text, shown)
}

fn sources(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            let built = [".venv", "__pycache__", "bin", "dist", "generated", "node_modules", "target"];
            // `bin` has the programs of Go, but the sources of Rust.
            if !built.contains(&name) || path.ends_with("src/bin") {
                sources(&path, found);
            }
        } else if SHOWN.iter().any(|kind| path.extension().is_some_and(|is| is == *kind))
            && !NOT_SHOWN.contains(&name)
        {
            found.push(path.strip_prefix(ROOT).unwrap().to_str().unwrap().to_owned());
        }
    }
}

#[test]
fn pages_of_languages_show_the_programs() {
    let (mut shown, mut stale) = (Vec::new(), Vec::new());
    for path in pages() {
        let page = fs::read_to_string(&path).unwrap();
        let (wanted, files) = rendered(&page, |file| fs::read_to_string(Path::new(ROOT).join(file)).unwrap());
        shown.extend(files);
        if page != wanted {
            if std::env::var_os("UPDATE_DOCS").is_some() {
                fs::write(&path, &wanted).unwrap();
            } else {
                stale.push(path);
            }
        }
    }
    assert!(stale.is_empty(), "out of date; run `make docs`: {stale:#?}");
    let mut programs = Vec::new();
    for language in ["go", "java", "orms", "python", "rust", "typescript"] {
        sources(&Path::new(ROOT).join("examples").join(language), &mut programs);
    }
    programs.retain(|program| !shown.contains(program));
    assert!(programs.is_empty(), "no page shows {programs:#?}");
}

#[test]
fn blocks_are_replaced_by_their_files() {
    let page = "a\n```go examples/x.go\nold\n```\nb\n```sh build\nmake\n```\n```xml part examples/p.xml\n<b/>\n```\n";
    let text_of = |path: &str| if path == "examples/x.go" { "new\n" } else { "<a/>\n<b/>\n" }.to_owned();
    let (text, shown) = rendered(page, text_of);
    assert_eq!(text, page.replace("old", "new"));
    assert_eq!(shown, ["examples/x.go", "examples/p.xml"]);
    assert_eq!(named("```sh pay"), None);
}
