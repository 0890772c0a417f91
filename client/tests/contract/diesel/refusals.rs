use diesel::{Connection, PgConnection};
use pg_outbox::{Error, Event, block_on};

use crate::database;
use crate::drivers::on_this_thread;

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
