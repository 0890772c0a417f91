//! A page of docs/ as a list of blocks that readers can run.

use std::path::Path;

const FENCE: &str = "```";

/// A fenced block in a language that the tests handle.
#[derive(Clone, Debug)]
pub struct Block {
    /// The line of its opening fence, starting at 1.
    pub line: usize,
    pub kind: Kind,
    pub text: String,
    /// Its expected output: the text block that follows immediately.
    pub prints: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `sh`: run by bash until it ends.
    Shell,
    /// `sh background`: started, and stopped at the end of the page.
    Background,
    /// `sql`: run by psql.
    Sql,
    /// `sh elsewhere`: cannot run here, such as systemctl.
    Elsewhere,
    /// `toml config.toml`: a file of this name.
    File(String),
}

/// Reads a page of docs/.
pub fn read(page: &str) -> Vec<Block> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(page);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{page}: {error}"));
    blocks(page, &text)
}

fn blocks(page: &str, text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut lines = text.lines().enumerate();
    let mut nothing_since = false;
    while let Some((at, line)) = lines.next() {
        let Some(info) = line.strip_prefix(FENCE) else {
            nothing_since = nothing_since && line.is_empty();
            continue;
        };
        let inside: Vec<&str> =
            lines.by_ref().map(|(_, line)| line).take_while(|line| *line != FENCE).collect();
        let text = inside.join("\n");
        match (info, blocks.last_mut()) {
            ("text", Some(before)) if nothing_since => before.prints = Some(text),
            // The documentation tests of pg-outbox compile Rust blocks. They are ignored here.
            ("text" | "rust", _) => {}
            _ => {
                let kind = kind(info)
                    .unwrap_or_else(|| panic!("docs/{page}:{}: {info:?} is not a known fence", at + 1));
                blocks.push(Block { line: at + 1, kind, text, prints: None });
                nothing_since = true;
            }
        }
    }
    blocks
}

fn kind(info: &str) -> Option<Kind> {
    Some(match info.split_once(' ').unwrap_or((info, "")) {
        ("sh", "") => Kind::Shell,
        ("sh", "background") => Kind::Background,
        ("sh" | "sql", "elsewhere") => Kind::Elsewhere,
        ("sql", "") => Kind::Sql,
        // The text of a file, which languages.rs compares.
        ("sql", name) if name.starts_with("examples/") => Kind::Sql,
        ("toml", name) if !name.is_empty() => Kind::File(name.to_owned()),
        _ => return None,
    })
}

/// Whether the output matches. `…` stands for any text in a line, or for any lines if it is alone.
pub fn fits(wanted: &str, printed: &str) -> bool {
    let (wanted, printed): (Vec<&str>, Vec<&str>) = (wanted.lines().collect(), printed.lines().collect());
    lines_fit(&wanted, &printed)
}

fn lines_fit(wanted: &[&str], printed: &[&str]) -> bool {
    match wanted {
        [] => printed.is_empty(),
        ["…", rest @ ..] => (0..=printed.len()).any(|skipped| lines_fit(rest, &printed[skipped..])),
        [line, rest @ ..] => {
            printed.first().is_some_and(|first| line_fits(line, first.trim_end()))
                && lines_fit(rest, &printed[1..])
        }
    }
}

fn line_fits(wanted: &str, printed: &str) -> bool {
    let Some((begin, rest)) = wanted.split_once('…') else { return wanted == printed };
    let Some(printed) = printed.strip_prefix(begin) else { return false };
    let mut ends = printed.char_indices().map(|(at, _)| at).chain([printed.len()]);
    ends.any(|at| line_fits(rest, &printed[at..]))
}

#[test]
fn blocks_are_recognized_by_their_fences() {
    let text = "```sh\na\nb\n```\n\n```text\nx\n```\n```toml c.toml\nk = 1\n```\nwords\n```text\ny\n```\n```sql\nS;\n```";
    let found = blocks("test", text);
    let kinds: Vec<&Kind> = found.iter().map(|block| &block.kind).collect();
    assert_eq!(kinds, [&Kind::Shell, &Kind::File("c.toml".to_owned()), &Kind::Sql]);
    assert_eq!((found[0].text.as_str(), found[0].prints.as_deref()), ("a\nb", Some("x")));
    assert_eq!((found[1].line, found[1].prints.as_deref()), (9, None));
}

#[test]
fn output_is_compared_with_wildcards() {
    for (wanted, printed, is) in [
        ("a\nb", "a\nb\n", true),
        ("a\n…", "a", true),
        ("a\n…\nz", "a\nb\nc\nz", true),
        ("a …, b …", "a 1, b 2", true),
        ("a …", "b 1", false),
        ("a\n…\nz", "a\nb", false),
        ("a", "a\nb", false),
        ("…", "", true),
    ] {
        assert_eq!(fits(wanted, printed), is, "{wanted:?} {printed:?}");
    }
}
