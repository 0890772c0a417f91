//! Counts the round trips of each call.

use deadpool_postgres::ClientWrapper;
use pg_outbox::{Event, Outbox};

use crate::database::Database;
use crate::wire::connect;

fn event() -> Event {
    Event::new("order", 1, "E").bytes("{}")
}

fn events() -> [Event; 3] {
    [event(), event(), event()]
}

#[tokio::test]
async fn a_call_is_one_round_trip_with_tokio_postgres() {
    let db = Database::new().await;
    let (mut client, _task, requests) = connect().await;
    let tx = client.transaction().await.unwrap();
    db.outbox.enqueue(&tx, event()).await.unwrap();
    assert_eq!(requests.take(), 2); // the type of the payload column, and the event

    db.outbox.enqueue(&tx, event()).await.unwrap();
    assert_eq!(requests.take(), 1);
    db.outbox.enqueue_many(&tx, events()).await.unwrap();
    assert_eq!(requests.take(), 1);

    let many_first = Outbox::new(&db.table()).unwrap();
    many_first.enqueue_many(&tx, events()).await.unwrap();
    requests.take();
    many_first.enqueue_many(&tx, events()).await.unwrap();
    assert_eq!(requests.take(), 1);
    drop(tx);
    db.clean_up().await;
}

#[tokio::test]
async fn a_call_is_one_round_trip_with_deadpool_postgres() {
    let db = Database::new().await;
    let (client, task, requests) = connect().await;
    let mut client = ClientWrapper::new(client, task);
    let tx = client.transaction().await.unwrap();
    db.outbox.enqueue(&*tx, event()).await.unwrap(); // learns the type of the payload column, once per outbox
    drop(tx);
    for first in [true, false] {
        let tx = client.transaction().await.unwrap();
        requests.take();
        db.outbox.enqueue(&tx, event()).await.unwrap();
        assert_eq!(requests.take(), if first { 2 } else { 1 });
        db.outbox.enqueue_many(&tx, events()).await.unwrap();
        assert_eq!(requests.take(), if first { 2 } else { 1 });
    }
    db.clean_up().await;
}
