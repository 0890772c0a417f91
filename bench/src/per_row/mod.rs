//! The cost of one row in the relay, part by part and without servers. Two programs measure the same [`PARTS`]: the
//! criterion benchmark counts nanoseconds, and the binary `instructions` counts instructions under valgrind.
//!
//! ```text
//!   wire ── read ──▶ OutboxRow ── session ── partition, record, send ──▶ librdkafka
//!                                    └──── reports ── reach, marks
//! ```
//!
//! `bench/README.md` explains how to run them and how to read the results.

mod rows;

use self::rows::{Headers, Wire, rows};
use crate::fakes::{Acknowledging, AtOnce};
use outbox_relay::config::{self, default_headers};
use outbox_relay::kafka::errors::reason;
use outbox_relay::kafka::producer::KafkaProducer;
use outbox_relay::kafka::record;
use outbox_relay::postgres::connection::sqlstates;
use outbox_relay::postgres::cycle::row::OutboxRow;
use outbox_relay::relay::OnRejected;
use outbox_relay::relay::batch::{Batch, Coverage};
use outbox_relay::relay::cycle::session::Session;
use outbox_relay::relay::lanes::marks::Marks;
use outbox_relay::relay::lanes::{LANES, Lane};
use outbox_relay::relay::memory::{Acknowledged, HoldsSeen, Streaks};
use outbox_relay::relay::outbox::{Epoch, Event, ReadEnd, ServerId};
use outbox_relay::relay::partition;
use outbox_relay::relay::publisher::Producer;
use outbox_relay::relay::topic::TopicRules;
use rdkafka::error::RDKafkaErrorCode::{
    self as Code, BrokerTransportFailure, MessageSizeTooLarge, NotLeaderForPartition, PurgeQueue,
    TopicAuthorizationFailed,
};
use std::hint::black_box;
use tokio::runtime::Runtime;

/// The number of rows in a batch: the default of `batch_size` under load.
pub const ROWS: usize = 5_000;

const PARTITIONS: u32 = 12;
const HOLD_VERSION: i64 = 1;

const CODES: [Code; 5] = [
    PurgeQueue,
    NotLeaderForPartition,
    BrokerTransportFailure,
    MessageSizeTooLarge,
    TopicAuthorizationFailed,
];
const STATES: [&str; 5] = ["57P01", "40P01", "08006", "25P03", "XX000"];

/// A part of the per-row path, which processes one batch of [`ROWS`] rows after the other.
pub trait Part {
    /// Restores the state before a batch. Not measured.
    fn prepare(&mut self) {}

    /// Processes one batch. Measured.
    fn run(&mut self);
}

/// The name of a part, and its constructor.
pub type Entry = (&'static str, fn() -> Box<dyn Part>);

/// Every part, in the order in which a row passes through them.
pub const PARTS: &[Entry] = &[
    ("read", read),
    ("partition", partition),
    ("record", || record(Headers::None)),
    ("record with traceparent", || record(Headers::Traceparent)),
    ("send to librdkafka", || Box::new(Send::new())),
    ("session", || Box::new(SendBatch::new())),
    ("reach and marks", || Box::new(Marking::new())),
    ("acknowledged: keep, 0 others", || keep(0)),
    ("acknowledged: keep, 5000 others", || keep(5_000)),
    ("acknowledged: keep, 100000 others", || keep(100_000)),
    ("acknowledged: contains, 0 others", || contains(0)),
    ("acknowledged: contains, 5000 others", || contains(5_000)),
    ("acknowledged: contains, 100000 others", || contains(100_000)),
    ("acknowledged: forget, 0 others", || forget(0)),
    ("acknowledged: forget, 5000 others", || forget(5_000)),
    ("acknowledged: forget, 100000 others", || forget(100_000)),
    ("classify Kafka's code", classify_code),
    ("classify an SQLSTATE", classify_sqlstate),
];

/// A part that is two functions of a state.
struct Steps<S> {
    state: S,
    prepare: fn(&mut S),
    run: fn(&mut S),
}

impl<S> Part for Steps<S> {
    fn prepare(&mut self) {
        (self.prepare)(&mut self.state);
    }

    fn run(&mut self) {
        (self.run)(&mut self.state);
    }
}

fn steps<S: 'static>(state: S, prepare: fn(&mut S), run: fn(&mut S)) -> Box<dyn Part> {
    Box::new(Steps { state, prepare, run })
}

