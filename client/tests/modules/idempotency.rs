//! Idempotent requests on a real server.

mod abandoned;
mod phases;
mod requests;
mod takeover;

use pg_outbox::idempotency::{Begun, Fingerprint, Guard, Idempotency, Key, Request, Response, Scope};
use tokio_postgres::Client;

use crate::database::Database;

fn request(key: &str) -> Request {
    let scope = Scope::new("POST", "/payments", "user 1").unwrap();
    Request::new(scope, Key::new(key).unwrap(), Fingerprint::json(br#"{"cents": 10}"#).unwrap())
}

async fn started(idempotency: &Idempotency, client: &Client, key: &str) -> Guard {
    match idempotency.begin(client, &request(key)).await.unwrap() {
        Begun::Started(guard) => guard,
        other => panic!("{other:?}"),
    }
}

async fn finish(guard: &Guard, client: &mut Client, response: &Response) {
    let tx = client.transaction().await.unwrap();
    guard.finish(&tx, response).await.unwrap();
    tx.commit().await.unwrap();
}

async fn replayed(db: &Database, key: &str) -> Response {
    match db.idempotency.begin(&db.client, &request(key)).await.unwrap() {
        Begun::Replay(response) => response,
        other => panic!("{other:?}"),
    }
}

impl Database {
    async fn until_expired(&self) {
        let expired = "SELECT bool_and(locked_until <= clock_timestamp()) FROM {s}.idempotency_key";
        self.until("the lock has expired", expired).await;
    }

    async fn expire(&self) {
        self.run("UPDATE {s}.idempotency_key SET locked_until = clock_timestamp()").await;
    }
}
