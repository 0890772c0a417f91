//! Writers that keep a transaction open with an early id while the marks of its lane rise. Later writers of the same
//! key never overtake them.

use tokio::task::JoinHandle;
use tokio_postgres::Client;

use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::wait::STALLED;
use crate::support::writers::{self, Load, Writers};

const ROUNDS: usize = 6;
/// Many batches, and therefore many fences.
const ROWS_MEANWHILE: i64 = 4_000;

/// The key of the slow writer, and other keys of the same lane. The mark of this lane must not rise.
async fn keys_of_one_lane(outbox: &Outbox) -> (String, Vec<String>) {
    outbox.add_aggregates("order", 2_000).await;
    let sql = "SELECT key FROM app.aggregate
               WHERE hashtext(key) & 63 = hashtext('order-1') & 63 AND key <> 'order-1'";
    let rows = outbox.client.query(sql, &[]).await.unwrap();
    let others: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert!(others.len() >= 10, "{} other keys", others.len());
    ("order-1".to_owned(), others)
}

/// A second writer of the key, which waits behind the first one.
async fn start_waiting(outbox: &Outbox, key: &str) -> JoinHandle<Client> {
    let second = outbox.database.connect().await;
    let backend: i32 = second.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let key = key.to_owned();
    let waiting = tokio::spawn(async move {
        run(&second, "BEGIN").await;
        writers::write(&second, &[key]).await;
        run(&second, "COMMIT").await;
        second
    });
    outbox.wait_until_blocked(backend).await;
    waiting
}

async fn load(outbox: &Outbox, keys: &[String]) -> Writers {
    let load = Load { writers: 2, keys_per_transaction: 2, events_per_key: 5, ..Load::default() };
    Writers::start(outbox, keys, load).await
}

async fn finish(outbox: Outbox, writers: Writers, what: &str) {
    writers.stop().await;
    outbox.wait_until_drained(STALLED).await;
    let report = outbox.check().await;
    println!("{what}: {report}");
    report.assert_exact();
    outbox.drop().await;
}

#[tokio::test]
async fn writer_behind_open_transaction_keeps_order() {
    let outbox = Outbox::create("open_writer", 3).await;
    let (key, others) = keys_of_one_lane(&outbox).await;
    let _relays = [outbox.start_relay().await, outbox.start_relay().await];
    let writers = load(&outbox, &others).await;
    let first = outbox.database.connect().await;
    for _ in 0..ROUNDS {
        run(&first, "BEGIN").await;
        writers::write(&first, &[&key]).await;
        let second = start_waiting(&outbox, &key).await;
        outbox.wait_until_settled(ROWS_MEANWHILE, STALLED).await;
        run(&first, "COMMIT").await;
        second.await.unwrap();
    }
    finish(outbox, writers, "an open writer").await;
}

/// The lock of a prepared transaction belongs to no connection, and its name changes when it is prepared.
#[tokio::test]
async fn writer_behind_prepared_transaction_keeps_order() {
    let outbox = Outbox::create("prepared_writer", 3).await;
    let (key, others) = keys_of_one_lane(&outbox).await;
    let _relays = [outbox.start_relay().await, outbox.start_relay().await];
    let writers = load(&outbox, &others).await;
    let name = outbox.database.name().to_owned();
    for _ in 0..ROUNDS {
        let first = outbox.database.connect().await;
        run(&first, "BEGIN").await;
        writers::write(&first, &[&key]).await;
        outbox.wait_until_settled(ROWS_MEANWHILE / 2, STALLED).await;
        run(&first, &format!("PREPARE TRANSACTION '{name}'")).await;
        drop(first);
        let second = start_waiting(&outbox, &key).await;
        outbox.wait_until_settled(ROWS_MEANWHILE / 2, STALLED).await;
        run(&outbox.client, &format!("COMMIT PREPARED '{name}'")).await;
        second.await.unwrap();
    }
    finish(outbox, writers, "a prepared writer").await;
}
