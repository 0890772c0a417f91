//! Rows of probes whose acks arrive late, with a scripted outbox.

use super::*;
use crate::fixture::{self, FakeProducer, Row};
use crate::outbox::{SearchResult, Slice};
use crate::reason::{NO_ANSWER, Reason, STUCK, UNKNOWN_TOPIC};
use crate::{FaultKind, Head, Lane, Marks, Search, ServerId, Stats};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use tokio::time::advance;

/// The ids of the unsent rows, and of those that a settlement records.
pub(in crate::holds) struct Table {
    pub(in crate::holds) unsent: Vec<i64>,
    pub(in crate::holds) free: HashSet<i64>,
    /// Settlements with this row fail.
    pub(in crate::holds) fails: Option<i64>,
}

impl Table {
    pub(in crate::holds) fn new(unsent: &[i64], free: &[i64]) -> Table {
        Table { unsent: unsent.to_vec(), free: free.iter().copied().collect(), fails: None }
    }
}

pub(in crate::holds) struct TableClaim {
    lanes: Vec<Lane>,
    unsent: Vec<i64>,
    free: HashSet<i64>,
    fails: Option<i64>,
}

impl Outbox for Table {
    type Event = Row;
    type Claim<'a> = TableClaim;

    async fn claim(&mut self, lanes: &[Lane], _: Option<&ReadRequest>) -> Result<TableClaim, PostgresFault> {
        let (unsent, free) = (self.unsent.clone(), self.free.clone());
        Ok(TableClaim { lanes: lanes.to_vec(), unsent, free, fails: self.fails })
    }
}

impl Claim for TableClaim {
    type Event = Row;

    fn lanes(&self) -> &[Lane] {
        &self.lanes
    }
    fn server(&self) -> ServerId {
        ServerId { connection: 1, started_us: 1, backend: 1 }
    }
    async fn read(&mut self, read: &ReadRequest) -> Result<(), PostgresFault> {
        if matches!(read.rows, RowSelection::Named) {
            self.unsent.retain(|id| read.wanted.iter().any(|wanted| wanted.row == Some(*id)));
        }
        Ok(())
    }
    async fn next_slice(&mut self, _: usize, _: usize, rows: &mut Vec<Row>) -> Result<Slice, PostgresFault> {
        rows.extend(self.unsent.iter().map(|id| Row(*id)));
        Ok(Slice { hold_version: 7, epoch: Epoch::from(1), end: ReadEnd::Complete })
    }
    async fn head(&mut self, _: &ReadRequest) -> Result<Head<Row>, PostgresFault> {
        unreachable!("probes read whole rows")
    }
    async fn read_on(&mut self, _: &Search, _: &mut Vec<Row>) -> Result<SearchResult, PostgresFault> {
        unreachable!("probes are no flows")
    }
    async fn record_sent(&mut self, _: &[&Row]) -> Result<bool, PostgresFault> {
        unreachable!("probes are no flows")
    }
    async fn keep_alive(&mut self) -> Result<(), PostgresFault> {
        Ok(())
    }
    async fn settle(self, settlement: &Settlement<'_, Row>) -> Result<Settled, PostgresFault> {
        if settlement.sent.iter().any(|row| Some(row.id()) == self.fails) {
            let message = "a trigger refuses it".to_owned();
            return Err(PostgresFault { kind: FaultKind::Refused, doing: "settling", message });
        }
        let sent = settlement.sent.iter().map(|row| row.id());
        let recorded: HashSet<i64> = sent.filter(|id| self.free.contains(id)).collect();
        Ok(if recorded.len() == settlement.sent.len() { Settled::All } else { Settled::Only(recorded) })
    }
    async fn release(self) -> Result<(), PostgresFault> {
        Ok(())
    }
}

/// Settles row 1, which was acknowledged late. Returns whether its topic works, whether the row is still known, and whether the
/// lease is kept.
async fn late(unsent: &[i64], free: &[i64]) -> (bool, bool, bool) {
    let template = "events.{aggregate_type}".parse().unwrap();
    let marks = Rc::new(RefCell::new(Marks::new()));
    let relay = Relay::new((), template, fixture::limits(), marks, Arc::new(Stats::new()));
    relay.memory.acknowledged.borrow_mut().keep(std::iter::once(&Row(1)), UNKNOWN_HOLDS);
    let mut table = Table::new(unsent, free);
    let mut found = ProbeResults::default();
    let mut unsettled = vec![Unsettled { topic: "events.order".to_owned(), row: Row(1), proves: true }];
    settle_late(&relay, &mut table, &mut unsettled, LANES_WITHIN, &mut found).await.unwrap();
    assert!(found.fails.is_empty(), "{:?}", found.fails);
    let is_known = relay.memory.acknowledged.borrow().contains(&Row(1));
    (!found.works.is_empty(), is_known, !unsettled.is_empty())
}