/// A single-threaded runtime, like the relay's.
fn runtime() -> Runtime {
    let built = tokio::runtime::Builder::new_current_thread().enable_time().build();
    built.unwrap_or_else(|error| panic!("cannot create a runtime: {error}"))
}

/// From the wire to rows: the PostgreSQL client's work for each message, and the columns that the relay reads immediately.
/// The socket is a pipe in memory, and both of its ends are included in the cost. So is dropping the rows.
fn read() -> Box<dyn Part> {
    let state = (Wire::new(1, ROWS, Headers::None), Vec::with_capacity(ROWS));
    steps(
        state,
        |_| (),
        |(wire, rows)| {
            rows.clear();
            wire.read(rows);
        },
    )
}

/// Computes the partition of each row's key.
fn partition() -> Box<dyn Part> {
    let run = |rows: &mut Vec<OutboxRow>| {
        for row in rows {
            black_box(partition::of(black_box(row.key()), PARTITIONS));
        }
    };
    steps(rows(1, ROWS, Headers::None), |_| (), run)
}

/// Builds and drops the key, value and headers of each row's record.
fn record(headers: Headers) -> Box<dyn Part> {
    steps(
        (rows(1, ROWS, headers), default_headers()),
        |_| (),
        |(rows, headers)| {
            for row in rows {
                black_box((row.key(), row.payload()));
                let _ = black_box(record::headers(row, headers));
            }
        },
    )
}

/// Sends each row to a librdkafka producer without a broker: the record is built, copied and queued.
struct Send {
    runtime: Runtime,
    producer: KafkaProducer,
    rows: Vec<OutboxRow>,
}

impl Send {
    fn new() -> Send {
        let runtime = runtime();
        let settings = [
            ("OUTBOX_RELAY__POSTGRES__URL", "postgres://relay@127.0.0.1/none"),
            ("OUTBOX_RELAY__KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1"),
            ("OUTBOX_RELAY__RELAY__BATCH_SIZE", "5000"),
        ];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let config = config::load(None, settings.into_iter())
            .unwrap_or_else(|findings| panic!("invalid settings: {findings}"));
        let producer = runtime.block_on(async { config.cluster()?.connecting().await });
        let producer = producer.unwrap_or_else(|failure| panic!("cannot create a producer: {failure}"));
        Send { runtime, producer, rows: rows(1, ROWS, Headers::None) }
    }
}

impl Part for Send {
    fn prepare(&mut self) {
        self.runtime.block_on(self.producer.withdraw());
        self.runtime.block_on(self.producer.all_reported());
        self.producer.take_reports(&mut Vec::new());
    }

    fn run(&mut self) {
        for (index, row) in self.rows.iter().enumerate() {
            let sent = self.producer.send(index as u32, "events.order", index as u32 % PARTITIONS, row);
            assert!(sent.is_ok(), "the producer did not accept the row: {sent:?}");
        }
    }
}

/// Sends a batch on a session whose partitions are primed, processes the reports, and lists the sent rows.
struct SendBatch {
    runtime: Runtime,
    topics: TopicRules,
    refusals: Streaks,
    session: Session<Acknowledging>,
    batch: Batch<OutboxRow>,
}

impl SendBatch {
    fn new() -> SendBatch {
        let topics = "events.{aggregate_type}".parse();
        let mut batch = Batch::new(OnRejected::default());
        *batch.rows_mut() = rows(1, ROWS, Headers::None);
        let mut part = SendBatch {
            runtime: runtime(),
            topics: topics.unwrap_or_else(|error| panic!("{error}")),
            refusals: Streaks::default(),
            session: Session::new(AtOnce { partitions: PARTITIONS }.producer(), std::rc::Rc::default()),
            batch,
        };
        part.run(); // The first batch primes the partitions.
        part
    }
}

impl Part for SendBatch {
    fn prepare(&mut self) {
        let rows = std::mem::take(self.batch.rows_mut());
        self.batch = Batch::new(OnRejected::default());
        *self.batch.rows_mut() = rows;
    }

