//! Dead letters as an operator handles them: the real commands on a real database.

use postgres::access::grants::{operator_grants, relay_grants};
use serde_json::{Value, json};
use std::process::Stdio;

use crate::operating::commands::{Setup, kafka};
use crate::support::database::run;

mod header_changes;
mod requeue;
pub(crate) mod terminal;

const EVENT: &str = "00000000-0000-0000-0000-00000000000";

/// Six dead letters: 1 to 3 of topic `events.order`, 4 to 6 of `events.user`. Those with an even id are an hour old and
/// were requeued a minute ago. Dead letter n has the event n and the row n * 100.
async fn filled(test: &str) -> Setup {
    let setup = Setup::migrated(test).await;
    setup
        .sql(&format!(
            "INSERT INTO app.outbox_dead_letter (outbox_id, event_id, aggregate_type, aggregate_id, event_type, payload,
                                                 headers, created_at, topic, reason, error, rejected_at, requeued_at)
             SELECT n * 100, ('{EVENT}' || n)::uuid, t, 'key-' || n % 3, 'Placed', '{{\"secret\": \"payload\"}}',
                    '{{\"secret\": \"header\"}}', now(), 'events.' || t,
                    CASE WHEN n = 6 THEN 'invalid-headers' ELSE 'record-too-large' END, 'the error',
                    CASE WHEN n % 2 = 0 THEN now() - interval '1 hour' ELSE now() END,
                    CASE WHEN n % 2 = 0 THEN now() - interval '1 minute' END
             FROM generate_series(1, 6) AS n, LATERAL (SELECT CASE WHEN n <= 3 THEN 'order' ELSE 'user' END) AS of(t)"
        ))
        .await;
    setup
}

/// The values of the lines of JSON output.
pub fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

pub fn ids(text: &str) -> Vec<i64> {
    lines(text).iter().map(|line| line["id"].as_i64().unwrap()).collect()
}

/// Adds this many dead letters of one key.
async fn add_dead_letters(setup: &Setup, number: usize) {
    setup
        .sql(&format!(
            "INSERT INTO app.outbox_dead_letter (outbox_id, event_id, aggregate_type, aggregate_id, event_type,
                                                 created_at, topic, reason, error)
             SELECT n, gen_random_uuid(), 'order', 'k', 'x', now(), 't', 'r', 'e' FROM generate_series(1, {number}) AS n",
        ))
        .await;
}

