//! Every alert has a section in the runbook, every section has an alert, and every command in it is valid.

use super::{RULES, RUNBOOK, read};
use crate::support::command::{Ended, binary};
use relay::failure::FailureKind;
use relay::reason::{OTHER_CLUSTER, REASONS};
use std::collections::BTreeMap;

/// The rules by the name of the alert.
pub fn alerts() -> BTreeMap<String, String> {
    let rules = read(RULES);
    let alerts = rules.split("- alert: ").skip(1).map(|rule| {
        let (name, rest) = rule.split_once('\n').unwrap();
        (name.to_owned(), rest.to_owned())
    });
    alerts.collect()
}

/// The sections of the runbook, by title.
fn sections() -> BTreeMap<String, String> {
    let page = read(RUNBOOK);
    let sections = page.split("\n## ").skip(1).map(|section| {
        let (title, text) = section.split_once('\n').unwrap();
        (title.to_owned(), text.to_owned())
    });
    sections.collect()
}

#[test]
fn every_alert_has_a_section_and_every_section_has_an_alert() {
    let (alerts, sections) = (alerts(), sections());
    assert_eq!(alerts.keys().collect::<Vec<_>>(), sections.keys().collect::<Vec<_>>());
    for (name, rule) in &alerts {
        let url = format!("runbook_url: docs/runbook.md#{}\n", name.to_lowercase());
        assert!(rule.contains(&url), "{name} does not link to its section");
        for part in ["severity: ", "summary: ", "description: "] {
            assert_eq!(rule.matches(part).count(), 1, "{name}: {part}");
        }
        assert!(rule.contains("severity: critical\n") || rule.contains("severity: warning\n"), "{name}");
    }
}

#[test]
fn every_section_has_a_symptom_three_checks_with_commands_and_a_fix() {
    for (title, text) in sections() {
        let mut rest = text.as_str();
        for part in [
            "**Symptom.** ",
            "**Check**",
            "\n1. ",
            "```sh\n",
            "\n2. ",
            "```sh\n",
            "\n3. ",
            "```sh\n",
            "**Fix.** ",
        ] {
            let found =
                rest.find(part).unwrap_or_else(|| panic!("{title}: {part:?} is missing or out of place"));
            rest = &rest[found + part.len()..];
        }
        assert_eq!(text.matches("```sh\n").count(), 3, "{title}");
    }
}

/// The commands of the relay, in code blocks and inline code.
fn commands(page: &str) -> Vec<Vec<String>> {
    let lines = page.lines().map(str::trim);
    let spans = page.split("```").step_by(2).flat_map(|text| text.split('`').skip(1).step_by(2));
    let commands = lines.chain(spans).filter_map(|text| text.strip_prefix("outbox-relay "));
    commands.map(|command| command.split_whitespace().map(str::to_owned).collect()).collect()
}

#[test]
fn every_command_of_the_runbook_and_its_options_exist() {
    let commands = commands(&read(RUNBOOK));
    assert!(commands.len() > 20, "too few commands: {commands:?}");
    let mut seen = BTreeMap::new();
    for command in commands {
        let is_word = |word: &&String| {
            word.chars().all(|c| c.is_ascii_lowercase() || c == '-') && !word.starts_with('-')
        };
        let mut args: Vec<&str> = command.iter().take_while(is_word).map(String::as_str).collect();
        args.push("--help");
        let help = seen.entry(args.join(" ")).or_insert_with(|| {
            let ended = Ended::of(&mut binary(&args));
            ended.succeeds().to_owned()
        });
        for option in command.iter().filter(|word| word.starts_with("--")) {
            assert!(help.contains(option.as_str()), "{command:?}: there is no {option}\n{help}");
        }
    }
}

/// A relay that finds another cluster ends, so its reason is not that of an outage.
#[test]
fn every_reason_that_stops_all_publishing_is_in_the_section_about_kafka() {
    let section = &sections()["OutboxRelayKafkaDown"];
    let of_kafka = |kind| kind == FailureKind::Cluster;
    for reason in REASONS.iter().filter(|reason| of_kafka(reason.kind) && reason.word != OTHER_CLUSTER.word) {
        assert!(section.contains(&format!("`{}`", reason.word)), "{}", reason.word);
    }
}
