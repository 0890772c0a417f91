use diesel::{Connection, PgConnection};
use pg_outbox::idempotency::{self, Begun, Fingerprint, Key, PhaseError, Request, Scope};
use pg_outbox::{DatabaseError, Error, Event, block_on};

use crate::drivers::on_this_thread;
use crate::{database, modules};

fn event() -> Event {
    Event::new("order", 1, "E").tombstone()
}

#[test]
fn without_an_open_transaction_nothing_is_stored() {
    on_this_thread(async {
        let db = database::Database::new().await;
        let mut connection = PgConnection::establish(&database::url()).unwrap();
        for _ in 0..2 {
            let refused = block_on(db.outbox.enqueue(&mut connection, event())).unwrap_err();
            assert!(matches!(refused, Error::NoTransaction { .. }), "{refused:?}");
            connection
                .transaction(|connection| {
                    block_on(db.outbox.enqueue(connection, event())).unwrap();
                    Ok::<_, diesel::result::Error>(())
                })
                .unwrap();
        }
        assert_eq!(db.rows().await.len(), 2);
        db.clean_up().await;
    });
}

#[test]
fn a_connection_with_an_open_transaction_is_rejected() {
    on_this_thread(async {
        let db = modules::Database::new().await;
        let mut connection = PgConnection::establish(&modules::url()).unwrap();
        let scope = Scope::new("POST", "/payments", 1).unwrap();
        let request = Request::new(scope, Key::new("k").unwrap(), Fingerprint::bytes(b""));
        let begun = block_on(db.idempotency.begin(&mut connection, &request)).unwrap();
        let Begun::Started(mut guard) = begun else { panic!("{begun:?}") };
        let inside = connection.transaction(|connection| {
            let refused = block_on(db.idempotency.begin(&mut *connection, &request));
            let phase = guard.phase_blocking(connection, "one", |_| Ok::<_, ()>(1));
            Ok::<_, diesel::result::Error>((refused, phase))
        });
        let (
            Err(idempotency::Error::Database(DatabaseError::InTransaction { .. })),
            Err(PhaseError::Begin(error)),
        ) = inside.unwrap()
        else {
            panic!("the transaction is not noticed")
        };
        assert_eq!(error.sqlstate(), Some("25001"));
        db.clean_up().await;
    });
}
