use std::time::Duration;

use deadpool_postgres::ClientWrapper;
use pg_idempotency::idempotency::{Begun, Fingerprint, Key, Request, Response, Scope};

use crate::database::Database;
use crate::wire::connect;

#[tokio::test]
async fn each_call_is_one_round_trip_with_tokio_postgres() {
    let db = Database::new().await;
    let (mut client, _task, requests) = connect().await;
    let scope = Scope::new("POST", "/payments", 1).unwrap();
    let request = Request::new(scope, Key::new("k").unwrap(), Fingerprint::bytes(b""));
    let Begun::Started(guard) = db.idempotency.begin(&client, &request).await.unwrap() else {
        panic!("the key is new")
    };
    assert_eq!(requests.take(), 1, "begin");
    guard.extend(&client).await.unwrap();
    assert_eq!(requests.take(), 1, "extend");
    let tx = client.transaction().await.unwrap();
    requests.take();
    guard.reach(&tx, "one", &serde_json::json!(7)).await.unwrap();
    assert_eq!(requests.take(), 1, "reach");
    guard.finish(&tx, &Response::new(200)).await.unwrap();
    assert_eq!(requests.take(), 1, "finish");
    let _ = db.inbox.receive(&tx, "a", "e").await.unwrap();
    assert_eq!(requests.take(), 1, "receive");
    db.inbox.receive_many(&tx, "a", 0..500).await.unwrap();
    assert_eq!(requests.take(), 1, "receive_many");
    let _ = db.once.claim(&tx, "job", Duration::from_secs(1)).await.unwrap();
    assert_eq!(requests.take(), 1, "claim");
    tx.commit().await.unwrap();
    db.clean_up().await;
}

#[tokio::test]
async fn each_prepared_call_is_one_round_trip_with_a_pool() {
    let db = Database::new().await;
    let (client, task, requests) = connect().await;
    let mut client = ClientWrapper::new(client, task);
    for round in 0..2 {
        let tx = client.transaction().await.unwrap();
        requests.take();
        let _ = db.inbox.receive(&tx, "a", "e").await.unwrap();
        assert_eq!(requests.take(), 2 - round, "receive");
        db.inbox.receive_many(&tx, "a", 0..500).await.unwrap();
        assert_eq!(requests.take(), 2 - round, "receive_many");
        let _ = db.once.claim(&tx, "job", Duration::from_secs(1)).await.unwrap();
        assert_eq!(requests.take(), 2 - round, "claim");
        tx.commit().await.unwrap();
    }
    db.clean_up().await;
}
