//! The migration pages. An application writes continuously, its previous sender runs until the page stops it, and in
//! the end every event is in Kafka once and in order.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};

use super::page::{Kind, read};
use super::world::World;
use crate::support::consumer::{self, Record};
use crate::support::wait::{STALLED, wait_until};

const KEYS: i64 = 5;
const PAUSE: Duration = Duration::from_millis(5);
/// The number of events that are written before and after each step that changes something.
const ENOUGH: i64 = 50;

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// An application that inserts events. Each has a key and a number, which determines its position in the key's order.
struct Application {
    written: Arc<AtomicI64>,
    directly: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Application {
    /// Inserts with this statement until it is switched to inserting into the outbox. Each statement is prepared once,
    /// as drivers do.
    fn start(client: Client, insert: &'static str) -> Self {
        const DIRECTLY: &str = "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, headers)
                                VALUES ('order', $1, 'Numbered', ($2::text)::json, '{\"eventType\": \"Numbered\"}')";
        let written = Arc::new(AtomicI64::new(0));
        let (directly, stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let task = tokio::spawn({
            let (written, directly, stop) = (Arc::clone(&written), Arc::clone(&directly), Arc::clone(&stop));
            async move {
                let before = client.prepare(insert).await.unwrap();
                let mut after = None;
                while !stop.load(Ordering::Relaxed) {
                    if after.is_none() && directly.load(Ordering::Relaxed) {
                        after = Some(client.prepare(DIRECTLY).await.unwrap());
                    }
                    let number = written.load(Ordering::Relaxed);
                    let (key, payload) = (format!("key-{}", number % KEYS), format!("{{\"n\": {number}}}"));
                    let statement = after.as_ref().unwrap_or(&before);
                    for row in client.query(statement, &[&key, &payload]).await.unwrap() {
                        assert!(row.get::<_, Option<i64>>(0).is_some(), "the insert returns the ID");
                    }
                    written.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(PAUSE).await;
                }
            }
        });
        Self { written, directly, stop, task }
    }

    fn written(&self) -> i64 {
        self.written.load(Ordering::Relaxed)
    }

    async fn write_some(&self) {
        let enough = self.written() + ENOUGH;
        wait_until("events are written", STALLED, async || self.written() >= enough).await;
    }

    async fn stop(self) -> i64 {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap();
        self.written.load(Ordering::Relaxed)
    }
}

/// The previous sender. It reads, sends and records events until it is stopped.
struct Predecessor {
    stop: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Predecessor {
    fn start(mut round: impl AsyncFnMut() + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let task = tokio::task::spawn_local(async move {
            while !stopped.load(Ordering::Relaxed) {
                round().await;
                tokio::time::sleep(PAUSE).await;
            }
        });
        Self { stop, task }
    }

    async fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap();
    }
}

async fn send(producer: &FutureProducer, topic: &str, key: &str, value: &str, headers: &[(&str, &str)]) {
    let headers = headers.iter().fold(OwnedHeaders::new(), |headers, (name, value)| {
        headers.insert(Header { key: name, value: Some(*value) })
    });
    let record = FutureRecord::to(topic).key(key).payload(value).headers(headers);
    producer.send(record, STALLED).await.unwrap();
}

fn producer(world: &World) -> FutureProducer {
    world
        .cluster
        .client()
        .set("enable.idempotence", "true")
        .set("partitioner", "murmur2_random")
        .create()
        .unwrap()
}

/// Asserts that each event is stored once, and that the events of each key are in order.
fn assert_complete(records: &[Record], written: i64) {
    let mut of_keys: HashMap<&[u8], Vec<i64>> = HashMap::new();
    for record in records {
        let value: serde_json::Value = serde_json::from_slice(record.value.as_deref().unwrap()).unwrap();
        of_keys.entry(record.key.as_deref().unwrap()).or_default().push(value["n"].as_i64().unwrap());
    }
    println!("{written} events written, {} records in {} keys", records.len(), of_keys.len());
    for key in 0..KEYS {
        let wanted: Vec<i64> = (0..written).filter(|number| number % KEYS == key).collect();
        let name = format!("key-{key}");
        assert_eq!(of_keys[name.as_bytes()], wanted, "{name}");
    }
}

async fn wait_for_table(client: &Client, table: &str) {
    let sql = format!("SELECT to_regclass('{table}') IS NOT NULL");
    wait_until("the table exists", STALLED, async || client.query_one(&sql, &[]).await.unwrap().get(0)).await;
}

/// Creates a database `app` with the role of an application.
async fn app(world: &World) -> Client {
    let postgres = connect(&world.url("postgres", "postgres")).await;
    postgres.batch_execute("CREATE DATABASE app").await.unwrap();
    postgres.batch_execute("CREATE ROLE shop LOGIN").await.unwrap();
    connect(&world.url("postgres", "app")).await
}

#[tokio::test]
async fn from_a_poller_without_loss_and_without_reordering() {
    tokio::task::LocalSet::new().run_until(from_a_poller()).await;
}

async fn from_a_poller() {
    const PAGE: &str = "migrating-from-a-poller.md";
    let mut world = World::create(&[]).await;
    let admin = app(&world).await;
    let topic = world.create_topic("shop.order", 3).await;
    let (mut application, mut poller) = (None, None);
    for block in read(PAGE) {
        if block.text.contains("DROP VIEW") {
            let application: &Application = application.as_ref().unwrap();
            application.directly.store(true, Ordering::Relaxed);
            application.write_some().await;
        }
        world.run(PAGE, &block).await;
        if block.text.contains("CREATE TABLE event_queue") {
            wait_for_table(&admin, "event_queue").await;
            admin.batch_execute("GRANT INSERT, SELECT ON event_queue TO shop").await.unwrap();
            let insert = "INSERT INTO event_queue (aggregate, aggregate_id, type, body)
                          VALUES ('order', $1, 'Numbered', ($2::text)::jsonb) RETURNING id";
            application = Some(Application::start(connect(&world.url("shop", "app")).await, insert));
            let (client, producer, topic) =
                (connect(&world.url("postgres", "app")).await, producer(&world), topic.clone());
            poller = Some(Predecessor::start(async move || {
                let unsent = "SELECT id, aggregate_id, body::text FROM event_queue WHERE published_at IS NULL
                              ORDER BY id LIMIT 20";
                for row in client.query(unsent, &[]).await.unwrap() {
                    send(&producer, &topic, row.get(1), row.get(2), &[]).await;
                    let mark = "UPDATE event_queue SET published_at = now() WHERE id = $1";
                    client.execute(mark, &[&row.get::<_, i64>(0)]).await.unwrap();
                }
            }));
        }
        if block.text.contains("systemctl stop event-poller") {
            assert_eq!(block.kind, Kind::Elsewhere);
            Option::take(&mut poller).unwrap().stop().await;
        }
        if let Some(application) = &application {
            application.write_some().await;
        }
    }
    let written = application.unwrap().stop().await;
    finish(world, &admin, &topic, written).await;
}

/// Publishes the rest and checks everything.
async fn finish(world: World, admin: &Client, topic: &str, written: i64) {
    let unsent = "SELECT count(*) FROM outbox WHERE sent_at IS NULL";
    wait_until("all rows are sent", STALLED, async || {
        admin.query_one(unsent, &[]).await.unwrap().get::<_, i64>(0) == 0
    })
    .await;
    let records = consumer::read_all_of(&world.cluster, &[topic.to_owned()]).await;
    assert_complete(&records, written);
    world.end().await;
}

/// A value of an insert in the format of `test_decoding`: `name[type]:'value'`.
fn decoded<'a>(line: &'a str, column: &str) -> &'a str {
    let (_, rest) = line.split_once(&format!(" {column}[")).unwrap_or_else(|| panic!("{column}: {line}"));
    let (_, rest) = rest.split_once("]:'").unwrap();
    rest.split_once('\'').unwrap().0
}

