//! Pages of every state, for tests.

use crate::admin::page::chart::Interval;
use crate::admin::page::{Known, Snapshot, View};
use crate::config::{self, Config};
use crate::status::verdict::{OutboxState, Verdict};
use crate::status::{LocalRelay, Reaper, Relays, Report};
use askama::Template;
use humantime::parse_rfc3339;
use postgres::diagnose::status::{
    Backlog, BlockedKeys, DeadLetters, Doing, FirstUnsent, HeldTopic, KeyBlock, LaneStatus, RejectedEvents,
    RelayConnection, Sent, Size, VacuumHolder,
};
use postgres::operate::pauses::{PausedScope, Scope};
use relay::health::stats::Stats;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

pub(super) const HOSTILE: &str = "</style><script>alert(1)</script><img src=x onerror='alert(1)'>\"&";
const SECOND: Duration = Duration::from_secs(1);

fn time() -> SystemTime {
    parse_rfc3339("2026-11-23T13:47:05Z").unwrap()
}

/// A page before it is rendered.
pub(super) struct Scene {
    pub(super) known: Known,
    pub(super) here: LocalRelay,
    pub(super) stats: Stats,
    pub(super) intervals: Vec<Interval>,
    pub(super) config: Config,
    pub(super) shows_keys: bool,
    pub(super) refreshes: bool,
}

impl Scene {
    /// A healthy relay with this report.
    pub(super) fn of(report: Report) -> Scene {
        let stats = Stats::new();
        stats.workers.set(2);
        stats.workers_busy.set(1);
        stats.claimed_lanes.set(16);
        stats.published.inc_by(1_234_567);
        Scene {
            known: Known {
                last: Some(Arc::new(snapshot_of(report))),
                fault: None,
                read: Some(Instant::now()),
            },
            here: here(true, "ready"),
            stats,
            intervals: intervals(180, |_| true),
            config: config(""),
            shows_keys: true,
            refreshes: true,
        }
    }

    pub(super) fn html(&self) -> String {
        let view = View {
            known: &self.known,
            here: self.here.clone(),
            stats: &self.stats,
            intervals: &self.intervals,
            config: &self.config,
            shows_keys: self.shows_keys,
            refreshes: self.refreshes,
            now: SystemTime::now(),
        };
        view.render().unwrap()
    }

    fn lanes(mut self, lanes: Vec<LaneStatus>) -> Scene {
        let Some(last) = self.known.last.take().and_then(Arc::into_inner) else { panic!("no snapshot") };
        self.known.last = Some(Arc::new(Snapshot { lanes, ..last }));
        self
    }
}

/// Every state by its name.
pub(super) fn states() -> Vec<(&'static str, Scene)> {
    vec![
        ("healthy", Scene::of(report()).lanes(lanes(&[(3, 2, 1), (17, 1, 0)]))),
        ("starting", starting()),
        ("behind", behind()),
        ("kafka-away", kafka_away()),
        ("postgres-away", postgres_away()),
        ("held-topic", held_topic()),
        ("paused", paused()),
        ("everything", everything()),
    ]
}

pub(super) fn config(more: &str) -> Config {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("relay.toml");
    let text = format!(
        "[postgres]\nurl = 'postgres://relay:hunter2@db/app'\n[kafka]\nbootstrap_servers = 'kafka-1:9092,kafka-2:9092'\n\
         [kafka.properties]\n'security.protocol' = 'sasl_ssl'\n'sasl.mechanism' = 'PLAIN'\n'sasl.username' = 'relay'\n\
         'sasl.password' = 'hunter2'\n{more}"
    );
    std::fs::write(&path, text).unwrap();
    config::load(Some(&path), std::iter::empty()).unwrap_or_else(|findings| panic!("{findings}"))
}

pub(super) fn here(ready: bool, says: &str) -> LocalRelay {
    LocalRelay { address: "127.0.0.1:10187".to_owned(), ready, says: says.to_owned() }
}

pub(super) fn snapshot() -> Snapshot {
    snapshot_of(report())
}

fn snapshot_of(report: Report) -> Snapshot {
    Snapshot { report, lanes: Vec::new(), read_at: SystemTime::now() }
}

fn verdict(state: OutboxState, why: &str, command: Option<&str>) -> Verdict {
    Verdict { state, why: why.to_owned(), command: command.map(str::to_owned) }
}

