use super::*;
use crate::status::{LocalRelay, Rates, Reaper, Relays};
use postgres::diagnose::status::{
    Backlog, BlockedKeys, Doing, FirstUnsent, HeldTopic, RejectedEvents, RelayConnection, Sent, Size,
};
use postgres::operate::pauses::PausedScope;
use std::time::SystemTime;

const SECOND: Duration = Duration::from_secs(1);

/// One idle relay.
fn at_rest() -> Report {
    let relay = RelayConnection {
        pid: 1,
        application: "outbox-relay".to_owned(),
        address: None,
        doing: Doing::Idle,
        doing_for: Some(SECOND),
    };
    Report {
        verdict: Verdict::default(),
        table: "public.outbox".to_owned(),
        relay_version: "0.1.0",
        postgres_version: "18.1".to_owned(),
        schema_migration: None,
        backlog: Backlog::default(),
        rates: None,
        latency: Some(Sent { rows: 10, latest_age: Some(600 * SECOND), ..Sent::default() }),
        held_topics: Vec::new(),
        held_topics_total: 0,
        blocked_keys: BlockedKeys::default(),
        paused: Vec::new(),
        paused_total: 0,
        dead_letters: DeadLetters::default(),
        relays: relays(vec![relay]),
        reaper: Reaper { enabled: true, retention_seconds: 86_400.0, oldest_sent: None, behind: false },
        vacuum_held_back_by: None,
        size: Size {
            table_bytes: 0,
            index_bytes: 0,
            rows_estimated: 0,
            dead_rows_estimated: 0,
            vacuumed_at: None,
            pages: 0,
        },
    }
}

fn relays(at_work: Vec<RelayConnection>) -> Relays {
    Relays {
        application_name: "outbox-relay".to_owned(),
        connections: at_work.len(),
        addresses: 1,
        pooled: false,
        at_work,
        here: None,
    }
}

/// This many rows are ready to be sent.
fn waiting(rows: i64, age: Duration) -> Report {
    let first = FirstUnsent { rows: rows.min(100), id: Some(7), age: Some(age), ..FirstUnsent::default() };
    let backlog = Backlog { rows, estimated: rows > 10_000, oldest_age: Some(age), first };
    Report { backlog, ..at_rest() }
}

fn rates(inserted: f64, sent: f64) -> Option<Rates> {
    Some(Rates {
        over_seconds: 1.0,
        inserted_per_second: inserted,
        sent_per_second: sent,
        deleted_per_second: 0.0,
    })
}

fn judged(report: &Report) -> (OutboxState, String, Option<String>) {
    let Verdict { state, why, command } = verdict(report, " --config relay.toml");
    (state, why, command)
}

#[test]
fn a_local_relay_that_is_not_ready_gives_the_reason_unless_another_one_sends() {
    let here = |ready, text: &str| LocalRelay {
        address: "127.0.0.1:10187".to_owned(),
        ready,
        says: text.to_owned(),
    };
    let mut report = waiting(3, SECOND);
    report.relays.here = Some(here(false, "Kafka: no broker answers"));
    let (state, why, command) = judged(&report);
    let expected = "the relay at 127.0.0.1:10187 is not ready: Kafka: no broker answers, and 3 rows wait";
    assert_eq!((state, why.as_str()), (OutboxState::NotRelaying, expected));
    assert_eq!(command.unwrap(), "outbox-relay doctor --config relay.toml");
    report.rates = rates(10.0, 10.0);
    assert_eq!(judged(&report).0, OutboxState::Healthy, "by another relay");
    let mut report = at_rest();
    report.relays.here = Some(here(true, "ready"));
    assert_eq!(judged(&report).0, OutboxState::Healthy);
}

#[test]
fn events_sent_at_once_are_healthy() {
    let (state, why, command) = judged(&at_rest());
    assert_eq!((state, why.as_str(), command), (OutboxState::Healthy, "no events are waiting", None));
    let (state, why, _) = judged(&waiting(3, SECOND));
    assert_eq!((state, why.as_str()), (OutboxState::Healthy, "the oldest waiting event is 1s old"));
    let (state, why, command) = judged(&rejected(9, 9));
    assert_eq!(
        (state, why.as_str()),
        (OutboxState::Healthy, "no events are waiting; 9 dead letters to review")
    );
    assert_eq!(command.unwrap(), "outbox-relay dead-letters list --config relay.toml");
}

/// An outbox with this many dead letters, of which so many are recent.
fn rejected(rows: i64, recent: i64) -> Report {
    let of =
        |reason: &str, rows, recent| RejectedEvents { reason: reason.to_owned(), rows, recent, read: rows };
    let by_reason = vec![of("record-too-large", rows, 0), of("invalid-headers", 0, recent)];
    Report { dead_letters: DeadLetters::new(by_reason), ..at_rest() }
}

#[test]
fn many_recent_rejections_are_not_healthy() {
    let (state, why, command) = judged(&rejected(1_000, 10));
    assert_eq!(
        (state, why.as_str()),
        (
            OutboxState::Behind,
            "10 events rejected in the last 10 minutes (most: invalid-headers), but other events continue"
        )
    );
    assert_eq!(command.unwrap(), "outbox-relay dead-letters list --config relay.toml");
    assert_eq!(judged(&rejected(1_000, 9)).0, OutboxState::Healthy);
}

