use pg_idempotency::inbox::{BYTES_MAX, Error, Receipt};
use pg_idempotency::{DatabaseError, InvalidText};
use pg_outbox::EventId;
use tokio_postgres::IsolationLevel;

use crate::database::{Database, connect, pid, pool};
use Receipt::{Duplicate, First};

#[tokio::test]
async fn an_event_is_first_once_for_each_subscriber() {
    let mut db = Database::new().await;
    let event = EventId::new();
    for (subscriber, expected) in [("a", First), ("a", Duplicate), ("b", First), ("b", Duplicate)] {
        let tx = db.client.transaction().await.unwrap();
        assert_eq!(db.inbox.receive(&tx, subscriber, event).await.unwrap(), expected, "{subscriber}");
        tx.commit().await.unwrap();
    }
    db.clean_up().await;
}

#[tokio::test]
async fn a_rollback_removes_the_mark() {
    let mut db = Database::new().await;
    for _ in 0..2 {
        let tx = db.client.transaction().await.unwrap();
        assert_eq!(db.inbox.receive(&tx, "a", "e").await.unwrap(), First);
        assert_eq!(db.inbox.receive(&tx, "a", "e").await.unwrap(), Duplicate, "within one transaction");
        tx.rollback().await.unwrap();
    }
    db.clean_up().await;
}

/// What the second consumer gets for an event that the first one has marked but not committed.
async fn second_of_two(first_commits: bool) -> Receipt {
    let mut db = Database::new().await;
    let first = db.client.transaction().await.unwrap();
    assert_eq!(db.inbox.receive(&first, "a", "e").await.unwrap(), First);

    let mut other = connect().await;
    let waiting = pid(&other).await;
    let inbox = db.inbox.clone();
    let second = tokio::spawn(async move {
        let tx = other.transaction().await.unwrap();
        let receipt = inbox.receive(&tx, "a", "e").await.unwrap();
        tx.commit().await.unwrap();
        receipt
    });
    crate::database::until_blocked(waiting).await;
    if first_commits {
        first.commit().await.unwrap();
    } else {
        first.rollback().await.unwrap();
    }
    let receipt = second.await.unwrap();
    assert_eq!(db.number("SELECT count(*) FROM {s}.processed_message").await, 1);
    db.clean_up().await;
    receipt
}

#[tokio::test]
async fn the_second_of_two_consumers_waits_and_is_a_duplicate_if_the_first_commits() {
    assert_eq!(second_of_two(true).await, Duplicate);
}

#[tokio::test]
async fn the_second_of_two_consumers_waits_and_is_first_if_the_first_rolls_back() {
    assert_eq!(second_of_two(false).await, First);
}

#[tokio::test]
async fn in_stricter_isolation_levels_a_duplicate_is_never_first() {
    for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        for batch in [false, true] {
            let mut db = Database::new().await;
            let mut other = connect().await;
            let early = other.build_transaction().isolation_level(level).start().await.unwrap();
            early.query_one("SELECT 1", &[]).await.unwrap(); // takes the snapshot
            let tx = db.client.transaction().await.unwrap();
            assert_eq!(db.inbox.receive(&tx, "a", "e").await.unwrap(), First);
            tx.commit().await.unwrap();

            let error = if batch {
                db.inbox.receive_many(&early, "a", ["d", "e"]).await.unwrap_err()
            } else {
                db.inbox.receive(&early, "a", "e").await.unwrap_err()
            };
            let Error::Database(error) = error else { panic!("{error:?}") };
            assert_eq!(error.postgres().sqlstate(), Some("40001"), "{level:?}");
            early.rollback().await.unwrap();
            let again = other.build_transaction().isolation_level(level).start().await.unwrap();
            assert_eq!(db.inbox.receive(&again, "a", "e").await.unwrap(), Duplicate);
            again.commit().await.unwrap();
            db.clean_up().await;
        }
    }
}

#[tokio::test]
async fn a_batch_returns_receipts_in_the_order_of_its_input() {
    let mut db = Database::new().await;
    let tx = db.client.transaction().await.unwrap();
    assert_eq!(db.inbox.receive_many(&tx, "a", ["m", "B"]).await.unwrap(), [First, First]);
    tx.commit().await.unwrap();

    // Marked ids, new ids and repeated ids, unsorted.
    let ids = ["z", "m", "é", "z", "B", "a", "Z", "a", "é", "m"];
    let expected =
        [First, Duplicate, First, Duplicate, Duplicate, First, First, Duplicate, Duplicate, Duplicate];
    let tx = db.client.transaction().await.unwrap();
    assert_eq!(db.inbox.receive_many(&tx, "a", ids).await.unwrap(), expected);
    assert_eq!(db.inbox.receive_many(&tx, "a", ids).await.unwrap(), [Duplicate; 10]);
    assert_eq!(db.inbox.receive_many(&tx, "a", [""; 0]).await.unwrap(), []);
    tx.commit().await.unwrap();
    db.clean_up().await;
}

#[tokio::test]
async fn a_batch_of_500_works_with_both_drivers() {
    let mut db = Database::new().await;
    let ids: Vec<EventId> = (0..500).map(|_| EventId::new()).collect();
    let half = ids.iter().step_by(2);
    let tx = db.client.transaction().await.unwrap();
    db.inbox.receive_many(&tx, "a", half).await.unwrap();
    tx.commit().await.unwrap();

    let pool = pool(1);
    let mut client = pool.get().await.unwrap();
    let tx = client.transaction().await.unwrap();
    let receipts = db.inbox.receive_many(&tx, "a", &ids).await.unwrap();
    let expected: Vec<Receipt> = (0..500).map(|n| if n % 2 == 0 { Duplicate } else { First }).collect();
    assert_eq!(receipts, expected);
    assert_eq!(db.inbox.receive(&tx, "a", ids[7]).await.unwrap(), Duplicate);
    tx.commit().await.unwrap();
    db.clean_up().await;
}

