//! Judging with a cluster that refuses every row for the same reason.

use super::*;
use crate::cycle::tests::relay_with;
use crate::fixture::{FakeCluster, FakeProducer, Row};
use crate::reason::{INVALID_RECORD, Reason};
use crate::{OnRejected, ReadEnd};
use std::rc::Rc;
use tokio::time::sleep;

/// A relay whose cluster refuses every row for this reason, after some time.
fn refusing(reason: &'static Reason, time: Duration) -> Relay<Rc<FakeCluster>> {
    relay_with(FakeCluster { judges: (Some(reason), time), ..FakeCluster::default() })
}

/// A batch of this many suspects, and its session.
async fn suspects_of(relay: &Relay<Rc<FakeCluster>>, rows: usize) -> (Session<FakeProducer>, Batch<Row>) {
    let mut session = Session::new(FakeProducer::default(), Rc::default());
    let mut batch = Batch::new(OnRejected::default());
    batch.rows_mut().extend((1..=rows as i64).map(Row));
    batch.appended(ReadEnd::Complete);
    session.begin(&relay.memory.streaks);
    session.send(&relay.kafka.topics, &mut batch, 0).await;
    (0..rows).for_each(|index| batch.set(index, Fate::Suspect));
    (session, batch)
}

/// The fate of the first of two suspects.
async fn judged(reason: &'static Reason) -> Fate {
    let relay = refusing(reason, Duration::ZERO);
    let (mut session, batch) = suspects_of(&relay, 2).await;
    let mut sending = Sending { relay: &relay, session: &mut session, batch };
    judge(&mut sending).await;
    sending.batch.fate(0)
}

#[tokio::test]
async fn a_row_is_not_rejected_because_of_another_row() {
    assert_eq!(judged(&INVALID_RECORD).await, Fate::Rejected(0));
    assert_eq!(judged(&OTHER_RECORD_REFUSED).await, Fate::Suspect, "the reason is about another row");
}

/// Another relay may publish the rows.
#[tokio::test(start_paused = true)]
async fn nothing_more_is_judged_once_the_claim_is_lost() {
    let relay = refusing(&INVALID_RECORD, Duration::from_millis(200));
    let (mut session, batch) = suspects_of(&relay, 16).await;
    let sends_until = Rc::clone(&session.sends_until);
    let mut sending = Sending { relay: &relay, session: &mut session, batch };
    let losing = async {
        sleep(Duration::from_millis(300)).await;
        sends_until.set(None);
    };
    let begun = Instant::now();
    let (failure, ()) = tokio::join!(judge(&mut sending), losing);
    assert!(failure.is_none());
    assert_eq!(begun.elapsed(), Duration::from_millis(400), "eight rows, then four");
}

/// Otherwise the rows of other topics would wait until the last suspect was judged.
#[tokio::test(start_paused = true)]
async fn a_claim_judges_for_a_limited_time_but_completes_a_search() {
    let relay = refusing(&INVALID_RECORD, Duration::from_millis(200));
    let (mut session, batch) = suspects_of(&relay, 16).await;
    let mut sending = Sending { relay: &relay, session: &mut session, batch };
    let begun = Instant::now();
    assert!(judge(&mut sending).await.is_none());
    assert_eq!(begun.elapsed(), Duration::from_millis(800), "eight rows, four, two, one");
    let batch = sending.batch;
    let rejected = (0..16).filter(|&index| matches!(batch.fate(index), Fate::Rejected(_))).count();
    let left = (0..16).filter(|&index| batch.fate(index) == Fate::Suspect).count();
    assert_eq!((rejected, left), (1, 15));
}
