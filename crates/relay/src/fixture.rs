//! Rows, limits, a producer and a cluster for tests.

#![allow(clippy::unwrap_used)]

use crate::outbox::Payload;
use crate::publisher::Judged;
use crate::reason::{INVALID_HEADERS, Reason, SILENT_CONNECTION, UNKNOWN_TOPIC};
use crate::{
    DeliveryReport, Event, KafkaFailure, LANES, Lane, Limits, NotSent, OnRejected, Producer, Publisher,
};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

/// A row with this id. Rows from 100 on are of other types, rows from 300 on of one that no topic can have, and rows from 50 to 99
/// are large. Rows from 1,000 on are of the first type, and of all lanes in turn. The others are of one lane.
pub struct Row(pub i64);

/// The size of a large row.
pub const LARGE: usize = 100;

impl Event for Row {
    fn id(&self) -> i64 {
        self.0
    }
    fn event_id(&self) -> Uuid {
        Uuid::from_u128(self.0 as u128)
    }
    fn lane(&self) -> Lane {
        Lane::new(if self.0 < 1_000 { 0 } else { self.0 % LANES as i64 }).unwrap()
    }
    fn aggregate_type(&self) -> &[u8] {
        match self.0 {
            ..100 | 1_000.. => b"order",
            100..200 => b"silent",
            200..300 => b"missing",
            _ => b"a b",
        }
    }
    fn key(&self) -> &[u8] {
        b"42"
    }
    fn event_type(&self) -> &[u8] {
        b"Changed"
    }
    fn payload(&self) -> Payload<'_> {
        Payload::Tombstone
    }
    fn headers(&self) -> Option<&[u8]> {
        None
    }
    fn created_at_us(&self) -> i64 {
        0
    }
    fn size(&self) -> usize {
        if (50..100).contains(&self.0) { LARGE } else { 1 }
    }
}

/// Small limits, without flows.
pub fn limits() -> Limits {
    Limits {
        batch_rows: 10,
        batch_bytes: 1_000,
        publish_timeout: Duration::from_secs(30),
        takeover_timeout: Duration::from_secs(10),
        flow_window: Duration::ZERO,
        flow_gap: Duration::from_millis(30),
        flow_records: 64,
        poll_interval: Duration::from_secs(1),
        look_every: Duration::from_millis(5),
        on_rejected: OnRejected::default(),
        rejections_before_hold: 10,
    }
}

/// A producer that does what a test scripts. Without a script, it accepts rows and reports nothing.
#[derive(Default)]
pub struct FakeProducer {
    /// Indexes of rows without a report.
    pub in_flight: RefCell<Vec<u32>>,
    pub reported: RefCell<Vec<DeliveryReport>>,
    /// Once this is set, it acknowledges the rows in flight just after the session has drained the reports.
    pub answers: Cell<bool>,
    /// It waits for reports forever, and the client has reported an error.
    pub waits: bool,
    /// How many partitions each topic has, if not one.
    pub partitions: Cell<Option<u32>>,
    /// How long it takes to list the topics.
    pub list_takes: Duration,
    /// It never reports this row.
    pub keeps: Option<u32>,
    /// It refuses the rows with these indexes before they are sent.
    pub refuses: Vec<u32>,
    /// The leaders of these topics do not answer.
    pub unreachable: &'static [(&'static str, &'static Reason)],
    /// The topics of the cluster, if it lists them.
    pub listed: Option<HashSet<String>>,
    pub lists: Rc<Cell<u32>>,
    pub lookups: Rc<Cell<u32>>,
    /// The first lookup finds that the connection is lost. The others wait for an answer forever.
    pub is_cut_off: bool,
    /// How long a lookup takes.
    pub lookup_takes: Duration,
}

impl FakeProducer {
    /// Waits forever for reports that never arrive.
    pub fn silent() -> FakeProducer {
        FakeProducer { waits: true, ..FakeProducer::default() }
    }

    /// Acknowledges every row except this one, if any, once `answers` is set.
    pub fn keeping(keeps: impl Into<Option<u32>>) -> FakeProducer {
        FakeProducer { keeps: keeps.into(), ..FakeProducer::default() }
    }

    /// Lists these topics of the cluster.
    pub fn listing(topics: &[&str]) -> FakeProducer {
        let listed = topics.iter().map(|topic| (*topic).to_owned()).collect();
        FakeProducer { listed: Some(listed), ..FakeProducer::default() }
    }

    /// How many times it listed topics and looked up a topic.
    pub fn requests(&self) -> (Rc<Cell<u32>>, Rc<Cell<u32>>) {
        (Rc::clone(&self.lists), Rc::clone(&self.lookups))
    }
}

