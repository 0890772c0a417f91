//! Judging with a cluster that refuses every row for the same reason.

use super::*;
use crate::cycle::tests::relay_with;
use crate::fixture::{FakeCluster, FakeProducer, Row};
use crate::reason::{INVALID_RECORD, NO_ANSWER, Reason, STUCK};
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

/// A row as large as one that its topic has refused is only judged. If its partition does not answer, its topic is held, as it is
/// if the partition does not report rows of a session. Otherwise each claim of its lane would wait for it.
#[tokio::test(start_paused = true)]
async fn a_partition_that_answers_no_judged_row_is_held_if_others_work() {
    const SECOND: Duration = Duration::from_secs(1);
    for (acknowledged, judged, expected) in [
        (Some(0), 0, &["events.silent"][..]),
        (Some(0), 1, &[]), // the partition is slow
        (None, 0, &[]),    // perhaps all of Kafka is silent
        (Some(1), 0, &[]), // a row of the same partition
    ] {
        for (reason, time) in [(Some(&NO_ANSWER), SECOND / 10), (None, 3_600 * SECOND)] {
            let cluster = FakeCluster { judges: (reason, time), judged, ..FakeCluster::default() };
            let relay = relay_with(cluster);
            let mut session = Session::new(FakeProducer::default(), Rc::default());
            let mut batch = Batch::new(OnRejected::default());
            batch.rows_mut().extend([Row(1), Row(101), Row(102), Row(103)]);
            batch.appended(ReadEnd::Complete);
            session.begin(&relay.memory.streaks);
            session.send(&relay.kafka.topics, &mut batch, 0).await;
            batch.set(0, Fate::Rejected(0));
            batch.set(1, Fate::Rejected(0));
            acknowledged.into_iter().for_each(|index| batch.set(index, Fate::Acknowledged));
            batch.set(2, Fate::Suspect);
            batch.set(3, Fate::Suspect);
            let mut sending = Sending { relay: &relay, session: &mut session, batch };
            let begun = Instant::now();
            let failure = judge(&mut sending).await;
            assert!(begun.elapsed() <= SECOND / 2, "{:?}", begun.elapsed());
            let held = sending.session.held(&sending.batch);
            let topics: Vec<&str> = held.iter().map(|held| held.topic).collect();
            assert_eq!(topics, expected);
            let says = "no record in partition 0 was acknowledged for 333.3ms";
            assert!(held.iter().all(|held| held.why.reason == STUCK.word && held.why.error.contains(says)));
            assert_eq!(
                failure.is_none(),
                !held.is_empty(),
                "a failure that is not a hold's ends the judging"
            );
        }
    }
}
