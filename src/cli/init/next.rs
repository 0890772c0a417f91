//! The next commands, for a user who has run `init`.

use super::Wanted;
use crate::cli::DEFAULT_FILE;
use crate::postgres::access::new_roles::example_insert;
use std::path::Path;

/// The default template of `[outbox] topic` without the aggregate type.
const TOPICS: &str = "events.";
const AGGREGATE_TYPE: &str = "order";
/// systemd documents this as the test for a running systemd.
const SYSTEMD: &str = "/run/systemd/system";

pub(super) fn commands(wanted: &Wanted) -> String {
    let file = wanted.file.display().to_string();
    let of_service = file == DEFAULT_FILE;
    let run = if of_service && Path::new(SYSTEMD).exists() {
        "sudo systemctl enable --now outbox-relay".to_owned()
    } else if of_service {
        "outbox-relay run".to_owned()
    } else {
        format!("outbox-relay run --config {}", shell(&file))
    };
    let created = wanted.topics.iter().find_map(|topic| topic.strip_prefix(TOPICS));
    let insert = example_insert(&wanted.table, created.unwrap_or(AGGREGATE_TYPE));
    let psql = format!("psql {} -c {}", shell(wanted.owner.text()), shell(&insert));
    format!("\nNext, start the relay, and insert an event from another terminal:\n  {run}\n  {psql}\n")
}

/// The text as one word of a shell.
fn shell(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/:@.,_-+=%".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else if text.contains(['"', '$', '`', '\\', '!']) {
        format!("'{}'", text.replace('\'', r"'\''"))
    } else {
        format!("\"{text}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::shell;

    #[test]
    fn words_are_quoted_if_the_shell_would_change_them() {
        for (text, word) in [
            ("/etc/a.toml", "/etc/a.toml"),
            ("postgres://postgres@localhost/app", "postgres://postgres@localhost/app"),
            ("a?b&c", "\"a?b&c\""),
            ("VALUES ('x')", "\"VALUES ('x')\""),
            ("\"a\" 'b'", "'\"a\" '\\''b'\\'''"),
            ("", "\"\""),
        ] {
            assert_eq!(shell(text), word);
        }
    }
}