    fn run(&mut self) {
        let SendBatch { runtime, topics, refusals, session, batch } = self;
        let from = batch.appended(ReadEnd::Complete);
        session.begin(refusals);
        runtime.block_on(async {
            session.send(topics, batch, from).await;
            session.finish(batch).await;
        });
        let sent: Vec<&OutboxRow> = batch.sent().collect();
        assert_eq!(black_box(sent).len(), ROWS);
    }
}

/// After the COMMIT: how far the batch went in each lane, and the lanes' marks.
struct Marking {
    batch: Batch<OutboxRow>,
    lanes: Vec<Lane>,
    marks: Marks,
}

impl Marking {
    fn new() -> Marking {
        let SendBatch { mut batch, .. } = SendBatch::new();
        batch.set_shares([ROWS; LANES].into_iter());
        let mut marks = Marks::new();
        marks.note_server(ServerId { connection: 1, started_us: 1, backend: 1 });
        marks.note_epoch(marks.generation, Epoch::from(1));
        marks.list_writers(i64::MAX, Vec::new());
        Marking { batch, lanes: Lane::all().collect(), marks }
    }
}

impl Part for Marking {
    fn run(&mut self) {
        let snapshot = self.marks.snapshot(&self.lanes);
        let highest = self.batch.rows().iter().map(Event::id).max();
        self.marks.note_ids(snapshot.generation, [highest.unwrap_or_default()]);
        let coverage = self.batch.coverage(&self.lanes);
        self.marks.raise(&snapshot, Epoch::from(1), black_box(&coverage));
    }
}

/// The acknowledged set, with a batch among other batches whose settlement is not confirmed.
struct World {
    acknowledged: Acknowledged,
    batch: Vec<OutboxRow>,
    /// How far the batch reaches, without later batches.
    coverage: Vec<Coverage>,
}

impl World {
    /// A batch, and this number of other rows that the set already contains.
    fn new(others: usize) -> World {
        let batch = rows(1, ROWS, Headers::None);
        let mut acknowledged = Acknowledged::default();
        acknowledged.keep(rows(1 + ROWS as i64, others, Headers::None).iter(), HOLD_VERSION);
        let coverage = |lane| Coverage {
            lane,
            last_read: Some(ROWS as i64),
            first_open: None,
            cut: true,
            used_share: false,
        };
        World { acknowledged, batch, coverage: Lane::all().map(coverage).collect() }
    }

    fn keep(&mut self) {
        self.acknowledged.keep(self.batch.iter(), HOLD_VERSION);
    }

    fn contains(&mut self) {
        for row in &self.batch {
            black_box(self.acknowledged.contains(black_box(row)));
        }
    }

    fn forget(&mut self) {
        let seen = HoldsSeen { hold_version: HOLD_VERSION, nothing_held: true };
        self.acknowledged.forget(&self.coverage, &self.batch, seen);
    }
}

/// Keeps a batch whose settlement failed.
fn keep(others: usize) -> Box<dyn Part> {
    steps(World::new(others), World::forget, World::keep)
}

/// Looks up rows that are not in the set, which is the usual result of a claim. Without others, this is the cost that
/// every row pays while nothing fails.
fn contains(others: usize) -> Box<dyn Part> {
    steps(World::new(others), |_| (), World::contains)
}

/// Forgets a batch whose settlement has been confirmed.
fn forget(others: usize) -> Box<dyn Part> {
    steps(World::new(others), World::keep, World::forget)
}

/// The classification of one failed delivery report per row.
fn classify_code() -> Box<dyn Part> {
    let run = |(): &mut ()| {
        for code in CODES.iter().cycle().take(ROWS) {
            black_box(reason(black_box(*code)));
        }
    };
    steps((), |()| (), run)
}

/// The classification of one failed statement per row.
fn classify_sqlstate() -> Box<dyn Part> {
    let run = |(): &mut ()| {
        for state in STATES.iter().cycle().take(ROWS) {
            black_box(sqlstates::entry(black_box(state)));
        }
    };
    steps((), |()| (), run)
}
