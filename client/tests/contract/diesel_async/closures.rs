use pg_outbox::{Error, Event};

use super::diesel_async::AsyncConnection;
use super::refusals::{connect, event};
use crate::database;

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
