use pg_outbox::Event;

use crate::database::Database;
use crate::drivers::{Connection, Tx};
use crate::{database, proxy};

fn event() -> Event {
    Event::new("order", 1, "E").bytes("{}").header("h", "1")
}

pub async fn each_prepared_call_is_one_round_trip<C: Connection>() {
    let db = Database::new().await;
    let (url, requests) = proxy::start(&database::url()).await;
    let mut connection = C::connect(&url).await;
    for is_first in [true, false] {
        // The first call of each kind also prepares its statement and reads the column type.
        let expect = |what: &str| {
            let taken = requests.take();
            assert!(is_first || taken == 1, "{what}: {taken} round trips");
        };
        let mut tx = connection.begin().await;
        requests.take();
        db.outbox.enqueue(tx.tx(), event()).await.unwrap();
        expect("enqueue");
        db.outbox.enqueue_many(tx.tx(), [event(), event(), event()]).await.unwrap();
        expect("enqueue_many");
        tx.commit().await;
    }
    db.clean_up().await;
}
