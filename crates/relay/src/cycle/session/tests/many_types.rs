//! A session with many aggregate types.

use super::*;
use crate::Lane;
use crate::outbox::Payload;
use std::ops::Range;

/// A row with its own aggregate type.
struct OfType(i64, String);

impl Event for OfType {
    fn id(&self) -> i64 {
        self.0
    }
    fn event_id(&self) -> Uuid {
        Uuid::from_u128(self.0 as u128)
    }
    fn lane(&self) -> Lane {
        Row(1).lane()
    }
    fn aggregate_type(&self) -> &[u8] {
        self.1.as_bytes()
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

/// Publishes one row of each of this many types, in batches of 100, and returns how many were acknowledged.
async fn publish_types(session: &mut Session<FakeProducer>, template: &str, types: i64) -> usize {
    let template = template.parse::<TopicRules>().unwrap();
    let mut acknowledged = 0;
    for first in (0..types).step_by(100) {
        let mut batch = Batch::new(OnRejected::default());
        batch.rows_mut().extend((first..first + 100).map(|id| OfType(id, format!("type-{id}"))));
        publish_rows(session, &template, &mut batch).await;
        acknowledged += batch.sent().count();
        for (index, row) in batch.rows().iter().enumerate() {
            let topic = session.topic(session.destination(index).unwrap());
            assert_eq!(topic, template.template.topic(&row.1, "Changed"));
        }
    }
    session.begin(&Streaks::default());
    acknowledged
}

/// Publishes these rows, and Kafka acknowledges them.
async fn publish_rows(session: &mut Session<FakeProducer>, template: &TopicRules, batch: &mut Batch<OfType>) {
    batch.appended(ReadEnd::Complete);
    session.begin(&Streaks::default());
    session.send(template, batch, 0).await;
    session.producer.answers.set(true);
    session.finish(batch).await;
    session.producer.answers.set(false);
}

#[tokio::test]
async fn a_session_with_10_000_topics_remembers_a_bounded_number() {
    let mut session = Session::new(FakeProducer::default(), Rc::default());
    assert_eq!(publish_types(&mut session, "events.{aggregate_type}", 10_000).await, 10_000);
    assert!(session.topics.len() <= TOPICS_KEPT, "{} topics", session.topics.len());
    assert!(session.routes.len() <= TOPICS_KEPT, "{} routes", session.routes.len());
    // Forgotten topics are looked up again, and kept topics are still found.
    assert_eq!(publish_types(&mut session, "events.{aggregate_type}", 10_000).await, 10_000);
}

#[tokio::test]
async fn a_session_with_10_000_types_of_one_topic_remembers_a_bounded_number() {
    let mut session = Session::new(FakeProducer::default(), Rc::default());
    assert_eq!(publish_types(&mut session, "events", 10_000).await, 10_000);
    assert_eq!(session.topics.len(), 1);
    assert!(session.routes.len() <= TOPICS_KEPT, "{} routes", session.routes.len());
}

/// For example, a writer that swaps arguments inserts the payload as the type.
#[tokio::test]
async fn a_session_does_not_remember_many_long_types() {
    let mut session = Session::new(FakeProducer::default(), Rc::default());
    let template = "events".parse::<TopicRules>().unwrap();
    for id in 0..20 {
        let mut batch = Batch::new(OnRejected::default());
        batch.rows_mut().push(OfType(id, "x".repeat(100_000 + id as usize)));
        publish_rows(&mut session, &template, &mut batch).await;
    }
    session.begin(&Streaks::default());
    let bytes: usize = session.routes.keys().map(Vec::len).sum();
    assert!(bytes <= ROUTE_BYTES_KEPT, "{bytes} bytes");
}

#[tokio::test]
async fn a_missing_topic_is_forgotten_after_its_batch() {
    let mut session = primed().await;
    let mut batch = batch_of(vec![Row(2), Row(201), Row(101)]);
    publish(&mut session, &Streaks::default(), &mut batch).await;
    assert_eq!((batch.sent().count(), session.topics.len()), (2, 3));
    let mut batch = batch_of(vec![Row(3), Row(102)]);
    publish(&mut session, &Streaks::default(), &mut batch).await;
    assert_eq!((batch.sent().count(), session.topics.len()), (2, 2));
    let topics = [0, 1].map(|index| session.topic(session.destination(index).unwrap()).to_owned());
    assert_eq!(topics, ["events.order", "events.silent"]);
}

#[tokio::test]
async fn thousands_of_missing_topics_are_compared_with_one_list() {
    const TYPES: i64 = 5_000;
    let producer = FakeProducer::listing(&["events.type-0", "events.other"]);
    let (listed, looked_up) = producer.requests();
    let mut session = Session::new(producer, Rc::default());
    let mut batch = Batch::new(OnRejected::default());
    batch.rows_mut().extend((0..TYPES).map(|id| OfType(id, format!("type-{id}"))));
    batch.appended(ReadEnd::Complete);
    session.begin(&Streaks::default());
    session.send(&"events.{aggregate_type}".parse().unwrap(), &mut batch, 0).await;
    assert_eq!((listed.get(), looked_up.get()), (1, 1), "lists and look-ups");
    let held = session.held(&batch);
    assert_eq!(held.len() as i64, TYPES - 1);
    assert!(held.iter().all(|held| held.why.reason == "unknown-topic" && held.topic != "events.type-0"));
}

/// Otherwise claims of rows of so many topics would end before the first row is sent, again and again.
#[tokio::test(start_paused = true)]
async fn slow_lookups_of_thousands_of_topics_let_rows_through() {
    let names: Vec<String> = (0..10_000).map(|id| format!("events.type-{id}")).collect();
    let listing = FakeProducer::listing(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let (listed, _) = listing.requests();
    let producer = FakeProducer { lookup_takes: Duration::from_millis(100), ..listing };
    let mut session = Session::new(producer, Rc::default());
    let rules = "events.{aggregate_type}".parse().unwrap();
    let mut sent_within = async |seconds, first: i64, more: Range<i64>| {
        let mut batch = Batch::new(OnRejected::default());
        batch.rows_mut().extend([first].into_iter().chain(more).map(|id| OfType(id, format!("type-{id}"))));
        batch.appended(ReadEnd::Complete);
        session.begin(&Streaks::default());
        let lists = listed.get();
        let sending = session.send(&rules, &mut batch, 0);
        let has_ended = tokio::time::timeout(Duration::from_secs(seconds), sending).await.is_ok();
        assert_eq!(listed.get() - lists, 1);
        session.producer.answers.set(true);
        session.absorb(&mut batch);
        session.finish(&mut batch).await;
        session.producer.answers.set(false);
        (has_ended, batch.sent().count())
    };
    assert_eq!(sent_within(60, 0, 1..4_000).await, (true, 4_000));
    // All of them have to be looked up again, after the topic of the first row.
    tokio::time::advance(Duration::from_secs(60)).await;
    let (has_ended, sent) = sent_within(10, 9_999, 0..4_000).await;
    assert!(!has_ended && sent >= 512, "{sent} rows were sent");
}
