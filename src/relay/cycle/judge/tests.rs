//! Judging with a cluster that refuses every row for the same reason.

use super::*;
use crate::config::OnRejected;
use crate::relay::cycle::session::tests::LateReporter;
use crate::relay::event::fixture::Row;
use crate::relay::health::stats::Stats;
use crate::relay::lanes::marks::Marks;
use crate::relay::outbox::ReadEnd;
use crate::relay::reason::{INVALID_RECORD, Reason};
use crate::relay::settings::Limits;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

struct Refusing(&'static Reason);

impl Publisher for Refusing {
    type Producer = LateReporter;

    async fn open(&self) -> Result<LateReporter, Failure> {
        Ok(LateReporter::default())
    }
    async fn judge<E: Event>(&self, _: &str, _: u32, _: &[&E]) -> Judged {
        Judged { acknowledged: 0, failure: Some(self.0.failure("refused")) }
    }
    async fn probe(&self) -> Result<(), Failure> {
        Ok(())
    }
}

/// The fate of the first of two suspects.
async fn judged(reason: &'static Reason) -> Fate {
    let limits = Limits {
        batch_rows: 10,
        batch_bytes: 1_000,
        publish_timeout: Duration::from_secs(1),
        takeover_timeout: Duration::from_secs(1),
        poll_interval: Duration::from_secs(1),
        on_rejected: OnRejected::default(),
        rejections_before_hold: 10,
    };
    let template = "events.{aggregate_type}".parse().unwrap();
    let marks = Rc::new(RefCell::new(Marks::new()));
    let relay = Relay::new(Refusing(reason), template, limits, marks, Arc::new(Stats::new()));
    let mut session = Session::new(LateReporter::default());
    let mut batch = Batch::default();
    batch.rows_mut().extend([Row(1), Row(2)]);
    batch.appended(ReadEnd::Complete);
    session.begin(&relay.rows.refusals);
    session.send(&relay.template, &mut batch, 0).await;
    batch.suspect(0);
    batch.suspect(1);
    judge(&relay, &mut session, &mut batch).await;
    batch.fate(0)
}

#[tokio::test]
async fn a_row_is_not_rejected_because_of_another_row() {
    assert_eq!(judged(&INVALID_RECORD).await, Fate::Rejected(0));
    assert_eq!(judged(&OTHER_RECORD_REFUSED).await, Fate::Suspect, "the reason is about another row");
}
