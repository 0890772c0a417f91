use pg_idempotency::inbox::{Error, Inbox, Receipt};
use pg_idempotency::{DatabaseError, InvalidText};
use pg_outbox::EventId;

use crate::drivers::{Connection, Tx};
use crate::modules::{Database, until_any_blocked, url};
use Receipt::{Duplicate, First};

pub async fn an_event_is_first_once<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    let event = EventId::new();
    for (subscriber, expected) in [("a", First), ("a", Duplicate), ("b", First), ("b", Duplicate)] {
        let mut tx = connection.begin().await;
        assert_eq!(db.inbox.receive(tx.tx(), subscriber, event).await.unwrap(), expected, "{subscriber}");
        tx.commit().await;
    }
    db.clean_up().await;
}

pub async fn a_rollback_removes_the_mark<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    for _ in 0..2 {
        let mut tx = connection.begin().await;
        assert_eq!(db.inbox.receive(tx.tx(), "a", "e").await.unwrap(), First);
        assert_eq!(db.inbox.receive(tx.tx(), "a", "e").await.unwrap(), Duplicate, "within one transaction");
        tx.rollback().await;
    }
    db.clean_up().await;
}

/// What the second transaction gets for an event that the first one has marked but not committed.
async fn second_of_two<C: Connection>(first_commits: bool) -> Receipt {
    let db = Database::new().await;
    let (mut one, mut two) = (C::connect(&url()).await, C::connect(&url()).await);
    let mut first = one.begin().await;
    assert_eq!(db.inbox.receive(first.tx(), "a", "e").await.unwrap(), First);
    let mut second = two.begin().await;
    let end_first = async {
        until_any_blocked(&db.schema).await;
        if first_commits { first.commit().await } else { first.rollback().await }
    };
    let (receipt, ()) = tokio::join!(db.inbox.receive(second.tx(), "a", "e"), end_first);
    second.commit().await;
    assert_eq!(db.number("SELECT count(*) FROM {s}.processed_message").await, 1);
    db.clean_up().await;
    receipt.unwrap()
}

pub async fn the_second_of_two_waits_and_is_a_duplicate_if_the_first_commits<C: Connection>() {
    assert_eq!(second_of_two::<C>(true).await, Duplicate);
}

pub async fn the_second_of_two_waits_and_is_first_if_the_first_rolls_back<C: Connection>() {
    assert_eq!(second_of_two::<C>(false).await, First);
}

pub async fn a_batch_returns_receipts_in_the_order_of_its_input<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    let mut tx = connection.begin().await;
    assert_eq!(db.inbox.receive_many(tx.tx(), "a", ["m", "B"]).await.unwrap(), [First, First]);
    tx.commit().await;
    // Marked ids, new ids and repeated ids, unsorted.
    let ids = ["z", "m", "é", "z", "B", "a", "{\"Z\",NULL}", "a", "é", "m"];
    let expected =
        [First, Duplicate, First, Duplicate, Duplicate, First, First, Duplicate, Duplicate, Duplicate];
    let mut tx = connection.begin().await;
    assert_eq!(db.inbox.receive_many(tx.tx(), "a", ids).await.unwrap(), expected);
    assert_eq!(db.inbox.receive_many(tx.tx(), "a", [""; 0]).await.unwrap(), []);
    tx.commit().await;
    db.clean_up().await;
}

pub async fn invalid_ids_are_rejected_and_the_transaction_stays_usable<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    let mut tx = connection.begin().await;
    let refused = db.inbox.receive(tx.tx(), "a", "").await;
    assert!(matches!(refused, Err(Error::Invalid(InvalidText::Empty { field: "the event id" }))));
    let refused = db.inbox.receive_many(tx.tx(), "a", ["fine", "a\0"]).await;
    assert!(matches!(refused, Err(Error::InvalidInBatch { position: 2, .. })));
    assert_eq!(db.inbox.receive(tx.tx(), "a", "e").await.unwrap(), First);
    tx.commit().await;
    assert_eq!(db.number("SELECT count(*) FROM {s}.processed_message").await, 1);
    db.clean_up().await;
}

pub async fn the_error_for_a_missing_inbox_names_the_migrate_command<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    db.run("DROP FUNCTION {s}.inbox_receive").await;
    for schema in [db.schema.as_str(), "nowhere"] {
        let mut tx = connection.begin().await;
        let error = Inbox::in_schema(schema).unwrap().receive(tx.tx(), "a", "e").await.unwrap_err();
        tx.rollback().await;
        assert!(matches!(error, Error::Database(DatabaseError::NotInstalled { .. })), "{error:?}");
        assert!(error.to_string().contains("migrate --with inbox"), "{error}");
    }
    db.clean_up().await;
}
