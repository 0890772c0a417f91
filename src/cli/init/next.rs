//! The next commands, for a user who has run `init`.

use super::Wanted;
use crate::config::{Config, DEFAULT_FILE};
use pg_outbox::topic::TopicTemplate;
use postgres::access::roles::example_insert;
use settings::text::shell;
use std::path::Path;

const AGGREGATE_TYPE: &str = "order";
/// systemd documents this as the test for a running systemd.
const SYSTEMD: &str = "/run/systemd/system";

pub(super) fn commands(wanted: &Wanted, config: &Config) -> String {
    let file = wanted.file.display().to_string();
    let of_service = file == DEFAULT_FILE;
    let run = if of_service && Path::new(SYSTEMD).exists() {
        "sudo systemctl enable --now outbox-relay".to_owned()
    } else if of_service {
        "outbox-relay run".to_owned()
    } else {
        format!("outbox-relay run --config {}", shell(&file))
    };
    let insert = example_insert(&wanted.table, aggregate_type(&config.outbox.topic, &wanted.topics));
    let psql = format!("psql {} -c {}", shell(wanted.owner.text()), shell(&insert));
    let grant =
        format!("psql {} -c {}", shell(wanted.owner.text()), shell(&wanted.role.operator_grant("alice")));
    format!(
        "\nTo let alice use the commands of operators, such as `dead-letters` (docs/operating.md):\n  {grant}\n\
         \nNext, start the relay, and insert an event from another terminal:\n  {run}\n  {psql}\n"
    )
}

/// An aggregate type whose events belong to one of these topics, if the topic depends only on the type.
fn aggregate_type<'a>(template: &TopicTemplate, topics: &'a [String]) -> &'a str {
    let of = |topic: &'a String| topic.strip_prefix(template.prefix())?.strip_suffix(template.suffix());
    let is_type = |name: &&str| !name.is_empty() && template.is_by_aggregate_type();
    topics.iter().filter_map(of).find(is_type).unwrap_or(AGGREGATE_TYPE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_event_belongs_to_a_created_topic() {
        let topics = ["other", "events.invoice", "shop.invoice.v1"].map(str::to_owned);
        for (template, expected) in [
            ("events.{aggregate_type}", "invoice"),
            ("shop.{aggregate_type}.v1", "invoice"),
            ("{aggregate_type}", "other"),
            ("unused.{aggregate_type}", "order"),
            ("events.{aggregate_type}.{event_type}", "order"),
            ("events.{event_type}", "order"),
            ("other", "order"),
        ] {
            assert_eq!(aggregate_type(&template.parse().unwrap(), &topics), expected, "{template}");
        }
    }

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