#[tokio::test]
async fn from_debezium_without_loss_and_without_reordering() {
    tokio::task::LocalSet::new().run_until(from_debezium()).await;
}

async fn from_debezium() {
    const PAGE: &str = "migrating-from-debezium.md";
    let mut world = World::create(&[("wal_level", "logical")]).await;
    let admin = app(&world).await;
    let topic = world.create_topic("outbox.event.order", 3).await;
    let (mut application, mut connector) = (None, None);
    for block in read(PAGE) {
        if block.text.contains("DROP VIEW") {
            let application: &Application = application.as_ref().unwrap();
            application.directly.store(true, Ordering::Relaxed);
            application.write_some().await;
        }
        world.run(PAGE, &block).await;
        if block.text.contains("CREATE TABLE outboxevent") {
            wait_for_table(&admin, "outboxevent").await;
            admin.batch_execute("GRANT INSERT, DELETE, SELECT ON outboxevent TO shop").await.unwrap();
            let default = "ALTER TABLE outboxevent ALTER COLUMN id SET DEFAULT gen_random_uuid()";
            admin.batch_execute(default).await.unwrap();
            // Leaves the ID to the table, and deletes each row immediately after the insert, as many applications do.
            let insert = "WITH event AS (INSERT INTO outboxevent (aggregatetype, aggregateid, type, payload)
                                         VALUES ('order', $1, 'Numbered', ($2::text)::jsonb))
                          DELETE FROM outboxevent WHERE type = 'Numbered'";
            admin
                .batch_execute("SELECT pg_create_logical_replication_slot('debezium', 'test_decoding')")
                .await
                .unwrap();
            application = Some(Application::start(connect(&world.url("shop", "app")).await, insert));
            connector = Some(debezium(&world).await);
        }
        if block.text.contains("/connectors/outbox/stop") {
            assert_eq!(block.kind, Kind::Elsewhere);
            Option::take(&mut connector).unwrap().stop().await;
        }
        if let Some(application) = &application {
            application.write_some().await;
        }
    }
    let written = application.unwrap().stop().await;
    // Every record that went through the old name has the headers that consumers know.
    let records = consumer::read_all_of(&world.cluster, std::slice::from_ref(&topic)).await;
    assert!(records.iter().all(|record| record.header("eventType") == Some(b"Numbered")));
    let both = records.iter().filter(|r| r.header("id").is_some() && r.header("event_id").is_some());
    let both: Vec<&Record> = both.collect();
    assert!(!both.is_empty() && both.iter().all(|record| record.header("id") == record.header("event_id")));
    finish(world, &admin, &topic, written).await;
}

/// Simulates Debezium: sends the inserts of the table in commit order, as the event router does, and confirms them to
/// the slot.
async fn debezium(world: &World) -> Predecessor {
    let (client, producer) = (connect(&world.url("postgres", "app")).await, producer(world));
    let prefix = world.here("outbox.event.");
    Predecessor::start(async move || {
        let changes = "SELECT lsn::text, data FROM pg_logical_slot_peek_changes('debezium', NULL, 100)";
        let mut last: Option<String> = None;
        for row in client.query(changes, &[]).await.unwrap() {
            let line: &str = row.get(1);
            last = Some(row.get(0));
            if !line.starts_with("table public.outboxevent: INSERT:") {
                continue;
            }
            let value = |column| decoded(line, column);
            let headers = [("id", value("id")), ("eventType", value("type"))];
            let topic = format!("{prefix}{}", value("aggregatetype"));
            send(&producer, &topic, value("aggregateid"), value("payload"), &headers).await;
        }
        if let Some(lsn) = last {
            let confirm = format!("SELECT pg_replication_slot_advance('debezium', '{lsn}')");
            client.batch_execute(&confirm).await.unwrap();
        }
    })
}
