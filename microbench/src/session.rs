//! The relay's own part of publishing a batch: routes, sending, reports, outcomes.

use crate::publish::PARTITIONS;
use crate::rows::{Headers, rows};
use crate::{Part, ROWS, runtime};
use outbox_relay::postgres::cycle::event::OutboxRow;
use outbox_relay::relay::batch::Batch;
use outbox_relay::relay::cycle::session::Session;
use outbox_relay::relay::event::Event;
use outbox_relay::relay::failure::KafkaFailure;
use outbox_relay::relay::lanes::marks::Marks;
use outbox_relay::relay::lanes::{LANES, Lane};
use outbox_relay::relay::memory::Streaks;
use outbox_relay::relay::outbox::{Epoch, ReadEnd, ServerId};
use outbox_relay::relay::publisher::{DeliveryReport, NotSent, Producer};
use outbox_relay::relay::topic::TopicRules;
use std::hint::black_box;
use tokio::runtime::Runtime;

/// A producer that acknowledges everything immediately and does nothing else.
#[derive(Default)]
struct Accepting {
    in_flight: Vec<u32>,
}

impl Producer for Accepting {
    async fn lookup(&self, _: &str) -> Result<u32, KafkaFailure> {
        Ok(PARTITIONS)
    }
    async fn leaders(&self, topic: &str) -> Result<Vec<Option<i32>>, KafkaFailure> {
        Ok(vec![Some(0); self.lookup(topic).await? as usize])
    }
    async fn reach_leader(&self, _: &str, _: u32) -> Result<(), KafkaFailure> {
        Ok(())
    }
    fn send<E: Event>(&mut self, index: u32, topic: &str, partition: u32, event: &E) -> Result<(), NotSent> {
        black_box((topic, partition, event.id()));
        self.in_flight.push(index);
        Ok(())
    }
    fn has_failed(&self) -> bool {
        false
    }
    fn fatal_error(&self) -> Option<KafkaFailure> {
        None
    }
    fn drain(&mut self, reports: &mut Vec<DeliveryReport>) {
        reports.extend(self.in_flight.drain(..).map(|index| DeliveryReport { index, outcome: Ok(()) }));
    }
    async fn wait_until_quiet(&mut self, _: bool) {}
    async fn withdraw(&mut self) {}
    async fn drained(&mut self) {}
    fn abandon(self) {}
}

/// Sends a batch on a session whose partitions are primed, processes the reports, and lists the sent rows.
pub(super) struct SendBatch {
    runtime: Runtime,
    topics: TopicRules,
    refusals: Streaks,
    session: Session<Accepting>,
    batch: Batch<OutboxRow>,
}

impl SendBatch {
    pub(super) fn new() -> SendBatch {
        let topics = "events.{aggregate_type}".parse();
        let mut batch = Batch::default();
        *batch.rows_mut() = rows(1, ROWS, Headers::None);
        let mut part = SendBatch {
            runtime: runtime(),
            topics: topics.unwrap_or_else(|error| panic!("{error}")),
            refusals: Streaks::new(),
            session: Session::new(Accepting::default(), std::rc::Rc::default()),
            batch,
        };
        part.run(); // The first batch primes the partitions.
        part
    }
}

impl Part for SendBatch {
    fn prepare(&mut self) {
        let rows = std::mem::take(self.batch.rows_mut());
        self.batch = Batch::default();
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
pub(super) struct Marking {
    batch: Batch<OutboxRow>,
    lanes: Vec<Lane>,
    marks: Marks,
}

impl Marking {
    pub(super) fn new() -> Marking {
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
