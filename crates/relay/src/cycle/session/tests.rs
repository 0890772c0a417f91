//! A session on a producer that reports when a test allows it.

use super::*;
use crate::fixture::{FakeProducer, LARGE, Row};
use crate::partition::LOOK_UP_EVERY;
use crate::reason::{SILENT_CONNECTION, STUCK};
use crate::{OnRejected, ReadEnd};
use uuid::Uuid;

mod many_types;

#[tokio::test]
async fn a_report_that_arrives_at_the_last_moment_counts_for_its_own_batch() {
    let (template, streaks) = ("events.{aggregate_type}".parse().unwrap(), Streaks::default());
    let mut session = Session::new(FakeProducer::default(), Rc::default());
    let mut batch = Batch::new(OnRejected::default());
    batch.rows_mut().push(Row(1));
    batch.appended(ReadEnd::Complete);
    session.begin(&streaks);
    session.send(&template, &mut batch, 0).await;
    session.producer.answers.set(true);
    session.finish(&mut batch).await;
    assert_eq!(batch.fate(0), Fate::Acknowledged);
    session.begin(&streaks); // asserts that nothing is left of the last batch
}

#[tokio::test]
async fn reports_of_deferred_rows_count_for_their_own_batch() {
    let (template, streaks) = ("events.{aggregate_type}".parse().unwrap(), Streaks::default());
    let mut session = Session::new(FakeProducer::default(), Rc::default());
    let mut batch = Batch::new(OnRejected::default());
    batch.rows_mut().extend([Row(1), Row(2), Row(3)]);
    batch.appended(ReadEnd::Complete);
    session.begin(&streaks);
    session.send(&template, &mut batch, 0).await;
    assert_eq!(session.producer.in_flight.borrow().len(), 1, "the first row of a partition is sent alone");
    session.producer.answers.set(true);
    session.finish(&mut batch).await;
    assert_eq!(batch.sent().count(), 3);
    session.begin(&streaks);
}

#[tokio::test]
async fn rows_that_wait_for_the_first_of_their_partition_stay_unsent_if_the_claim_is_lost() {
    let streaks = Streaks::default();
    let mut session = Session::new(FakeProducer::default(), Rc::default());
    let mut batch = batch_of(vec![Row(1), Row(2), Row(3)]);
    send(&mut session, &streaks, &mut batch).await;
    session.sends_until.set(None);
    session.producer.answers.set(true);
    session.finish(&mut batch).await;
    assert_eq!((batch.fate(0), batch.fate(1), batch.fate(2)), (Fate::Acknowledged, Fate::Open, Fate::Open));
    session.begin(&streaks);
}

/// Otherwise a claim with rows of many topics would keep its lanes for as long as all lookups take.
#[tokio::test(start_paused = true)]
async fn the_first_lookup_that_fails_for_the_whole_session_ends_the_others() {
    let mut session =
        Session::new(FakeProducer { is_cut_off: true, ..FakeProducer::default() }, Rc::default());
    let mut batch = batch_of(vec![Row(1), Row(101)]);
    let streaks = Streaks::default();
    let sending = send(&mut session, &streaks, &mut batch);
    tokio::time::timeout(Duration::from_secs(60), sending).await.expect("it must not wait for the others");
    assert_eq!(session.failure.map(|failure| failure.reason), Some(SILENT_CONNECTION.word));
}

#[tokio::test]
async fn only_a_topic_that_is_silent_while_others_are_acknowledged_is_stuck() {
    let (template, streaks) = ("events.{aggregate_type}".parse().unwrap(), Streaks::default());
    let patience = Duration::from_secs(15);
    for (rows, elsewhere, stuck) in [
        (vec![Row(1), Row(101), Row(201)], false, true),
        (vec![Row(101), Row(201)], false, false),
        (vec![Row(101), Row(201)], true, true),
    ] {
        let keeps = rows.iter().position(|row| row.0 == 101).map(|index| index as u32);
        let mut session = Session::new(FakeProducer::keeping(keeps), Rc::default());
        let mut batch = Batch::new(OnRejected::default());
        batch.rows_mut().extend(rows);
        batch.appended(ReadEnd::Complete);
        session.begin(&streaks);
        session.send(&template, &mut batch, 0).await;
        session.producer.answers.set(true);
        session.absorb(&mut batch);
        session.absorb(&mut batch);
        let others_work = elsewhere || session.others_work(&batch, None);
        assert_eq!(others_work && session.hold_stuck(&batch, batch.len(), patience), stuck);
        let held = session.held(&batch);
        let mut reasons: Vec<(&str, i64)> =
            held.iter().map(|held| (held.why.reason, held.example.0)).collect();
        reasons.sort_unstable();
        let expected =
            if stuck { &[(STUCK.word, 101), ("unknown-topic", 201)][..] } else { &[("unknown-topic", 201)] };
        assert_eq!(reasons, expected);
        assert_eq!(session.failure.is_some(), stuck, "a stuck topic closes the session");
    }
}