#[test]
fn without_a_relay_the_state_is_not_relaying_even_if_nothing_waits() {
    let alone = Report { relays: relays(Vec::new()), ..at_rest() };
    let (state, why, command) = judged(&alone);
    assert_eq!(
        (state, why.as_str()),
        (OutboxState::NotRelaying, "no relay is connected as \"outbox-relay\"")
    );
    assert_eq!(command.unwrap(), "outbox-relay run --config relay.toml");
    let mut alone = Report { relays: relays(Vec::new()), ..waiting(1_234, SECOND) };
    assert!(judged(&alone).1.ends_with(", and 1,234 rows wait"));
    // Behind a pooler, connections prove nothing.
    alone.relays.pooled = true;
    assert_eq!(judged(&alone).0, OutboxState::Healthy);
}

#[test]
fn late_events_are_behind_while_some_are_sent_and_otherwise_not_relaying() {
    let mut late = waiting(40_000, 90 * SECOND);
    late.rates = rates(1_000.0, 5_000.0);
    let (state, why, command) = judged(&late);
    assert_eq!(state, OutboxState::Behind);
    assert!(
        why.contains("1m 30s old (about 40,000 rows unsent); at this rate it clears in about 10s"),
        "{why}"
    );
    assert_eq!(command.unwrap(), "outbox-relay status --watch --config relay.toml");
    late.rates = rates(5_000.0, 1_000.0);
    assert!(judged(&late).1.ends_with("; the backlog is growing"));

    late.rates = rates(1_000.0, 0.0);
    let (state, why, command) = judged(&late);
    assert_eq!(state, OutboxState::NotRelaying);
    assert!(why.starts_with("nothing was sent for 10m, and the oldest event"), "{why}");
    assert_eq!(command.unwrap(), "outbox-relay doctor --config relay.toml");
    late.latency = Some(Sent { rows: 10, latest_age: Some(SECOND), ..Sent::default() });
    assert_eq!(judged(&Report { rates: None, ..late }).0, OutboxState::Behind);
}

#[test]
fn late_events_are_behind_until_something_was_measured() {
    let unmeasured = Report { latency: None, ..waiting(70_000, 12 * SECOND) };
    let (state, why, command) = judged(&unmeasured);
    let expected = "the oldest event that is ready to be sent is 12s old (about 70,000 rows unsent)";
    assert_eq!((state, why.as_str()), (OutboxState::Behind, expected));
    assert_eq!(command.unwrap(), "outbox-relay status --watch --config relay.toml");
    let stopped = Report { rates: rates(0.0, 0.0), ..unmeasured };
    assert_eq!(judged(&stopped).0, OutboxState::NotRelaying);
}

#[test]
fn held_topics_and_blocked_keys_are_behind_although_others_continue() {
    let now = SystemTime::now();
    let topic = HeldTopic {
        topic: "events.order\nhealthy".to_owned(),
        reason: "unknown-topic".to_owned(),
        error: String::new(),
        remedy: "",
        since: now,
        next_probe: now,
        probes: 1,
    };
    let blocked_keys = BlockedKeys { keys: 2, ..BlockedKeys::default() };
    let held = Report { held_topics_total: 5_000, held_topics: vec![topic], blocked_keys, ..at_rest() };
    let (state, why, _) = judged(&held);
    let expected = "5000 topics held (events.order\\nhealthy: unknown-topic) and 2 keys blocked, but other events continue; see below";
    assert_eq!((state, why.as_str()), (OutboxState::Behind, expected));
    let blocked = Report { held_topics: Vec::new(), ..held };
    let (state, why, command) = judged(&blocked);
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
    let mut late = waiting(1_234, 600 * SECOND);
    late.backlog.first = FirstUnsent::default();
    let all = Report { paused: vec![pause(Scope::Everything)], paused_total: 1, ..late };
    let (state, why, command) = judged(&all);
    let expected = "everything is paused by alice (a migration), and 1,234 rows wait";
    assert_eq!((state, why.as_str()), (OutboxState::NotRelaying, expected));
    assert_eq!(command.unwrap(), "outbox-relay resume --config relay.toml");
    let topic = Report { paused: vec![pause(Scope::Topic("events.order".to_owned()))], ..all };
    let (state, why, _) = judged(&topic);
    let expected = "1 pause active, but other events continue; see below";
    assert_eq!((state, why.as_str()), (OutboxState::Behind, expected));
    let many = Report { paused_total: 1_001, ..topic };
    assert_eq!(judged(&many).1, "1001 pauses active, but other events continue; see below");
}

#[test]
fn only_the_file_of_the_service_belongs_to_the_service() {
    assert_eq!(start(""), "systemctl status outbox-relay");
    assert_eq!(start(" --config /etc/outbox-relay/config.toml"), "systemctl status outbox-relay");
    assert_eq!(start(" --config /etc/outbox-relay/shop.toml"), "systemctl status outbox-relay@shop");
    let other = " --config /srv/etc/outbox-relay/config.toml";
    assert_eq!(start(other), format!("outbox-relay run{other}"));
}
