use super::*;
use postgres::diagnose::status::{
    Doing, FirstUnsent, HeldTopic, Reaping, RejectedEvents, RelayConnection, Sent, Size, Versions,
};
use postgres::operate::pauses::PausedScope;
use std::time::SystemTime;

const SECOND: Duration = Duration::from_secs(1);

/// One idle relay.
fn at_rest() -> OutboxStatus {
    let relay = RelayConnection {
        pid: 1,
        application: "outbox-relay".to_owned(),
        address: None,
        doing: Doing::Idle,
        doing_for: Some(SECOND),
    };
    OutboxStatus {
        versions: Versions { server: "18.1".to_owned(), migration: None },
        backlog_rows: 0,
        oldest: None,
        first: FirstUnsent::default(),
        held_topics: 0,
        held: Vec::new(),
        dead_letters: Vec::new(),
        blocked_keys: 0,
        blocked: Vec::new(),
        paused: Vec::new(),
        relays: vec![relay],
        sent: Some(Sent { rows: 10, latency: None, latest_age: Some(600 * SECOND) }),
        reaping: Reaping { oldest_sent: None },
        vacuum: None,
        size: Size { table_bytes: 0, index_bytes: 0, rows: 0, dead_rows: 0, vacuumed_at: None },
    }
}

/// This many rows are ready to be sent.
fn waiting(rows: i64, age: Duration) -> OutboxStatus {
    let first = FirstUnsent { rows: rows.min(100), id: Some(7), age: Some(age), ..FirstUnsent::default() };
    OutboxStatus { backlog_rows: rows, oldest: Some(age), first, ..at_rest() }
}

fn rates(inserted: f64, sent: f64) -> Rates {
    Rates { over_seconds: 1.0, inserted_per_second: inserted, sent_per_second: sent, deleted_per_second: 0.0 }
}

fn judged(
    status: &OutboxStatus,
    rates: Option<&Rates>,
    pooled: bool,
) -> (OutboxState, String, Option<String>) {
    judged_with(None, status, rates, pooled)
}

fn judged_with(
    here: Option<&LocalRelay>,
    status: &OutboxStatus,
    rates: Option<&Rates>,
    pooled: bool,
) -> (OutboxState, String, Option<String>) {
    let config = " --config relay.toml";
    let circumstances =
        Circumstances { relay_name: "outbox-relay", pooled, rates, here, not_reaped: None, config };
    let Verdict { state, why, command } = verdict(status, &circumstances);
    (state, why, command)
}

#[test]
fn a_local_relay_that_is_not_ready_gives_the_reason_unless_another_one_sends() {
    let here = |ready, text: &str| LocalRelay {
        address: "127.0.0.1:10187".to_owned(),
        ready,
        says: text.to_owned(),
    };
    let not_ready = here(false, "Kafka: no broker answers");
    let (state, why, command) = judged_with(Some(&not_ready), &waiting(3, SECOND), None, false);
    let expected = "the relay at 127.0.0.1:10187 is not ready: Kafka: no broker answers, and 3 rows wait";
    assert_eq!((state, why.as_str()), (OutboxState::NotRelaying, expected));
    assert_eq!(command.unwrap(), "outbox-relay doctor --config relay.toml");
    let sending = rates(10.0, 10.0);
    assert_eq!(
        judged_with(Some(&not_ready), &waiting(3, SECOND), Some(&sending), false).0,
        OutboxState::Healthy,
        "by another relay"
    );
    assert_eq!(judged_with(Some(&here(true, "ready")), &at_rest(), None, false).0, OutboxState::Healthy);
}

#[test]
fn events_sent_at_once_are_healthy() {
    let (state, why, command) = judged(&at_rest(), None, false);
    assert_eq!((state, why.as_str(), command), (OutboxState::Healthy, "no events are waiting", None));
    let (state, why, _) = judged(&waiting(3, SECOND), None, false);
    assert_eq!((state, why.as_str()), (OutboxState::Healthy, "the oldest waiting event is 1s old"));
    let (state, why, command) = judged(&rejected(9, 9), None, false);
    assert_eq!(
        (state, why.as_str()),
        (OutboxState::Healthy, "no events are waiting; 9 dead letters to review")
    );
    assert_eq!(command.unwrap(), "outbox-relay dead-letters list --config relay.toml");
}

/// An outbox with this many dead letters, of which so many are recent.
fn rejected(rows: i64, recent: i64) -> OutboxStatus {
    let of = |reason: &str, rows, recent| RejectedEvents { reason: reason.to_owned(), rows, recent };
    let dead_letters = vec![of("record-too-large", rows, 0), of("invalid-headers", 0, recent)];
    OutboxStatus { dead_letters, ..at_rest() }
}