/// Everything that the commands could change.
pub async fn state(setup: &Setup) -> String {
    let sql = "SELECT concat((SELECT json_agg(d ORDER BY id) FROM app.outbox_dead_letter AS d),
                             (SELECT json_agg(o ORDER BY id) FROM app.outbox AS o),
                             (SELECT json_agg(b ORDER BY outbox_id) FROM app.outbox_blocked_key AS b),
                             (SELECT json_agg(a ORDER BY id) FROM app.outbox_act AS a))";
    setup.client.query_one(sql, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn filters_select_dead_letters_in_every_command_and_a_dry_run_changes_nothing() {
    let setup = filled("letters_filters").await;
    let event = format!("{EVENT}5");
    let cases: [(&[&str], &[i64]); 13] = [
        (&["--topic", "events.order"], &[3, 2, 1]),
        (&["--topic", "events"], &[]),
        (&["--key", "key-1"], &[4, 1]),
        (&["--reason", "invalid-headers"], &[6]),
        (&["--older-than", "30m"], &[6, 4, 2]),
        (&["--newer-than", "30m"], &[5, 3, 1]),
        (&["--newer-than", "2h", "--older-than", "30m"], &[6, 4, 2]),
        (&["--older-than", "2h"], &[]),
        (&["--id", "2"], &[2]),
        (&["--id", "2,5", "--id", "6"], &[6, 5, 2]),
        (&["--event-id", &event], &[5]),
        (&["--topic", "events.user", "--key", "key-0", "--reason", "invalid-headers"], &[6]),
        (&["--id", "77"], &[]),
    ];
    let before = state(&setup).await;
    for (filters, expected) in cases {
        let with = |command: &[&str]| setup.relay(&[&["dead-letters"], command, filters].concat());
        assert_eq!(ids(with(&["list", "--json"]).succeeds()), expected, "{filters:?}");
        let count = |object: &str| {
            let object: Value = serde_json::from_str(object).unwrap();
            assert_eq!(object["dry_run"], true, "{object}");
            object["dead_letters"].as_u64().unwrap() as usize
        };
        let discard = with(&["discard", "--dry-run", "--json"]);
        assert_eq!(count(discard.succeeds()), expected.len(), "{discard}");
        let requeue = with(&["requeue", "--dry-run", "--json"]);
        let fresh = expected.iter().filter(|id| *id % 2 == 1).count();
        assert_eq!(count(requeue.succeeds()), fresh, "{requeue}");
        let again = with(&["requeue", "--dry-run", "--json", "--again"]);
        assert_eq!(count(again.succeeds()), expected.len(), "{again}");
    }
    for (flag, expected) in [("--requeued", [6, 4, 2]), ("--not-requeued", [5, 3, 1])] {
        assert_eq!(ids(setup.relay(&["dead-letters", "list", "--json", flag]).succeeds()), expected);
    }
    // The text of a dry run lists the affected dead letters, oldest first.
    let dry = setup.relay(&["dead-letters", "discard", "--requeued", "--dry-run", "--limit", "2"]);
    let shown: Vec<&str> =
        dry.succeeds().lines().map(|line| line.split_once("  ").map_or(line, |l| l.0)).collect();
    assert_eq!(shown, ["2", "4", "app.outbox: 2 dead letters would be discarded"], "{dry}");
    assert_eq!(state(&setup).await, before);

    // Each filter selects the same dead letters without --dry-run.
    for (filters, expected) in [(["--topic", "events.order"], [1, 3].as_slice()), (["--key", "key-2"], &[5])]
    {
        setup.relay(&[&["dead-letters", "requeue"], &filters[..]].concat()).succeeds();
        let sql = "SELECT array_agg(dead_letter_id ORDER BY id) FROM app.outbox_act";
        let done: Vec<i64> = setup.client.query_one(sql, &[]).await.unwrap().get(0);
        assert_eq!(done, expected);
        setup.sql("TRUNCATE app.outbox_act").await;
    }
    setup
        .relay(&["dead-letters", "discard", "--older-than", "30m", "--reason", "record-too-large"])
        .succeeds();
    assert_eq!(ids(setup.relay(&["dead-letters", "list", "--json"]).succeeds()), [6, 5, 3, 1]);
    setup.drop(&[]).await;
}

#[tokio::test]
async fn list_has_one_line_per_dead_letter_newest_first_without_content() {
    let setup = filled("letters_list").await;
    setup.sql("UPDATE app.outbox_dead_letter SET aggregate_id = E'a\\nb\\u001b[31m' WHERE id = 5").await;
    let text = setup.relay(&["dead-letters", "list"]);
    let first: Vec<char> = text.succeeds().lines().filter_map(|line| line.chars().next()).collect();
    assert_eq!(first, ['6', '5', '4', '3', '2', '1'], "{text}");
    let fifth = text.stdout.lines().nth(1).unwrap();
    for part in
        ["record-too-large", "events.user", r"key a\nb\u{1b}[31m", &format!("event {EVENT}5"), "21 bytes"]
    {
        assert!(fifth.contains(part), "{part}: {fifth}");
    }
    assert!(
        !fifth.contains("requeued") && text.stdout.lines().next().unwrap().contains("requeued 20"),
        "{text}"
    );
    let json = setup.relay(&["dead-letters", "list", "--json"]);
    let history = setup.relay(&["dead-letters", "history", "--json"]);
    for ended in [&text, &json, &history, &setup.relay(&["status"])] {
        ended.succeeds();
        assert!(!ended.stdout.contains("secret") && !ended.stderr.contains("secret"), "{ended}");
    }

    let limited = setup.relay(&["dead-letters", "list", "--json", "--limit", "4"]);
    assert_eq!(ids(limited.succeeds()), [6, 5, 4, 3]);
    assert!(limited.stderr.contains("the newest 4"), "{limited}");
    let all = setup.relay(&["dead-letters", "list", "--json", "--limit", "6"]);
    assert_eq!((ids(all.succeeds()).len(), all.stderr.as_str()), (6, ""));

    // More than a page, and more than the default limit.
    add_dead_letters(&setup, 350).await;
    assert_eq!(ids(setup.relay(&["dead-letters", "list", "--json"]).succeeds()).len(), 100);
    let long = setup.relay(&["dead-letters", "list", "--json", "--limit", "1000"]);
    assert_eq!(ids(long.succeeds()), (1..=356).rev().collect::<Vec<_>>());

    // If the reader closes the pipe, the command ends without an error.
    let mut command = setup.command(&["dead-letters", "list", "--limit", "1000"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    setup.drop(&[]).await;
}

#[tokio::test]
async fn json_has_the_documented_fields() {
    let setup = filled("letters_json").await;
    let list = lines(setup.relay(&["dead-letters", "list", "--json", "--id", "1,2"]).succeeds());
    let (two, one) = (&list[0], &list[1]);
    let rejected_at = one["rejected_at"].as_str().unwrap();
    assert!(humantime::parse_rfc3339(rejected_at).is_ok(), "{one}");
    let expected = json!({
        "id": 1, "outbox_id": 100, "event_id": format!("{EVENT}1"), "aggregate_type": "order", "aggregate_id": "key-1",
        "event_type": "Placed", "topic": "events.order", "reason": "record-too-large", "error": "the error",
        "rejected_at": rejected_at, "requeued_at": null, "payload_bytes": 21,
    });
    assert_eq!(*one, expected);
    assert!(humantime::parse_rfc3339(two["requeued_at"].as_str().unwrap()).is_ok(), "{two}");

    let done = setup.relay(&["dead-letters", "requeue", "--id", "1", "--json"]);
    let object: Value = serde_json::from_str(done.succeeds()).unwrap();
    assert_eq!(object, json!({"act": "requeue", "dry_run": false, "dead_letters": 1}));
    let act = &lines(setup.relay(&["dead-letters", "history", "--json"]).succeeds())[0];
    let expected = json!({
        "id": 1, "at": act["at"], "login": setup.roles().on_call(), "role": setup.roles().on_call(), "application": "outbox-relay command", "address": "127.0.0.1",
        "act": "requeue", "dead_letter_id": 1, "outbox_id": 100, "event_id": format!("{EVENT}1"), "pause_id": null,
        "aggregate_type": "order", "topic": "events.order", "reason": "record-too-large",
    });
    assert_eq!(*act, expected);
    assert!(humantime::parse_rfc3339(act["at"].as_str().unwrap()).is_ok(), "{act}");
    setup.drop(&[]).await;
}

#[tokio::test]
async fn show_prints_the_payload_only_on_request() {
    let setup = filled("letters_show").await;
    let text = setup.relay(&["dead-letters", "show", "2"]);
    for part in [
        "event type      Placed\n",
        "headers         {\"secret\": \"header\"}\n",
        "payload         21 bytes\n\n{\"secret\": \"payload\"}\n",
        "error           the error\n",
        "requeued        20",
        "key             key-2\n",
    ] {
        assert!(text.succeeds().contains(part), "{part}: {text}");
    }
    let json = |id: &str| -> Value {
        serde_json::from_str(setup.relay(&["dead-letters", "show", id, "--json"]).succeeds()).unwrap()
    };
    let whole = json("2");
    assert_eq!(whole["headers"], json!({"secret": "header"}));
    assert_eq!(
        (&whole["payload"], &whole["payload_encoding"]),
        (&json!(r#"{"secret": "payload"}"#), &json!("utf-8"))
    );
    assert!(humantime::parse_rfc3339(whole["created_at"].as_str().unwrap()).is_ok(), "{whole}");

    setup
        .sql(
            "UPDATE app.outbox_dead_letter SET payload = '\\xff00', created_at = 'infinity' WHERE id = 3;
             UPDATE app.outbox_dead_letter SET payload = NULL, headers = NULL WHERE id = 4",
        )
        .await;
    let bytes = json("3");
    assert_eq!((&bytes["payload"], &bytes["payload_encoding"]), (&json!("ff00"), &json!("hex")));
    assert_eq!(bytes["created_at"], "infinity");
    let tombstone = json("4");
    for field in ["payload", "payload_encoding", "headers", "payload_bytes"] {
        assert_eq!(tombstone.get(field), Some(&Value::Null), "{field}: {tombstone}");
    }
    for (id, payload) in [("3", b"\xff\0".as_slice()), ("4", b"")] {
        let output = setup.command(&["dead-letters", "show", id, "--payload"]).output().unwrap();
        assert!(output.status.success() && output.stdout == payload, "{output:?}");
    }
    setup.relay(&["dead-letters", "show", "77"]).fails(1, &["no dead letter 77"]);
    setup.drop(&[]).await;
}

#[tokio::test]
async fn discarded_dead_letters_are_deleted_and_their_history_is_kept() {
    let setup = filled("letters_discard").await;
    let role = setup.roles().on_call();
    let discard = |extra: &[&str]| {
        let ended = setup.relay(&[&["dead-letters", "discard"], extra].concat());
        ended.succeeds().to_owned()
    };
    assert_eq!(discard(&["--requeued", "--limit", "1"]), "app.outbox: 1 dead letter discarded\n");
    assert_eq!(discard(&["--requeued", "--topic", "events.user"]), "app.outbox: 2 dead letters discarded\n");
    assert_eq!(
        setup.relay(&["dead-letters", "requeue", "--id", "3"]).succeeds(),
        "app.outbox: 1 dead letter requeued\n"
    );
    assert_eq!(discard(&["--id", "3,5"]), "app.outbox: 2 dead letters discarded\n");
    assert_eq!(ids(setup.relay(&["dead-letters", "list", "--json"]).succeeds()), [1]);
    assert_eq!(discard(&["--all"]), "app.outbox: 1 dead letter discarded\n");
    assert_eq!(setup.number("SELECT count(*) FROM app.outbox").await, 1, "the requeued event is kept");

    let history = lines(setup.relay(&["dead-letters", "history", "--json"]).succeeds());
    let acts: Vec<(&str, i64)> = history
        .iter()
        .map(|act| (act["act"].as_str().unwrap(), act["dead_letter_id"].as_i64().unwrap()))
        .collect();
    let expected = [
        ("discard", 1),
        ("discard", 5),
        ("discard", 3),
        ("requeue", 3),
        ("discard", 6),
        ("discard", 4),
        ("discard", 2),
    ];
    assert_eq!(acts, expected);
    assert!(history.iter().all(|act| act["role"] == role), "{history:?}");
    let event = format!("{EVENT}3");
    let text = setup.relay(&["dead-letters", "history", "--event-id", &event]);
    assert_eq!(text.succeeds().lines().count(), 2, "{text}");
    for part in [&role, "  discard  dead letter 3  outbox row 300  event ", "events.order  record-too-large"]
    {
        assert!(text.stdout.contains(part), "{part}: {text}");
    }
    assert_eq!(
        lines(setup.relay(&["dead-letters", "history", "--json", "--limit", "2"]).succeeds()).len(),
        2
    );
    setup.drop(&[]).await;
}

#[tokio::test]
async fn missing_privilege_is_reported_with_its_grant_and_nothing_is_changed() {
    let setup = filled("letters_grants").await;
    let (role, _) = setup.database.connect_as_new_role().await;
    let table = "app.outbox".parse().unwrap();
    run(&setup.client, &relay_grants(&table, &role)).await;
    setup.configure(&setup.database.url().replace("postgres@", &format!("{role}@")), &kafka());
    let before = state(&setup).await;
    // The relay itself cannot read whole dead letters, and cannot run an operator's commands.
    let look = "SELECT ON \"app\".\"outbox_dead_letter\"";
    let insert =
        "INSERT (event_id, aggregate_type, aggregate_id, event_type, payload, headers, created_at) ON";
    let unblock = "DELETE ON \"app\".\"outbox_blocked_key\"";
    let needed: [(&[&str], &[&str]); 7] = [
        (&["dead-letters", "list"], &[look]),
        (&["dead-letters", "show", "1"], &[look]),
        (&["dead-letters", "requeue", "--all"], &[look, "UPDATE (requeued_at) ON", insert]),
        (&["dead-letters", "discard", "--all"], &[look, "DELETE ON \"app\".\"outbox_dead_letter\""]),
        (&["dead-letters", "history"], &["SELECT ON \"app\".\"outbox_act\""]),
        (&["blocked-keys", "retry", "--all"], &[unblock]),
        (&["blocked-keys", "dead-letter", "--all"], &[unblock]),
    ];
    setup.relay(&["blocked-keys", "list"]).succeeds();
    let granted: Vec<String> = operator_grants(&table, &role).lines().map(str::to_owned).collect();
    for (args, privileges) in needed {
        let ended = setup.relay(args);
        ended.fails(78, privileges);
        let named: Vec<&String> = granted.iter().filter(|grant| ended.stderr.contains(*grant)).collect();
        assert_eq!(named.len(), privileges.len(), "{ended}");
    }
    assert_eq!(state(&setup).await, before);
    for grant in &granted {
        run(&setup.client, grant).await;
    }
    for (args, _) in needed {
        setup.relay(args).succeeds();
    }
    setup.drop(&[&role]).await;
}

#[tokio::test]
async fn commands_change_nothing_without_a_filter_or_all() {
    let setup = filled("letters_usage").await;
    let before = state(&setup).await;
    for command in [
        ["dead-letters", "requeue"],
        ["dead-letters", "discard"],
        ["blocked-keys", "retry"],
        ["blocked-keys", "dead-letter"],
    ] {
        let with = |extra: &[&str]| setup.relay(&[&command, extra].concat());
        with(&[]).fails(2, &["--all"]);
        with(&["--dry-run"]).fails(2, &["--all"]);
        with(&["--all", "--topic", "events.order"]).fails(2, &["--all cannot be combined with a filter"]);
        with(&["--all", "--limit", "0"]).fails(2, &["--limit"]);
        with(&["--older-than", "soon"]).fails(2, &["--older-than"]);
        with(&["--event-id", "7"]).fails(2, &["--event-id"]);
    }
    setup.relay(&["dead-letters", "requeue", "--again"]).fails(2, &["--all"]);
    setup.relay(&["dead-letters", "list", "--requeued", "--not-requeued"]).fails(2, &["--not-requeued"]);
    assert_eq!(state(&setup).await, before);
    let help = crate::operating::commands::Ended::of(&mut crate::operating::commands::binary(&[
        "dead-letters",
        "requeue",
        "--help",
    ]));
    for part in ["AFTER later events of its key", "deduplicate by event_id", "version"] {
        assert!(help.succeeds().contains(part), "{part}: {help}");
    }
    setup.drop(&[]).await;
}

/// A lock of another session ends the command with a message. The batches before it are kept and counted.
#[tokio::test]
async fn permanent_lock_ends_the_command_after_the_batches_before_it() {
    let setup = Setup::migrated("letters_locked").await;
    add_dead_letters(&setup, 250).await;
    setup.sql("BEGIN; SELECT FROM app.outbox_dead_letter WHERE id = 150 FOR UPDATE").await;
    setup
        .relay(&["dead-letters", "discard", "--all"])
        .fails(1, &["stopped after 100 events", "lock timeout"]);
    setup.sql("COMMIT").await;
    assert_eq!(setup.number("SELECT count(*) FROM app.outbox_dead_letter").await, 150);
    assert_eq!(setup.number("SELECT count(*) FROM app.outbox_act").await, 100);
    setup.drop(&[]).await;
}