impl Producer for FakeProducer {
    async fn lookup(&self, topic: &str) -> Result<u32, KafkaFailure> {
        self.lookups.set(self.lookups.get() + 1);
        sleep(self.lookup_takes).await;
        match (self.is_cut_off, self.lookups.get()) {
            (true, 1) => return Err(SILENT_CONNECTION.failure("")),
            (true, _) => std::future::pending().await,
            (false, _) => {}
        }
        if topic == "events.missing" {
            return Err(UNKNOWN_TOPIC.failure(""));
        }
        Ok(self.partitions.get().unwrap_or(1))
    }
    async fn list_topics(&self) -> Option<HashSet<String>> {
        self.lists.set(self.lists.get() + 1);
        sleep(self.list_takes).await;
        self.listed.clone()
    }
    async fn leaders(&self, topic: &str) -> Result<Vec<Option<i32>>, KafkaFailure> {
        Ok(vec![Some(0); self.lookup(topic).await? as usize])
    }
    async fn reach_leader(&self, topic: &str, _: u32) -> Result<(), KafkaFailure> {
        let found = self.unreachable.iter().find(|(name, _)| *name == topic);
        found.map_or(Ok(()), |(_, reason)| Err(reason.failure(topic)))
    }
    fn send<E: Event>(&mut self, index: u32, _: &str, _: u32, _: &E) -> Result<(), NotSent> {
        if self.refuses.contains(&index) {
            return Err(NotSent::Row(INVALID_HEADERS.rejection("not a string")));
        }
        self.in_flight.borrow_mut().push(index);
        Ok(())
    }
    fn has_failed(&self) -> bool {
        false
    }
    fn fatal_error(&self) -> Option<KafkaFailure> {
        None
    }
    fn last_error(&self, max_age: Duration) -> Option<String> {
        self.waits.then(|| format!("no broker for {max_age:?}"))
    }
    fn take_reports(&mut self, reports: &mut Vec<DeliveryReport>) {
        reports.append(&mut self.reported.borrow_mut());
        if self.answers.get() {
            let (kept, acknowledged): (Vec<u32>, Vec<u32>) =
                self.in_flight.take().into_iter().partition(|index| Some(*index) == self.keeps);
            let reports = acknowledged.into_iter().map(|index| DeliveryReport { index, outcome: Ok(()) });
            self.reported.borrow_mut().extend(reports);
            self.in_flight.replace(kept);
        }
    }
    async fn wait_until_quiet(&mut self, _: bool) {
        self.all_reported().await;
    }
    async fn withdraw(&mut self) {}
    async fn all_reported(&mut self) {
        if self.waits {
            std::future::pending::<()>().await;
        }
    }
}

/// A cluster that answers, unless a test scripts something else.
pub struct FakeCluster {
    /// The result of opening a producer; with `None` it never returns.
    pub opens: Cell<Option<Result<(), &'static Reason>>>,
    /// Its producers wait for reports forever.
    pub is_silent: bool,
    /// Its producers acknowledge every row.
    pub answers: bool,
    /// How long a lookup of its producers takes.
    pub lookup_takes: Cell<Duration>,
    /// Why it refuses judged rows, and how long that takes. Without a reason, it acknowledges none.
    pub judges: (Option<&'static Reason>, Duration),
    /// How many of them it acknowledges before.
    pub judged: usize,
    /// How many probes it has answered.
    pub probes: Cell<u32>,
}

impl Default for FakeCluster {
    fn default() -> FakeCluster {
        FakeCluster {
            opens: Cell::new(Some(Ok(()))),
            is_silent: false,
            answers: false,
            lookup_takes: Cell::default(),
            judges: (None, Duration::ZERO),
            judged: 0,
            probes: Cell::new(0),
        }
    }
}

impl Publisher for Rc<FakeCluster> {
    type Producer = FakeProducer;

    async fn open(&self) -> Result<FakeProducer, KafkaFailure> {
        let Some(opened) = self.opens.get() else { return std::future::pending().await };
        opened.map_err(|reason| reason.failure("not opened"))?;
        let (answers, lookup_takes) = (Cell::new(self.answers), self.lookup_takes.get());
        Ok(FakeProducer { waits: self.is_silent, answers, lookup_takes, ..FakeProducer::default() })
    }
    async fn judge<E: Event>(
        &self,
        _: &str,
        _: u32,
        _: &[&E],
        patience: Duration,
        _: impl Fn() -> bool,
    ) -> Judged {
        if timeout(patience, sleep(self.judges.1)).await.is_err() {
            return Judged { acknowledged: self.judged, failure: Some(KafkaFailure::unknown("no report")) };
        }
        Judged { acknowledged: self.judged, failure: self.judges.0.map(|reason| reason.failure("refused")) }
    }
    async fn probe(&self) -> Result<(), KafkaFailure> {
        self.probes.set(self.probes.get() + 1);
        Ok(())
    }
}