#[test]
fn many_recent_rejections_are_not_healthy() {
    let (state, why, command) = judged(&rejected(1_000, 10), None, false);
    assert_eq!(
        (state, why.as_str()),
        (
            OutboxState::Behind,
            "10 events rejected in the last 10 minutes (most: invalid-headers), but other events continue"
        )
    );
    assert_eq!(command.unwrap(), "outbox-relay dead-letters list --config relay.toml");
    assert_eq!(judged(&rejected(1_000, 9), None, false).0, OutboxState::Healthy);
}

#[test]
fn without_a_relay_the_state_is_not_relaying_even_if_nothing_waits() {
    let alone = OutboxStatus { relays: Vec::new(), ..at_rest() };
    let (state, why, command) = judged(&alone, None, false);
    assert_eq!(
        (state, why.as_str()),
        (OutboxState::NotRelaying, "no relay is connected as \"outbox-relay\"")
    );
    assert_eq!(command.unwrap(), "outbox-relay run --config relay.toml");
    let alone = OutboxStatus { relays: Vec::new(), ..waiting(1_234, SECOND) };
    assert!(judged(&alone, None, false).1.ends_with(", and 1,234 rows wait"));
    // Behind a pooler, connections prove nothing.
    assert_eq!(judged(&alone, None, true).0, OutboxState::Healthy);
}

#[test]
fn late_events_are_behind_while_some_are_sent_and_otherwise_not_relaying() {
    let late = waiting(40_000, 90 * SECOND);
    let (state, why, command) = judged(&late, Some(&rates(1_000.0, 5_000.0)), false);
    assert_eq!(state, OutboxState::Behind);
    assert!(
        why.contains("1m 30s old (about 40,000 rows unsent); at this rate it clears in about 10s"),
        "{why}"
    );
    assert_eq!(command.unwrap(), "outbox-relay status --watch --config relay.toml");
    assert!(judged(&late, Some(&rates(5_000.0, 1_000.0)), false).1.ends_with("; the backlog is growing"));

    let (state, why, command) = judged(&late, Some(&rates(1_000.0, 0.0)), false);
    assert_eq!(state, OutboxState::NotRelaying);
    assert!(why.starts_with("nothing was sent for 10m, and the oldest event"), "{why}");
    assert_eq!(command.unwrap(), "outbox-relay doctor --config relay.toml");
    let recently = Sent { rows: 10, latency: None, latest_age: Some(SECOND) };
    assert_eq!(judged(&OutboxStatus { sent: Some(recently), ..late }, None, false).0, OutboxState::Behind);
}

#[test]
fn held_topics_and_blocked_keys_are_behind_although_others_continue() {
    let now = SystemTime::now();
    let topic = HeldTopic {
        topic: "events.order".to_owned(),
        reason: "unknown-topic".to_owned(),
        error: String::new(),
        since: now,
        next_probe: now,
        probes: 1,
    };
    let held = OutboxStatus { held_topics: 5_000, held: vec![topic], blocked_keys: 2, ..at_rest() };
    let (state, why, _) = judged(&held, None, false);
    let expected = "5000 topics held (events.order: unknown-topic) and 2 keys blocked, but other events continue; see below";
    assert_eq!((state, why.as_str()), (OutboxState::Behind, expected));
    let blocked = OutboxStatus { held: Vec::new(), ..held };
    let (state, why, command) = judged(&blocked, None, false);
    assert_eq!((state, why.as_str()), (OutboxState::Behind, "2 keys blocked, but other keys continue"));
    assert_eq!(command.unwrap(), "outbox-relay blocked-keys list --config relay.toml");
}

#[test]
fn a_pause_is_shown_with_its_role_and_the_command_that_ends_it() {
    let pause = |scope| PausedScope {
        id: 1,
        scope,
        reason: Some("a migration".to_owned()),
        role: "alice".to_owned(),
        since: SystemTime::now(),
    };
    let late = OutboxStatus { first: FirstUnsent::default(), ..waiting(1_234, 600 * SECOND) };
    let all = OutboxStatus { paused: vec![pause(Scope::Everything)], ..late.clone() };
    let (state, why, command) = judged(&all, None, false);
    let expected = "everything is paused by alice (a migration), and 1,234 rows wait";
    assert_eq!((state, why.as_str()), (OutboxState::NotRelaying, expected));
    assert_eq!(command.unwrap(), "outbox-relay resume --config relay.toml");
    let topic = OutboxStatus { paused: vec![pause(Scope::Topic("events.order".to_owned()))], ..late };
    let (state, why, _) = judged(&topic, None, false);
    let expected = "1 pause active, but other events continue; see below";
    assert_eq!((state, why.as_str()), (OutboxState::Behind, expected));
}
