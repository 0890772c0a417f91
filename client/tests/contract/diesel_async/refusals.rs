use std::sync::{Arc, Mutex};

use diesel::connection::InstrumentationEvent;
use diesel_async::{AsyncConnection, AsyncPgConnection, SimpleAsyncConnection};
use pg_outbox::idempotency::{self, Begun, Fingerprint, Key, PhaseError, Request, Scope};
use pg_outbox::{DatabaseError, Error, Event, inbox};

use crate::{database, modules};

fn event() -> Event {
    Event::new("order", 1, "E").bytes(r#"{"secret":1}"#).header("h", "secret")
}

fn request() -> Request {
    let scope = Scope::new("POST", "/payments", 1).unwrap();
    Request::new(scope, Key::new("k").unwrap(), Fingerprint::bytes(b""))
}

async fn connect() -> AsyncPgConnection {
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
    let enqueued = connection
        .transaction(async |connection| db.outbox.enqueue(connection, event()).await.map_err(Failed::Outbox))
        .await;
    assert!(enqueued.is_ok(), "{enqueued:?}");
    let refused = db.outbox.enqueue(&mut connection, event()).await.unwrap_err();
    assert!(matches!(refused, Error::NoTransaction { .. }), "{refused:?}");
    assert_eq!(db.rows().await.len(), 1);
    assert_eq!(modules.number("SELECT count(*) FROM {s}.processed_message").await, 0);
    db.clean_up().await;
    modules.clean_up().await;
}

/// The error of an application's closure.
#[derive(Debug)]
#[allow(dead_code)] // only printed
enum Failed {
    Outbox(Error),
    Diesel(diesel::result::Error),
}

impl From<diesel::result::Error> for Failed {
    fn from(error: diesel::result::Error) -> Failed {
        Failed::Diesel(error)
    }
}

#[tokio::test]
async fn a_failed_closure_and_a_failed_savepoint_roll_back_their_events() {
    let (db, mut connection) = (database::Database::new().await, connect().await);
    let outbox = &db.outbox;
    let rolled_back = connection
        .transaction(async |connection| {
            outbox.enqueue(connection, event()).await.map_err(Failed::Outbox)?;
            Err::<(), _>(Failed::Diesel(diesel::result::Error::RollbackTransaction))
        })
        .await;
    assert!(rolled_back.is_err());
    assert_eq!(db.rows().await, []);
    let kept = connection
        .transaction(async |connection| {
            let savepoint = connection
                .transaction(async |connection| {
                    outbox.enqueue(connection, event()).await.map_err(Failed::Outbox)?;
                    Err::<(), _>(Failed::Diesel(diesel::result::Error::RollbackTransaction))
                })
                .await;
            assert!(savepoint.is_err());
            outbox
                .enqueue(connection, Event::new("order", "kept", "E").tombstone())
                .await
                .map_err(Failed::Outbox)
        })
        .await;
    assert!(kept.is_ok(), "{kept:?}");
    assert_eq!(db.keys().await, ["kept"]);
    db.clean_up().await;
}

#[tokio::test]
async fn a_connection_with_an_open_transaction_is_rejected() {
    let (db, mut connection) = (modules::Database::new().await, connect().await);
    let begun = db.idempotency.begin(&mut connection, &request()).await.unwrap();
    let Begun::Started(mut guard) = begun else { panic!("{begun:?}") };
    let idempotency = &db.idempotency;
    let inside = connection
        .transaction(async |connection| {
            let refused = idempotency.begin(&mut *connection, &request()).await;
            let phase =
                guard.phase_diesel(connection, "one", async |_: &mut AsyncPgConnection| Ok::<_, ()>(1)).await;
            Ok::<_, diesel::result::Error>((refused, phase))
        })
        .await
        .unwrap();
    let (
        Err(idempotency::Error::Database(DatabaseError::InTransaction { .. })),
        Err(PhaseError::Begin(error)),
    ) = inside
    else {
        panic!("{inside:?}")
    };
    assert_eq!(error.sqlstate(), Some("25001"));
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
    let enqueued = connection
        .transaction(async |connection| {
            db.outbox.enqueue(&mut *connection, event()).await.map_err(Failed::Outbox)?;
            db.outbox.enqueue_many(connection, [event(), event()]).await.map_err(Failed::Outbox)
        })
        .await;
    assert!(enqueued.is_ok(), "{enqueued:?}");
    let log = log.lock().unwrap().clone();
    assert!(log.contains("INSERT INTO") && !log.contains("secret"), "{log}");
    db.clean_up().await;
}