/// A healthy outbox with two relays.
pub(super) fn report() -> Report {
    let at_work = |pid, address: &str, doing| RelayConnection {
        pid,
        application: "outbox-relay".to_owned(),
        address: Some(address.to_owned()),
        doing,
        doing_for: Some(Duration::from_millis(45)),
    };
    let at_work = vec![
        at_work(1, "10.0.0.1", Doing::Publishing),
        at_work(2, "10.0.0.1", Doing::Idle),
        at_work(3, "10.0.0.2", Doing::Idle),
    ];
    Report {
        verdict: verdict(OutboxState::Healthy, "the oldest waiting event is 1s old", None),
        table: "public.outbox".to_owned(),
        relay_version: "0.1.0",
        postgres_version: "18.1 (Debian 18.1-1.pgdg12+1)".to_owned(),
        schema_migration: Some("1 outbox".to_owned()),
        backlog: Backlog {
            rows: 3,
            estimated: false,
            oldest_age: Some(Duration::from_millis(1_200)),
            first: FirstUnsent {
                rows: 3,
                free: 3,
                age: Some(Duration::from_millis(1_200)),
                ..FirstUnsent::default()
            },
        },
        rates: None,
        latency: Some(Sent {
            rows: 1_000,
            p50: Some(Duration::from_micros(4_200)),
            p95: Some(Duration::from_millis(9)),
            p99: Some(Duration::from_millis(12)),
            max: Some(Duration::from_millis(200)),
            latest_age: Some(Duration::from_millis(100)),
        }),
        held_topics: Vec::new(),
        held_topics_total: 0,
        blocked_keys: BlockedKeys { keys: 0, at_least: false, oldest: Vec::new() },
        paused: Vec::new(),
        paused_total: 0,
        dead_letters: DeadLetters { rows: 0, at_least: false, recent: 0, by_reason: Vec::new() },
        relays: Relays {
            application_name: "outbox-relay".to_owned(),
            connections: at_work.len(),
            addresses: 2,
            pooled: false,
            at_work,
            here: None,
        },
        reaper: Reaper {
            enabled: true,
            retention_seconds: 86_400.0,
            oldest_sent: Some(80_000 * SECOND),
            behind: false,
        },
        vacuum_held_back_by: None,
        size: Size {
            table_bytes: 123_456_789,
            index_bytes: 34_567_890,
            rows_estimated: 1_234_567,
            dead_rows_estimated: 12_345,
            vacuumed_at: Some(time()),
            pages: 1_000,
        },
    }
}

pub(super) fn held(topic: &str, error: &str) -> HeldTopic {
    HeldTopic {
        topic: topic.to_owned(),
        reason: "unknown-topic".to_owned(),
        error: error.to_owned(),
        remedy: relay::reason::remedy("unknown-topic"),
        since: time(),
        next_probe: time() + 30 * SECOND,
        probes: 12,
    }
}

pub(super) fn blocked(key: &str) -> KeyBlock {
    KeyBlock {
        topic: "events.order".to_owned(),
        key: key.to_owned(),
        outbox_id: 4_711,
        reason: "record-too-large".to_owned(),
        remedy: relay::reason::blocked_key_remedy("record-too-large"),
        since: time(),
    }
}

pub(super) fn pause(scope: Scope, reason: Option<&str>) -> PausedScope {
    PausedScope { id: 1, scope, reason: reason.map(str::to_owned), role: "alice".to_owned(), since: time() }
}

pub(super) fn key(aggregate_type: &str, aggregate_id: &str) -> Scope {
    Scope::Key { aggregate_type: aggregate_type.to_owned(), aggregate_id: aggregate_id.to_owned() }
}

pub(super) fn dead(reason: &str, rows: i64) -> RejectedEvents {
    RejectedEvents { reason: reason.to_owned(), rows, recent: 0, read: rows }
}

fn lanes(lanes: &[(i16, i64, u64)]) -> Vec<LaneStatus> {
    let lane = |&(lane, rows, age)| LaneStatus { lane, rows, oldest: Some(Duration::from_secs(age)) };
    lanes.iter().map(lane).collect()
}

/// A history of varied values, of which the last `count` intervals are known.
pub(super) fn intervals(count: u32, ready: impl Fn(u32) -> bool) -> Vec<Interval> {
    let every = Duration::from_secs(5);
    let interval = |ago: u32| {
        let wave = (f64::from(ago) / 9.0).sin() + 0.4 * (f64::from(ago) / 2.3).cos();
        let is_ready = ready(ago);
        Interval {
            from: every * (ago + 1),
            until: every * ago,
            ready: is_ready,
            sent_per_second: if is_ready { 420.0 + 130.0 * wave } else { 0.0 },
            latency_seconds: is_ready.then_some(0.006 + 0.002 * wave),
            oldest_seconds: Some(if is_ready {
                (0.6 + 0.4 * wave).max(0.0)
            } else {
                5.0 * f64::from(180 - ago)
            }),
            backlog: Some(if is_ready { 40.0 + 20.0 * wave } else { 900.0 * f64::from(60 - ago.min(60)) }),
        }
    };
    (0..count).rev().map(interval).collect()
}