#[tokio::test]
async fn session_closes_once_all_rows_in_flight_are_in_topics_that_another_one_has_held() {
    let mut session = Session::new(FakeProducer::keeping(1), Rc::default());
    let mut batch = batch_of(vec![Row(1), Row(101)]);
    send(&mut session, &Streaks::default(), &mut batch).await;
    let is_silent = |topic: &str| topic == "events.silent";
    assert!(!session.close_if_held(&batch, is_silent), "another row is in flight");
    session.producer.answers.set(true);
    session.absorb(&mut batch);
    session.absorb(&mut batch);
    assert!(!session.close_if_held(&batch, |_| false));
    assert!(session.failure.is_none());
    assert!(session.close_if_held(&batch, is_silent));
    let held = session.held(&batch);
    assert_eq!(
        held.iter().map(|held| (held.why.reason, held.example.0)).collect::<Vec<_>>(),
        [(STUCK.word, 101)]
    );
    assert_eq!(session.failure.as_ref().unwrap().reason, STUCK.word);
}

/// A session on `events.order`, whose partition is primed.
async fn primed() -> Session<FakeProducer> {
    let mut session = Session::new(FakeProducer::default(), Rc::default());
    publish(&mut session, &Streaks::default(), &mut batch_of(vec![Row(1)])).await;
    session
}

fn batch_of(rows: Vec<Row>) -> Batch<Row> {
    let mut batch = Batch::new(OnRejected::BlockKey);
    batch.rows_mut().extend(rows);
    batch.appended(ReadEnd::Complete);
    batch
}

/// Sends a batch and waits for all acknowledgements.
async fn publish(session: &mut Session<FakeProducer>, streaks: &Streaks, batch: &mut Batch<Row>) {
    send(session, streaks, batch).await;
    session.producer.answers.set(true);
    session.finish(batch).await;
    session.producer.answers.set(false);
}

async fn send(session: &mut Session<FakeProducer>, streaks: &Streaks, batch: &mut Batch<Row>) {
    let template = "events.{aggregate_type}".parse().unwrap();
    session.begin(streaks);
    session.send(&template, batch, 0).await;
}

fn blocked(batch: &Batch<Row>) -> Vec<i64> {
    batch.blocked(false).map(|rejected| rejected.row.0).collect()
}

#[tokio::test]
async fn a_refused_row_blocks_its_key_once_the_rows_before_it_are_acknowledged() {
    let mut session = primed().await;
    session.producer.refuses = vec![1];
    let mut batch = batch_of(vec![Row(2), Row(3), Row(4)]);
    publish(&mut session, &Streaks::default(), &mut batch).await;
    assert_eq!(batch.fate(0), Fate::Acknowledged);
    assert_eq!(blocked(&batch), [3]);
    assert_eq!(batch.fate(2), Fate::Open, "it waits for the refused row");
}

#[tokio::test]
async fn a_refused_row_after_one_in_flight_blocks_nothing_when_the_session_fails() {
    let mut session = primed().await;
    session.producer.refuses = vec![1];
    let mut batch = batch_of(vec![Row(2), Row(3)]);
    send(&mut session, &Streaks::default(), &mut batch).await;
    session.close(KafkaFailure::unknown("the connection broke"));
    assert_eq!(blocked(&batch), [0i64; 0], "a block would hide row 2");
    let lane = Row(2).lane();
    assert_eq!(batch.coverage(&[lane])[0].first_open, Some(2), "both are claimed again");
}

/// Rows of `events.order`, of which those with these indexes are refused before they are sent. The third one in a row holds the
/// topic. Returns their fates, and what is held.
async fn fates_of(
    session: &mut Session<FakeProducer>,
    refuses: &[u32],
    rows: Vec<Row>,
) -> (Vec<Fate>, Vec<(String, i64)>) {
    session.producer.refuses = refuses.to_vec();
    let mut batch = Batch::new(OnRejected::DeadLetter).holding_after(2);
    batch.rows_mut().extend(rows);
    batch.appended(ReadEnd::Complete);
    publish(session, &Streaks::default(), &mut batch).await;
    assert!(session.is_quiet() && session.failure.is_none());
    let held = session.held(&batch);
    assert!(held.iter().all(|held| held.why.reason == REJECTS_EVERYTHING.word), "{:?}", held[0].why);
    let held = held.iter().map(|held| (held.topic.to_owned(), held.example.0)).collect();
    ((0..batch.len()).map(|index| batch.fate(index)).collect(), held)
}

#[tokio::test]
async fn a_topic_is_held_after_too_many_invalid_rows_in_a_row() {
    use Fate::{Acknowledged, Open, Rejected};
    let order = |example| vec![("events.order".to_owned(), example)];
    let mut session = primed().await;
    let rows = || (2..8).map(Row).collect();
    let (fates, held) = fates_of(&mut session, &[1, 2, 3], rows()).await;
    assert_eq!(fates, [Acknowledged, Rejected(0), Rejected(1), Open, Open, Open]);
    assert_eq!(held, order(5), "no later row may overtake row 5");
    let (fates, held) = fates_of(&mut session, &[1, 2, 4, 5], rows()).await;
    assert_eq!((fates[3], held), (Acknowledged, vec![]), "a row that is sent ends the run");
    // Behind the first row of the partition, which is sent alone.
    let mut session = Session::new(FakeProducer::default(), Rc::default());
    let (fates, held) = fates_of(&mut session, &[1, 2, 3], rows()).await;
    assert_eq!((&fates[2..], held), (&[Rejected(1), Open, Open, Open][..], order(5)));
}

