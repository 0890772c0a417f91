use pg_outbox::{Error, Event, Outbox};

use super::sea_orm::{DbBackend, MockDatabase, TransactionTrait};

/// sea-orm has the same types for every database.
#[tokio::test]
async fn a_transaction_of_another_database_is_rejected_before_a_statement_is_sent() {
    let connection = MockDatabase::new(DbBackend::MySql).into_connection();
    let tx = connection.begin().await.unwrap();
    let event = Event::new("order", 1, "E").tombstone();
    let error = Outbox::default().enqueue(&tx, event).await.unwrap_err();
    let Error::Postgres { source, .. } = error else { panic!("{error:?}") };
    assert_eq!(source.sqlstate(), Some("0A000"));
    tx.rollback().await.unwrap();
    let log = connection.into_transaction_log();
    assert!(log.iter().all(|statement| !format!("{statement:?}").contains("outbox")), "{log:?}");
}