fn starting() -> Scene {
    let mut scene = Scene::of(report());
    (scene.known, scene.intervals) = (Known::default(), Vec::new());
    scene.here = here(false, "PostgreSQL: not reached yet; Kafka: not reached yet");
    scene
}

fn behind() -> Scene {
    let why = "the oldest event that is ready to be sent is 1m 30s old (about 40,000 rows unsent); at this rate it clears \
               in about 10s";
    let command = "outbox-relay status --watch --config /etc/outbox-relay/config.toml";
    let mut report = Report { verdict: verdict(OutboxState::Behind, why, Some(command)), ..report() };
    report.backlog = Backlog {
        rows: 40_000,
        estimated: true,
        oldest_age: Some(90 * SECOND),
        first: FirstUnsent { rows: 6_400, free: 6_400, age: Some(90 * SECOND), ..report.backlog.first },
    };
    let all: Vec<(i16, i64, u64)> = (0..64).map(|lane| (lane, 100, 90)).collect();
    Scene::of(report).lanes(lanes(&all))
}

const NO_KAFKA: &str = "Kafka: no broker answers: 2/2 brokers are down (reason: brokers-down)";

fn kafka_away() -> Scene {
    let why = format!("the relay at 127.0.0.1:10187 is not ready: {NO_KAFKA}, and 12,345 rows wait");
    let command = Some("outbox-relay doctor --config /etc/outbox-relay/config.toml");
    let mut report = Report { verdict: verdict(OutboxState::NotRelaying, &why, command), ..report() };
    (report.backlog.rows, report.backlog.oldest_age) = (12_345, Some(300 * SECOND));
    let mut scene = Scene::of(report).lanes(lanes(&[(0, 7, 300), (5, 100, 12), (40, 3, 2)]));
    scene.here = here(false, NO_KAFKA);
    scene.intervals = intervals(180, |ago| ago > 60);
    scene
}

fn postgres_away() -> Scene {
    let mut scene = Scene::of(report());
    let fault = "connecting to PostgreSQL failed: Connection refused (os error 111) (db:5432)";
    scene.here = here(false, &format!("PostgreSQL: {fault}"));
    scene.known.fault = Some(fault.to_owned());
    scene.intervals = intervals(40, |ago| ago > 12);
    scene
}

fn held_topic() -> Scene {
    let why = "1 topic held (events.invoice: unknown-topic), but other events continue; see below";
    let verdict = verdict(OutboxState::Behind, why, Some("outbox-relay doctor"));
    let held = held("events.invoice", "the topic does not exist on any of the brokers");
    Scene::of(Report { verdict, held_topics: vec![held], held_topics_total: 1, ..report() })
}

fn paused() -> Scene {
    let why = "everything is paused by alice (migrating consumers), and 1,234 rows wait";
    let verdict = verdict(OutboxState::NotRelaying, why, Some("outbox-relay resume"));
    Scene::of(Report {
        verdict,
        paused: vec![pause(Scope::Everything, Some("migrating consumers"))],
        paused_total: 1,
        ..report()
    })
}

/// Everything at once, with the longest and the most hostile texts.
fn everything() -> Scene {
    let long = "x".repeat(249);
    let why = format!(
        "2 topics held ({HOSTILE}: unknown-topic) and 12 keys blocked, but other events continue; see below"
    );
    let mut report =
        Report { verdict: verdict(OutboxState::Behind, &why, Some("outbox-relay doctor")), ..report() };
    report.held_topics = vec![held(HOSTILE, HOSTILE), held(&long, &"long error ".repeat(80))];
    report.held_topics_total = 2;
    report.blocked_keys = BlockedKeys {
        keys: 12,
        at_least: false,
        oldest: vec![blocked(HOSTILE), blocked(&long), blocked("42")],
    };
    report.paused = vec![
        pause(Scope::Topic(HOSTILE.to_owned()), Some(HOSTILE)),
        pause(key("order", HOSTILE), None),
        pause(Scope::Topic(long), None),
    ];
    report.paused_total = 3;
    report.dead_letters = DeadLetters {
        rows: 100_000,
        at_least: true,
        recent: 1_000,
        by_reason: vec![dead("record-too-large", 99_000), dead("invalid-headers", 999), dead(HOSTILE, 1)],
    };
    report.vacuum_held_back_by = Some(VacuumHolder {
        what: "replication slot".to_owned(),
        name: HOSTILE.to_owned(),
        pid: None,
        application: None,
        transactions: 7,
        age: Some(7_200 * SECOND),
        active: false,
    });
    report.reaper.behind = true;
    let mut scene = Scene::of(report).lanes(lanes(&[(0, 100, 3_600), (63, 100, 1)]));
    scene.config = config(&format!("[outbox.headers]\nevent_id = '{{event_id}}'\nsource = {HOSTILE:?}\n"));
    scene
}
