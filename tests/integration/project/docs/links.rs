//! The links of every page in the repository have a target.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Every Markdown file, except build products and installed packages.
pub(super) fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if entry.file_type().unwrap().is_dir() {
            if !["target", "node_modules"].contains(&&*name) && !name.starts_with('.') {
                pages(&path, found);
            }
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}

/// The lines outside code blocks, without inline code.
fn prose(text: &str) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            lines.push((at + 1, line.split('`').step_by(2).collect::<Vec<_>>().join("")));
        }
    }
    lines
}

/// The targets of `[text](target)` in a line.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.trim()))
}

/// The anchors that GitHub generates for the headings of a page.
fn anchors(text: &str) -> Vec<String> {
    let mut anchors = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        fenced ^= line.starts_with("```");
        let heading = line.trim_start_matches('#');
        if fenced || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        anchors.push(kept.collect::<String>().to_lowercase().replace(' ', "-"));
    }
    anchors
}

#[test]
fn every_relative_link_has_a_file_and_a_heading() {
    let mut found = Vec::new();
    pages(Path::new(ROOT), &mut found);
    let texts: HashMap<PathBuf, String> =
        found.iter().map(|path| (path.canonicalize().unwrap(), fs::read_to_string(path).unwrap())).collect();
    let (mut checked, mut broken) = (0, Vec::new());
    for (path, text) in &texts {
        for (number, line) in prose(text) {
            for target in targets(&line) {
                // rustdoc checks links to items of the crate itself.
                if target.contains("://") || target.starts_with("mailto:") || target.starts_with("crate::") {
                    continue;
                }
                checked += 1;
                let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
                let linked = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
                let leads = match linked.canonicalize() {
                    Err(_) => false,
                    Ok(_) if anchor.is_empty() => true,
                    Ok(linked) => {
                        texts.get(&linked).is_some_and(|text| anchors(text).contains(&anchor.to_owned()))
                    }
                };
                if !leads {
                    broken.push(format!("{}:{number}: {target}", path.display()));
                }
            }
        }
    }
    println!("{checked} links in {} pages", texts.len());
    assert!(checked > 50, "{checked} links");
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn index_links_every_page_of_docs() {
    let index = fs::read_to_string(Path::new(ROOT).join("docs/README.md")).unwrap();
    let mut found = Vec::new();
    pages(&Path::new(ROOT).join("docs"), &mut found);
    let names = found.iter().map(|path| path.strip_prefix(Path::new(ROOT).join("docs")).unwrap().display());
    let missing: Vec<String> = names
        .map(|name| name.to_string())
        .filter(|name| name != "README.md" && !index.contains(&format!("({name})")))
        .collect();
    assert!(missing.is_empty(), "docs/README.md does not link to {missing:?}");
}

#[test]
fn links_and_headings_are_parsed_like_github() {
    assert_eq!(targets("a [b](c.md) and [d](../e.md#f)").collect::<Vec<_>>(), ["c.md", "../e.md#f"]);
    assert_eq!(prose("a `[b](c)` d\n```\n[e](f)\n```"), [(1, "a  d".to_owned())]);
    assert_eq!(anchors("# One: two, 3\n## `code` here\n#no"), ["one-two-3", "code-here"]);
}