/// Two consumers receive the same 200 new events in opposite orders, many times. If marks were inserted in input order,
/// the consumers would soon wait for each other.
#[tokio::test]
async fn batches_in_opposite_orders_never_deadlock() {
    const ROUNDS: usize = 40;
    let db = Database::new().await;
    let consumer = |backwards: bool| {
        let inbox = db.inbox.clone();
        async move {
            let mut client = connect().await;
            let mut firsts = 0;
            for round in 0..ROUNDS {
                let mut ids: Vec<String> = (0..200).map(|n| format!("{round} {n}")).collect();
                if backwards {
                    ids.reverse();
                }
                let tx = client.transaction().await.unwrap();
                let receipts = inbox.receive_many(&tx, "a", ids).await.unwrap_or_else(|error| {
                    panic!("round {round}, backwards {backwards}: {error:?}");
                });
                tx.commit().await.unwrap();
                firsts += receipts.into_iter().filter(|receipt| *receipt == First).count();
            }
            firsts
        }
    };
    let (one, two) = tokio::join!(tokio::spawn(consumer(false)), tokio::spawn(consumer(true)));
    assert_eq!(one.unwrap() + two.unwrap(), 200 * ROUNDS, "each event is first for exactly one of them");
    db.clean_up().await;
}

#[tokio::test]
async fn invalid_ids_are_rejected_and_the_transaction_stays_usable() {
    let mut db = Database::new().await;
    let tx = db.client.transaction().await.unwrap();
    let long = "x".repeat(BYTES_MAX + 1);
    let refused = db.inbox.receive(&tx, "a", "").await;
    assert!(matches!(refused, Err(Error::Invalid(InvalidText::Empty { field: "the event id" }))));
    let refused = db.inbox.receive(&tx, "", "e").await;
    assert!(matches!(refused, Err(Error::Invalid(InvalidText::Empty { field: "the subscriber" }))));
    let refused = db.inbox.receive(&tx, "a", &long).await;
    assert!(matches!(refused, Err(Error::Invalid(InvalidText::TooLong { bytes: 256, max: 255, .. }))));
    let refused = db.inbox.receive_many(&tx, "a", ["fine", "a\0"]).await;
    let Err(Error::InvalidInBatch { position: 2, reason: InvalidText::Character { .. } }) = refused else {
        panic!("{refused:?}")
    };
    // The longest possible text, mostly of two-byte characters.
    let longest = "ü".repeat(BYTES_MAX / 2) + "x";
    assert_eq!(db.inbox.receive(&tx, &longest, &longest).await.unwrap(), First);
    tx.commit().await.unwrap();
    assert_eq!(db.number("SELECT count(*) FROM {s}.processed_message").await, 1);
    db.clean_up().await;
}

#[tokio::test]
async fn the_error_for_a_missing_inbox_names_the_migrate_command() {
    let mut db = Database::new().await;
    db.run("DROP TABLE {s}.processed_message; DROP FUNCTION {s}.inbox_receive").await;
    for schema in [db.schema.as_str(), "nowhere"] {
        let tx = db.client.transaction().await.unwrap();
        let inbox = pg_idempotency::inbox::Inbox::in_schema(schema).unwrap();
        let error = inbox.receive(&tx, "a", "e").await.unwrap_err();
        assert!(matches!(error, Error::Database(DatabaseError::NotInstalled { .. })), "{error:?}");
        assert!(error.to_string().contains("migrate --with inbox"), "{error}");
    }
    db.clean_up().await;
}

#[tokio::test]
async fn the_reaper_deletes_only_old_marks_up_to_its_limit() {
    let db = Database::new().await;
    db.run(
        "INSERT INTO {s}.processed_message (subscriber, event_id, processed_at)
         SELECT 'a', 'old ' || i, now() - interval '31 days' FROM generate_series(1, 25) AS i
         UNION ALL SELECT 'a', 'young ' || i, now() - interval '29 days' FROM generate_series(1, 10) AS i",
    )
    .await;
    let reap = "SELECT {s}.inbox_reap(interval '30 days', 10)::bigint";
    for expected in [10, 10, 5, 0] {
        assert_eq!(db.number(reap).await, expected);
    }
    assert_eq!(
        db.number("SELECT count(*) FROM {s}.processed_message WHERE event_id LIKE 'young%'").await,
        10
    );
    db.clean_up().await;
}

#[tokio::test]
async fn only_one_of_two_concurrent_reapers_deletes() {
    let mut db = Database::new().await;
    db.run("INSERT INTO {s}.processed_message VALUES ('a', 'e', now() - interval '2 days')").await;
    let reap = db.sql("SELECT {s}.inbox_reap(interval '1 day', 10)::bigint");
    let tx = db.client.transaction().await.unwrap();
    assert_eq!(tx.query_one(&reap, &[]).await.unwrap().get::<_, i64>(0), 1);
    let other = connect().await;
    other.batch_execute("SET lock_timeout = '5s'").await.unwrap();
    assert_eq!(other.query_one(&reap, &[]).await.unwrap().get::<_, i64>(0), 0, "without waiting");
    tx.rollback().await.unwrap();
    assert_eq!(other.query_one(&reap, &[]).await.unwrap().get::<_, i64>(0), 1);
    db.clean_up().await;
}
