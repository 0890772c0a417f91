use std::sync::{Arc, Mutex};

use diesel::connection::InstrumentationEvent;
use pg_outbox::{Error, Event};

use super::diesel_async::{AnsiTransactionManager, TransactionManager};
use super::diesel_async::{AsyncConnection, AsyncPgConnection, SimpleAsyncConnection};
use crate::database;

pub fn event() -> Event {
    Event::new("order", 1, "E").bytes(r#"{"secret":1}"#).header("h", "secret")
}

pub async fn connect() -> AsyncPgConnection {
    AsyncPgConnection::establish(&database::url()).await.unwrap()
}

#[tokio::test]
async fn without_an_open_transaction_nothing_is_stored() {
    let (db, mut connection) = (database::Database::new().await, connect().await);
    let refused = db.outbox.enqueue(&mut connection, event()).await.unwrap_err();
    assert!(matches!(refused, Error::NoTransaction { .. }), "{refused:?}");
    let refused = db.outbox.enqueue_many(&mut connection, [event(), event()]).await.unwrap_err();
    assert!(matches!(refused, Error::NoTransaction { .. }), "{refused:?}");

    // The transaction has ended, so a call fails again.
    AnsiTransactionManager::begin_transaction(&mut connection).await.unwrap();
    db.outbox.enqueue(&mut connection, event()).await.unwrap();
    AnsiTransactionManager::commit_transaction(&mut connection).await.unwrap();
    let refused = db.outbox.enqueue(&mut connection, event()).await.unwrap_err();
    assert!(matches!(refused, Error::NoTransaction { .. }), "{refused:?}");
    assert_eq!(db.rows().await.len(), 1);
    db.clean_up().await;
}

#[tokio::test]
async fn instrumentation_does_not_receive_the_values() {
    let (db, mut connection) = (database::Database::new().await, connect().await);
    let log = Arc::new(Mutex::new(String::new()));
    let log_writer = Arc::clone(&log);
    connection.set_instrumentation(move |event: InstrumentationEvent<'_>| {
        log_writer.lock().unwrap().push_str(&format!("{event:?}\n"));
    });
    connection.batch_execute("BEGIN").await.unwrap(); // diesel does not count this as a transaction
    assert!(matches!(db.outbox.enqueue(&mut connection, event()).await, Err(Error::NoTransaction { .. })));
    connection.batch_execute("ROLLBACK").await.unwrap();
    AnsiTransactionManager::begin_transaction(&mut connection).await.unwrap();
    db.outbox.enqueue(&mut connection, event()).await.unwrap();
    db.outbox.enqueue_many(&mut connection, [event(), event()]).await.unwrap();
    AnsiTransactionManager::commit_transaction(&mut connection).await.unwrap();
    let log = log.lock().unwrap().clone();
    assert!(log.contains("INSERT INTO") && !log.contains("secret"), "{log}");
    db.clean_up().await;
}
