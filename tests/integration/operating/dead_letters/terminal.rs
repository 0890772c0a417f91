//! What an event contains cannot control the terminal of an operator, and changes of everything are confirmed there.

use serde_json::Value;
use std::io::Write;
use std::process::{Command, Stdio};

use super::filled;
use crate::operating::commands::Setup;
use crate::support::command::Ended;

/// Sets the clipboard, clears the screen with an 8-bit sequence, reverses the text, and begins a line of its own.
const EVIL: &str = "\u{1b}]52;c;Zm9v\u{7}\u{9b}2J\u{202e}\u{2067}\u{200f}\u{61c}\u{2029}\r\u{7f}\nforged";

fn assert_harmless(ended: &Ended) {
    for text in [&ended.stdout, &ended.stderr] {
        let bad = text.chars().find(|c| EVIL.contains(*c) && !c.is_ascii_graphic() && !"\r\n".contains(*c));
        assert!(bad.is_none(), "{bad:?} in {text:?}");
        assert!(!text.lines().any(|line| line.starts_with("forged")), "a line of an event in {text:?}");
    }
}

/// Runs the command on a terminal, on which this is typed.
pub(crate) fn on_terminal(command: &Command, typed: &str) -> Ended {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let line: Vec<String> = words.map(|word| format!("'{}'", word.to_str().unwrap())).collect();
    let mut script = Command::new("script");
    script.args(["-qec", &line.join(" "), "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = script.stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(typed.as_bytes()).unwrap();
    Ended::new(format!("{script:?}"), child.wait_with_output().unwrap())
}

async fn with_evil_events(test: &str) -> Setup {
    let setup = Setup::migrated(test).await;
    let sql = "
        INSERT INTO app.outbox_dead_letter (outbox_id, event_id, aggregate_type, aggregate_id, event_type, payload, headers,
                                            created_at, topic, reason, error)
        SELECT 1, gen_random_uuid(), 'a' || $1::text, 'k' || $1, 't' || $1,
               convert_to('p' || split_part($1, E'\\n', 1), 'UTF8') || '\\xff'::bytea,
               jsonb_build_object('h', $1), now(), 'topic' || $1, 'reason' || $1, 'error' || $1";
    setup.client.execute(sql, &[&EVIL]).await.unwrap();
    let sql = "
        INSERT INTO app.outbox_blocked_key (aggregate_type, aggregate_id, outbox_id, event_id, topic, reason, error)
        SELECT 'a' || $1::text, 'k' || $1, 1, gen_random_uuid(), 'topic' || $1, 'reason' || $1, 'error' || $1";
    setup.client.execute(sql, &[&EVIL]).await.unwrap();
    let sql = "INSERT INTO app.outbox_hold (topic, reason, error) SELECT 'topic' || $1::text, 'reason' || $1, 'error' || $1";
    setup.client.execute(sql, &[&EVIL]).await.unwrap();
    let sql = "INSERT INTO app.outbox_pause (topic, reason) SELECT 'topic' || $1::text, 'reason' || $1";
    setup.client.execute(sql, &[&EVIL]).await.unwrap();
    setup
}

#[tokio::test]
async fn no_command_prints_control_characters_of_an_event() {
    let setup = with_evil_events("dead_letters_evil").await;
    for args in [
        &["pause", "--key", "a", EVIL, "--reason", EVIL] as &[&str],
        &["dead-letters", "list"],
        &["dead-letters", "list", "--json"],
        &["dead-letters", "show", "1"],
        &["dead-letters", "show", "1", "--json"],
        &["dead-letters", "requeue", "--all", "--dry-run"],
        &["dead-letters", "history"],
        &["blocked-keys", "list"],
        &["blocked-keys", "list", "--json"],
        &["blocked-keys", "retry", "--all", "--dry-run"],
        &["status"],
        &["status", "--json"],
        &["check-config", "--connect"],
        &["resume", "--topic", EVIL],
    ] {
        let ended = setup.relay(args);
        assert_harmless(&ended);
        assert!(!ended.stdout.is_empty(), "{ended}");
        let ended = on_terminal(&setup.command(args), "");
        assert_harmless(&ended);
    }
    let shown = setup.relay(&["dead-letters", "show", "1"]);
    assert!(shown.succeeds().contains(r"p\u001b]52;c;Zm9v\u0007\u009b2J\u202e"), "{shown}");
    let json: Value =
        serde_json::from_str(setup.relay(&["dead-letters", "show", "1", "--json"]).succeeds()).unwrap();
    assert_eq!(json["aggregate_id"], format!("k{EVIL}"), "the value of the JSON is unchanged");

    // The lines of a payload are printed as lines, so it has only the first one.
    let first = EVIL.split('\n').next().unwrap();
    let exact = [b"p", first.as_bytes(), b"\xff"].concat();
    let payload = setup.command(&["dead-letters", "show", "1", "--payload"]).output().unwrap();
    assert_eq!(payload.stdout, exact, "the bytes in a file are unchanged");
    assert_harmless(&on_terminal(&setup.command(&["dead-letters", "show", "1", "--payload"]), ""));
    let raw = setup.command(&["dead-letters", "show", "1", "--raw"]).output().unwrap();
    assert!(raw.stdout.windows(exact.len()).any(|part| part == exact));
    setup.drop(&[]).await;
}

#[tokio::test]
async fn change_of_everything_is_confirmed_on_a_terminal() {
    let setup = filled("dead_letters_confirm").await;
    let left = "SELECT count(*) FROM app.outbox_dead_letter WHERE requeued_at IS NULL";
    for args in [
        &["dead-letters", "discard", "--all"] as &[&str],
        &["dead-letters", "requeue", "--all"],
        &["blocked-keys", "retry", "--all"],
        &["replay", "--all"],
    ] {
        let ended = on_terminal(&setup.command(args), "n\n");
        assert!(ended.stdout.contains("[y/N]") && ended.stdout.contains("Nothing was changed"), "{ended}");
        assert_eq!(ended.code, 1, "{ended}");
    }
    assert_eq!(setup.number(left).await, 3);
    let preview = on_terminal(&setup.command(&["dead-letters", "discard", "--all", "--dry-run"]), "");
    assert!(!preview.stdout.contains("[y/N]"), "{preview}");
    on_terminal(&setup.command(&["dead-letters", "discard", "--id", "1"]), "").succeeds();
    assert_eq!(setup.number(left).await, 2);
    on_terminal(&setup.command(&["dead-letters", "requeue", "--all", "--limit", "1"]), "y\n").succeeds();
    assert_eq!(setup.number(left).await, 1);
    on_terminal(&setup.command(&["dead-letters", "discard", "--all", "--yes"]), "").succeeds();
    assert_eq!(setup.number("SELECT count(*) FROM app.outbox_dead_letter").await, 0);
    setup.drop(&[]).await;
}

#[tokio::test]
async fn unusable_values_are_refused_with_an_example() {
    let setup = filled("dead_letters_values").await;
    let long = "x".repeat(1_001);
    for args in [&["pause", "--reason", &long] as &[&str], &["replay", "--all", "--reason", &long]] {
        setup.relay(args).fails(2, &["--reason", "1001 bytes", "at most 1000"]);
    }
    for args in [
        &["verify", "--since", "-1h"] as &[&str],
        &["replay", "--since", "-1h"],
        &["replay", "--sent-before", "-1h"],
        &["dead-letters", "list", "--older-than", "-1h"],
        &["dead-letters", "list", "--newer-than", "-1h"],
    ] {
        setup.relay(args).fails(2, &["without a sign", "1h"]);
    }
    setup.relay(&["pause", "--reason", &"x".repeat(1_000)]).succeeds();
    setup.relay(&["resume"]).succeeds();
    setup.relay(&["dead-letters", "requeue", "--all", "--not-requeued", "--dry-run"]).succeeds();
    setup.relay(&["dead-letters", "requeue", "--all", "--not-requeued", "--again"]).fails(2, &["--again"]);
    setup.drop(&[]).await;
}
