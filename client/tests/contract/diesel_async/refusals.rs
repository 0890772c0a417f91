use std::sync::{Arc, Mutex};

use diesel::connection::InstrumentationEvent;
use pg_outbox::idempotency::{self, Begun, Fingerprint, Key, PhaseError, Request, Scope};
use pg_outbox::{DatabaseError, Error, Event, inbox};

use super::diesel_async::{AnsiTransactionManager, TransactionManager};
use super::diesel_async::{AsyncConnection, AsyncPgConnection, SimpleAsyncConnection};
use crate::{database, modules};

pub fn event() -> Event {
    Event::new("order", 1, "E").bytes(r#"{"secret":1}"#).header("h", "secret")
}

fn request() -> Request {
    let scope = Scope::new("POST", "/payments", 1).unwrap();
    Request::new(scope, Key::new("k").unwrap(), Fingerprint::bytes(b""))
}

pub async fn connect() -> AsyncPgConnection {
    AsyncPgConnection::establish(&database::url()).await.unwrap()
}

#[tokio::test]
async fn without_an_open_transaction_nothing_is_stored() {
    let (db, modules) = (database::Database::new().await, modules::Database::new().await);
    let mut connection = connect().await;
    let refused = db.outbox.enqueue(&mut connection, event()).await.unwrap_err();
    assert!(matches!(refused, Error::NoTransaction { .. }), "{refused:?}");
    let refused = db.outbox.enqueue_many(&mut connection, [event(), event()]).await.unwrap_err();
    assert!(matches!(refused, Error::NoTransaction { .. }), "{refused:?}");
    let refused = modules.inbox.receive(&mut connection, "a", "e").await.unwrap_err();
    let inbox::Error::Database(DatabaseError::NoTransaction { source, .. }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(source.sqlstate(), Some("25P01"));

    // The transaction has ended, so a call fails again.
    AnsiTransactionManager::begin_transaction(&mut connection).await.unwrap();
    db.outbox.enqueue(&mut connection, event()).await.unwrap();
    AnsiTransactionManager::commit_transaction(&mut connection).await.unwrap();
    let refused = db.outbox.enqueue(&mut connection, event()).await.unwrap_err();
    assert!(matches!(refused, Error::NoTransaction { .. }), "{refused:?}");
    assert_eq!(db.rows().await.len(), 1);
    assert_eq!(modules.number("SELECT count(*) FROM {s}.processed_message").await, 0);
    db.clean_up().await;
    modules.clean_up().await;
}

#[tokio::test]
async fn a_connection_with_an_open_transaction_is_rejected() {
    let (db, mut connection) = (modules::Database::new().await, connect().await);
    let begun = db.idempotency.begin(&mut connection, &request()).await.unwrap();
    let Begun::Started(mut guard) = begun else { panic!("{begun:?}") };
    AnsiTransactionManager::begin_transaction(&mut connection).await.unwrap();
    let refused = db.idempotency.begin(&mut connection, &request()).await;
    let work = async |_: &mut AsyncPgConnection| Ok::<_, ()>(1);
    let phase = guard.phase(&mut connection, "one", work).await;
    let (
        Err(idempotency::Error::Database(DatabaseError::InTransaction { .. })),
        Err(PhaseError::Begin(error)),
    ) = (&refused, &phase)
    else {
        panic!("{refused:?} {phase:?}")
    };
    assert_eq!(error.sqlstate(), Some("25001"));
    AnsiTransactionManager::rollback_transaction(&mut connection).await.unwrap();
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