#[tokio::test]
async fn rows_without_a_valid_topic_name_wait_after_too_many_of_them() {
    use Fate::{Acknowledged, Open, Rejected};
    let rows = vec![Row(300), Row(301), Row(302), Row(2), Row(303)];
    let (fates, held) = fates_of(&mut primed().await, &[], rows).await;
    assert_eq!(fates, [Rejected(0), Rejected(1), Open, Acknowledged, Open]);
    assert_eq!(held, [("events.a b".to_owned(), 302)]);
}

#[tokio::test]
async fn invalid_rows_hold_nothing_if_they_block_their_keys() {
    let mut session = primed().await;
    session.producer.refuses = vec![0, 1, 2];
    let mut batch = batch_of(vec![Row(2), Row(3), Row(4)]).holding_after(1);
    publish(&mut session, &Streaks::default(), &mut batch).await;
    assert_eq!((blocked(&batch), session.held(&batch).len()), (vec![2], 0));
}

/// Topic `events.order` has refused a large row because of its size.
fn large_rows_refused() -> Streaks {
    let streaks = Streaks::default();
    streaks.refused("events.order", Uuid::from_u128(1), Some(LARGE));
    streaks
}

#[tokio::test]
async fn rows_before_a_large_row_are_sent_when_their_partition_is_primed() {
    let mut session = Session::new(FakeProducer::default(), Rc::default());
    let mut batch = batch_of(vec![Row(1), Row(2), Row(50), Row(3)]);
    publish(&mut session, &large_rows_refused(), &mut batch).await;
    let fates: Vec<Fate> = (0..4).map(|index| batch.fate(index)).collect();
    assert_eq!(fates, [Fate::Acknowledged, Fate::Acknowledged, Fate::Suspect, Fate::Open]);
}

#[tokio::test]
async fn a_row_that_was_never_sent_does_not_make_its_topic_stuck() {
    for elsewhere in [false, true] {
        let mut session = Session::new(FakeProducer::keeping(3), Rc::default());
        // Row 2 waits for the large row. Row 101 is in flight.
        let mut batch = batch_of(vec![Row(1), Row(50), Row(2), Row(101)]);
        send(&mut session, &large_rows_refused(), &mut batch).await;
        session.producer.answers.set(true);
        session.absorb(&mut batch);
        session.absorb(&mut batch);
        assert!(elsewhere || session.others_work(&batch, None));
        assert!(session.hold_stuck(&batch, batch.len(), Duration::from_secs(15)));
        let held: Vec<i64> = session.held(&batch).iter().map(|held| held.example.0).collect();
        assert_eq!(held, [101]);
    }
}

/// The number of partitions that the session uses for the topic of the first row.
fn partitions_used(session: &Session<FakeProducer>) -> Option<usize> {
    let topic = session.destination(0)?.topic as usize;
    match &session.topics[topic].state {
        TopicState::Open(partitions) => Some(partitions.len()),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn sessions_switch_to_another_number_of_partitions_together_between_two_batches() {
    let (counts, streaks) = (Rc::<Counts>::default(), Streaks::default());
    let mut sessions = [1, 2].map(|_| Session::new(FakeProducer::default(), Rc::clone(&counts)));
    for session in &mut sessions {
        publish(session, &streaks, &mut batch_of(vec![Row(1)])).await;
        session.producer.partitions.set(Some(3));
        publish(session, &streaks, &mut batch_of(vec![Row(2)])).await;
        assert_eq!(partitions_used(session), Some(1), "it was looked up just now");
    }
    let [first, second] = &mut sessions;
    tokio::time::advance(LOOK_UP_EVERY / 2).await;
    // The second one looks it up later than the first one, by itself.
    second.topics[0].looked_up_at = Some(Instant::now());
    tokio::time::advance(LOOK_UP_EVERY / 2).await;
    publish(first, &streaks, &mut batch_of(vec![Row(3)])).await;
    assert_eq!(partitions_used(first), Some(3));
    assert_eq!(partitions_used(second), Some(1), "its last batch");
    publish(second, &streaks, &mut batch_of(vec![Row(3)])).await;
    assert_eq!(partitions_used(second), Some(3), "the change that the first one has found");
    assert_eq!(counts.changes(), 1);
}

#[tokio::test(start_paused = true)]
async fn partitions_stay_primed_when_a_topic_is_looked_up_again() {
    let mut session = primed().await;
    tokio::time::advance(LOOK_UP_EVERY).await;
    let mut batch = batch_of(vec![Row(2), Row(3)]);
    send(&mut session, &Streaks::default(), &mut batch).await;
    assert_eq!(session.producer.in_flight.borrow().len(), 2, "no row waits for the first one");
    session.producer.answers.set(true);
    session.finish(&mut batch).await;
}
