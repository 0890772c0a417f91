//! A session on a producer that reports when a test says so.

use super::*;
use crate::relay::event::Payload;
use crate::relay::lane::Lane;
use crate::relay::outbox::End;
use crate::relay::publisher::Report;
use std::cell::{Cell, RefCell};
use uuid::Uuid;

struct Row(i64);

impl Event for Row {
    fn id(&self) -> i64 {
        self.0
    }
    fn event_id(&self) -> Uuid {
        Uuid::from_u128(self.0 as u128)
    }
    fn lane(&self) -> Lane {
        Lane::new(0).unwrap()
    }
    fn aggregate_type(&self) -> &[u8] {
        b"order"
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
        1
    }
}

/// Once it answers, it reports what is on its way just after the session has taken the reports.
#[derive(Default)]
struct LateReporter {
    on_their_way: RefCell<Vec<u32>>,
    reported: RefCell<Vec<Report>>,
    answers: Cell<bool>,
}

impl Producer for LateReporter {
    async fn lookup(&mut self, _: &str) -> Result<u32, Failure> {
        Ok(1)
    }
    fn send<E: Event>(&mut self, index: u32, _: &str, _: u32, _: &E) -> Result<(), Refusal> {
        self.on_their_way.borrow_mut().push(index);
        Ok(())
    }
    fn in_flight(&self) -> usize {
        self.on_their_way.borrow().len()
    }
    fn has_failed(&self) -> bool {
        false
    }
    fn refusal(&self) -> Option<Failure> {
        None
    }
    fn drain(&mut self, reports: &mut Vec<Report>) {
        reports.append(&mut self.reported.borrow_mut());
        if self.answers.get() {
            let reports = self.on_their_way.take().into_iter().map(|index| Report { index, outcome: Ok(()) });
            self.reported.borrow_mut().extend(reports);
        }
    }
    async fn quiet(&mut self, _: bool) {}
    fn stop(&mut self) {}
    async fn drained(&mut self) {}
    fn abandon(self) {}
}

#[tokio::test]
async fn a_report_that_comes_at_the_last_moment_counts_for_its_own_batch() {
    let (template, refusals) = ("events.{aggregate_type}".parse().unwrap(), Refusals::new());
    let mut session = Session::new(LateReporter::default());
    let mut batch = Batch::default();
    batch.rows_mut().push(Row(1));
    batch.grown(End::Complete);
    session.begin(&refusals);
    session.send(Routing { template: &template, refusals: &refusals }, &mut batch, 0).await;
    session.producer.answers.set(true);
    session.finish(&mut batch).await;
    assert_eq!(*batch.fate(0), Fate::Acknowledged);
    session.begin(&refusals); // Which asserts that nothing is left of the last batch.
}

/// The same, for rows that waited for the first one of their partition and are handed over when its report comes.
#[tokio::test]
async fn rows_that_waited_for_the_first_of_their_partition_count_for_their_own_batch() {
    let (template, refusals) = ("events.{aggregate_type}".parse().unwrap(), Refusals::new());
    let mut session = Session::new(LateReporter::default());
    let mut batch = Batch::default();
    batch.rows_mut().extend([Row(1), Row(2), Row(3)]);
    batch.grown(End::Complete);
    session.begin(&refusals);
    session.send(Routing { template: &template, refusals: &refusals }, &mut batch, 0).await;
    assert_eq!(session.producer.in_flight(), 1, "the first row of a partition goes alone");
    session.producer.answers.set(true);
    session.finish(&mut batch).await;
    assert_eq!(batch.sent().count(), 3);
    session.begin(&refusals);
}
