use pg_outbox::testing::{self, Enqueued, Filter};
use pg_outbox::{Event, Outbox};

use crate::database::{Database, url};
use crate::drivers::{Connection, Tx};

fn event(aggregate_type: &str, key: impl std::fmt::Display) -> Event {
    Event::new(aggregate_type, key, "OrderPaid").tombstone()
}

fn paid(outbox: &Outbox) -> Filter {
    Filter::event("order", "OrderPaid").outbox(outbox)
}

fn names(events: &[Enqueued]) -> Vec<String> {
    events.iter().map(Enqueued::to_string).collect()
}

pub async fn an_enqueued_event_is_found_and_drained_after_its_commit<C: Connection>() {
    for column_type in ["json", "bytea"] {
        let (db, mut connection) = (Database::with_payload(column_type).await, C::connect(&url()).await);
        let placed = || Filter::event("order", "OrderPlaced").key(42).outbox(&db.outbox);
        for commits in [false, true] {
            let mut tx = connection.begin().await;
            let event = Event::new("order", 42, "OrderPlaced").bytes(r#"{"total": 12}"#).header("a", "b");
            let event = event.binary_header("schema", [0, 255, b'a']);
            let id = db.outbox.enqueue(tx.tx(), event).await.unwrap();
            db.outbox.enqueue(tx.tx(), Event::new("order", 42, "OrderPaid").tombstone()).await.unwrap();
            let event = testing::assert_enqueued(tx.tx(), placed()).await.unwrap();
            assert_eq!((event.event_id, event.json().unwrap()["total"].as_i64()), (id, Some(12)));
            assert_eq!(event.headers.into_iter().collect::<Vec<_>>(), [("a".to_owned(), "b".to_owned())]);
            assert_eq!(event.binary_headers["schema"], [0, 255, b'a']);
            let paid = testing::assert_enqueued(tx.tx(), paid(&db.outbox)).await.unwrap();
            assert_eq!(paid.payload, None);
            if commits { tx.commit().await } else { tx.rollback().await }
        }
        let all = || Filter::new().outbox(&db.outbox);
        let drained = testing::drain(connection.client(), all()).await.unwrap();
        assert_eq!(names(&drained), ["OrderPlaced of order 42", "OrderPaid of order 42"]);
        assert_eq!(testing::drain(connection.client(), all()).await.unwrap(), []);
        db.clean_up().await;
    }
}

pub async fn a_filter_looks_at_types_and_keys<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    let mut tx = connection.begin().await;
    let events = [event("order", 1), event("invoice", 1), event("order", 2), event("order", 3)];
    db.outbox.enqueue_many(tx.tx(), events).await.unwrap();
    let none: [i64; 0] = [];
    for (filter, expected) in [
        (paid(&db.outbox).key(1), vec!["OrderPaid of order 1"]),
        (paid(&db.outbox).keys([3, 2]), vec!["OrderPaid of order 2", "OrderPaid of order 3"]),
        (paid(&db.outbox).key(2).key(3), vec!["OrderPaid of order 2", "OrderPaid of order 3"]),
        (paid(&db.outbox).aggregate_type("invoice"), vec!["OrderPaid of invoice 1"]),
        (Filter::new().outbox(&db.outbox).key(1), vec!["OrderPaid of order 1", "OrderPaid of invoice 1"]),
        (paid(&db.outbox).keys(none), vec![]),
        (Filter::event("order", "OrderPlaced").outbox(&db.outbox), vec![]),
    ] {
        let found = testing::find(tx.tx(), filter.clone()).await.unwrap();
        assert_eq!(names(&found), expected, "{filter:?}");
        if expected.is_empty() {
            testing::refute_enqueued(tx.tx(), filter).await.unwrap();
        }
    }
    tx.commit().await;
    let drained = testing::drain(connection.client(), paid(&db.outbox).keys([2, 3])).await.unwrap();
    assert_eq!(names(&drained), ["OrderPaid of order 2", "OrderPaid of order 3"]);
    assert_eq!(db.keys().await, ["1", "1"]);
    db.clean_up().await;
}

/// The events before and after the transaction began, and in its savepoints.
pub async fn committed_events_of_other_tests_do_not_disturb<C: Connection>() {
    let db = Database::new().await;
    let (mut connection, mut other) = (C::connect(&url()).await, C::connect(&url()).await);
    let commit = async |other: &mut C| {
        let mut tx = other.begin().await;
        db.outbox.enqueue(tx.tx(), event("order", 42)).await.unwrap();
        tx.commit().await;
    };
    commit(&mut other).await;
    let mut tx = connection.begin().await;
    testing::refute_enqueued(tx.tx(), paid(&db.outbox)).await.unwrap();
    let id = db.outbox.enqueue(tx.tx(), event("order", 42)).await.unwrap();
    commit(&mut other).await;
    let found = testing::assert_enqueued(tx.tx(), paid(&db.outbox).key(42)).await.unwrap();
    assert_eq!(found.event_id, id);

    for (begin, end) in [
        ("SAVEPOINT a", "RELEASE SAVEPOINT a"),
        ("SAVEPOINT b", "ROLLBACK TO SAVEPOINT b"),
        ("SAVEPOINT c", "SELECT 1"),
    ] {
        tx.run(begin).await.unwrap();
        db.outbox.enqueue(tx.tx(), event("order", begin)).await.unwrap();
        commit(&mut other).await;
        tx.run(end).await.unwrap();
    }
    let own = testing::find(tx.tx(), paid(&db.outbox)).await.unwrap();
    assert_eq!(
        names(&own),
        ["OrderPaid of order 42", "OrderPaid of order SAVEPOINT a", "OrderPaid of order SAVEPOINT c"]
    );
    let all = testing::find(tx.tx(), paid(&db.outbox).with_committed()).await.unwrap();
    assert_eq!(all.len(), own.len() + 5);
    tx.rollback().await;
    db.clean_up().await;
}