#[tokio::test(start_paused = true)]
async fn a_topic_works_once_its_late_row_is_recorded() {
    assert_eq!(late(&[1], &[1]).await, (true, false, false));
}

/// Otherwise another relay would publish the row again after the hold.
#[tokio::test(start_paused = true)]
async fn a_topic_stays_held_while_another_session_has_locked_its_late_row() {
    assert_eq!(late(&[1], &[]).await, (false, true, true));
}

/// If the relay still knew the row, it would ignore an operator's `sent_at = NULL`.
#[tokio::test(start_paused = true)]
async fn a_late_row_that_another_relay_has_settled_is_forgotten() {
    assert_eq!(late(&[], &[]).await, (false, false, false));
}

/// Slow brokers acknowledge rows one after the other. If the prober gave up, the rows would be published again.
#[tokio::test(start_paused = true)]
async fn each_report_restarts_the_time_that_a_producer_may_be_silent() {
    let template = "events.{aggregate_type}".parse().unwrap();
    let marks = Rc::new(RefCell::new(Marks::new()));
    let relay = Relay::new((), template, fixture::limits(), marks, Arc::new(Stats::new()));
    let mut flight = Flight::new(FakeProducer { answers: Cell::new(true), ..FakeProducer::keeping(1) });
    let mut found = ProbeResults::default();
    for id in [1, 2] {
        let due = Due { topic: format!("events.{id}"), reason: "stuck".to_owned() };
        flight.send(due, Row(id), 1, &mut found);
    }
    advance(Duration::from_secs(7)).await;
    assert_eq!(flight.silent_since.elapsed(), Duration::from_secs(7));
    assert!(flight.take_acknowledged(&relay.memory).is_empty(), "the report is on its way");
    assert_eq!(flight.take_acknowledged(&relay.memory).len(), 1);
    advance(Duration::from_secs(5)).await;
    assert!(flight.take_acknowledged(&relay.memory).is_empty() && !flight.is_done());
    assert_eq!(flight.silent_since.elapsed(), Duration::from_secs(5));
}

async fn reached(unreachable: &'static [(&'static str, &'static Reason)]) -> (Vec<String>, Vec<String>) {
    let candidate = |topic: &str| {
        let due = Due { topic: topic.to_owned(), reason: UNKNOWN_TOPIC.word.to_owned() };
        Candidate::new(due, ExampleRow { lane: Lane::new(1).unwrap(), id: 1, key: None }, &[Some(1)])
    };
    let mut found = ProbeResults::default();
    let candidates = ["a", "b", "c"].map(candidate).into();
    let reached =
        reachable(&FakeProducer { unreachable, ..FakeProducer::default() }, candidates, &mut found).await;
    let mut reached: Vec<String> = reached.into_iter().map(|candidate| candidate.due.topic).collect();
    reached.sort();
    assert!(
        found.fails.iter().all(|(_, failure)| failure.reason == STUCK.word),
        "whatever they were held for"
    );
    (reached, found.fails.into_iter().map(|(topic, _)| topic).collect())
}

#[tokio::test]
async fn a_partition_whose_leader_moves_postpones_no_other_topic_of_the_broker() {
    let (reached, fails) = reached(&[("a", &LEADER_MOVING)]).await;
    assert_eq!(reached, ["b", "c"]);
    assert_eq!(fails, ["a"]);
}

#[tokio::test]
async fn a_broker_that_does_not_answer_postpones_all_of_its_topics() {
    let (reached, fails) = reached(&[("a", &NO_ANSWER)]).await;
    assert!(reached.is_empty(), "{reached:?}");
    assert_eq!(fails, ["a", "b", "c"]);
}

#[test]
fn a_topic_whose_probe_fails_for_no_known_reason_is_stuck() {
    for (failure, expected) in [(&NO_ANSWER, STUCK.word), (&UNKNOWN_TOPIC, UNKNOWN_TOPIC.word)] {
        let due = Due { topic: "events.order".to_owned(), reason: UNKNOWN_TOPIC.word.to_owned() };
        let mut found = ProbeResults::default();
        classify(due, failure.failure(""), &mut found);
        assert_eq!(found.fails[0].1.reason, expected);
    }
}
