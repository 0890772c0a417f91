//! `prepared_statements = false`, for poolers that do not support them: the same delivery, without named statements on
//! the wire.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::consumer;
use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::rows::{self, Filling};
use crate::support::wait::{STALLED, wait_until};

/// How long transactions are counted, and the most per second. An idle relay needs about 25.
const MEASURED_FOR: Duration = Duration::from_secs(2);
const IDLE_RATE_MAX: f64 = 200.0;

/// A proxy for PostgreSQL that records the names of parsed statements.
struct Wire {
    address: SocketAddr,
    names: Arc<Mutex<BTreeSet<String>>>,
}

impl Wire {
    async fn to(postgres: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let names = Arc::new(Mutex::new(BTreeSet::new()));
        let noted = Arc::clone(&names);
        tokio::spawn(async move {
            loop {
                let client = listener.accept().await.unwrap().0;
                let server = TcpStream::connect(&postgres).await.unwrap();
                tokio::spawn(pass(client, server, Arc::clone(&noted)));
            }
        });
        Self { address, names }
    }

    fn names(&self) -> Vec<String> {
        self.names.lock().unwrap().iter().cloned().collect()
    }
}

async fn pass(client: TcpStream, server: TcpStream, names: Arc<Mutex<BTreeSet<String>>>) {
    let (mut client_reads, mut client_writes) = client.into_split();
    let (mut server_reads, mut server_writes) = server.into_split();
    tokio::spawn(async move { tokio::io::copy(&mut server_reads, &mut client_writes).await });
    let forward = async {
        // The first message has no type byte.
        let mut typed = false;
        loop {
            let kind = if typed { Some(client_reads.read_u8().await?) } else { None };
            let length = client_reads.read_u32().await?;
            let mut body = vec![0; length as usize - 4];
            client_reads.read_exact(&mut body).await?;
            if kind == Some(b'P') {
                let name = body.split(|byte| *byte == 0).next().unwrap();
                names.lock().unwrap().insert(String::from_utf8_lossy(name).into_owned());
            }
            if let Some(kind) = kind {
                server_writes.write_u8(kind).await?;
            }
            server_writes.write_u32(length).await?;
            server_writes.write_all(&body).await?;
            // A request for TLS is answered, and then the first message follows.
            typed = typed || !body.starts_with(&80_877_103_u32.to_be_bytes());
        }
    };
    let _: std::io::Result<()> = forward.await;
}

/// The records of each key, in order.
type Delivery = Vec<(String, i32, i64, Option<Vec<u8>>, Option<Vec<u8>>)>;

/// Rows for many slices, one refused row, and a topic that is created later.
async fn delivery(prepared: bool, on_sent: &str) -> (Delivery, Vec<String>) {
    let mut outbox = Outbox::create(&format!("pooler_{prepared}_{on_sent}"), 3).await;
    let url = outbox.relay_url();
    let server = url.split(['@', '/']).nth(3).unwrap().to_owned();
    let wire = Wire::to(server.clone()).await;
    rows::insert(&outbox, "order", 1, 0..10_000, Filling::Nothing).await;
    rows::insert(&outbox, "order", 100, 10_000..20_000, Filling::Letters(500)).await;
    rows::insert(&outbox, "missing", 10, 0..1_000, Filling::Nothing).await;
    let bad = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, headers)
               VALUES ('order', 'order-0', 'Bad', '{\"n\": 1}')";
    run(&outbox.client, bad).await;
    let relay = outbox.relay().set("postgres", "url", url.replace(&server, &wire.address.to_string()));
    let relay = relay.set("postgres", "prepared_statements", prepared).set("postgres", "sslmode", "disable");
    let mut relay = relay.set("outbox", "on_sent", on_sent).start().await;
    wait_until("all rows are settled except those without a topic", STALLED, async || {
        outbox.count("SELECT count(*) FROM app.outbox WHERE sent_at IS NULL").await == 1_000
    })
    .await;
    outbox.create_topic("missing", 1).await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    assert_eq!(outbox.count("SELECT count(*) FROM app.outbox_dead_letter").await, 1);
    assert_eq!(
        outbox.count("SELECT count(*) FROM app.outbox").await,
        if on_sent == "mark" { 21_000 } else { 0 }
    );
    outbox.check().await.assert_exact();

    let mut records: Delivery = Vec::new();
    let mut order = std::collections::HashMap::new();
    for record in consumer::read_all(&outbox.topics()).await {
        let kind = record.topic.rsplit('.').next().unwrap().to_owned();
        let place = order.entry((kind.clone(), record.key.clone())).or_insert(0);
        *place += 1;
        records.push((kind, record.partition, *place, record.key, record.value));
    }
    records.sort();
    let names = wire.names();
    outbox.drop().await;
    (records, names)
}

#[tokio::test]
async fn delivery_is_the_same_without_prepared_statements() {
    let (expected, names) = delivery(true, "mark").await;
    assert!(names.iter().any(|name| !name.is_empty()), "prepared statements have names: {names:?}");
    for on_sent in ["mark", "delete"] {
        let (delivered, names) = delivery(false, on_sent).await;
        assert_eq!(names, [""], "{on_sent}");
        assert!(delivered == expected, "{on_sent}: {} and {} records", delivered.len(), expected.len());
    }
}

/// Without prepared statements there are no flows. A worker that expected one to continue would claim again and again.
#[tokio::test]
async fn relay_without_prepared_statements_is_idle_between_events() {
    let outbox = Outbox::create("idle_simple", 1).await;
    let relay = outbox.relay().set("postgres", "prepared_statements", false);
    let mut relay = relay.set("admin", "listen", "127.0.0.1:0").start().await;
    rows::insert(&outbox, "order", 10, 0..100, Filling::Nothing).await;
    outbox.wait_until_drained(STALLED).await;
    let transactions = async || relay.metric("outbox_relay_postgres_transactions_total").await.unwrap();
    let before = transactions().await;
    tokio::time::sleep(MEASURED_FOR).await;
    let rate = (transactions().await - before) / MEASURED_FOR.as_secs_f64();
    println!("{rate:.0} transactions per second without events");
    assert!(rate < IDLE_RATE_MAX, "{rate}");
    assert!(relay.stop().await.success());
    outbox.check().await.assert_exact();
    outbox.drop().await;
}
