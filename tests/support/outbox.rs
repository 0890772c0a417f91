//! The world of one test: a migrated database, a ledger beside the outbox, topics that are nobody else's.

use outbox_relay::postgres::schema::migrate;
use std::time::{Duration, Instant};
use tokio_postgres::Client;

use super::checker::{Committed, Report};
use super::consumer;
use super::database::{Database, run};
use super::postgres_server::PostgresServer;
use super::relay::{Relay, RelayProcess};
use super::roles::Roles;
use super::topics::Cluster;
use super::wait::wait_until;

/// Aggregates have a row of their own, which their writers lock before they insert an event, and count their events.
/// The ledger is written in the transaction of the event.
const APPLICATION: &str = "
CREATE TABLE app.aggregate (key text PRIMARY KEY, kind text NOT NULL, seq bigint NOT NULL DEFAULT 0);
CREATE TABLE app.ledger (event_id uuid, kind text, key text, seq bigint, value text)";

const PUBLISHING_WITHIN: Duration = Duration::from_secs(30);

/// A claim locks lanes, its read the outbox; idle, the server waits for the relay.
const PUBLISHING: &str = "
SELECT count(*) > 0
FROM pg_stat_activity AS a
WHERE application_name = $1 AND datname = current_database() AND state = 'idle in transaction'
  AND 2 = (SELECT count(DISTINCT relation) FROM pg_locks AS l
           WHERE l.pid = a.pid AND relation IN ('app.outbox'::regclass, 'app.outbox_lane'::regclass))";

/// The lock stands from the claim's first statement to its end, whatever the connection is doing.
/// The lock of SELECT FOR UPDATE: statistics of the table, which the server takes once by itself, need another one.
const CLAIMS: &str = "SELECT DISTINCT pid FROM pg_locks
                      WHERE relation = 'app.outbox_lane'::regclass AND mode = 'RowShareLock'";
const WAITING_CLAIMS: &str = "SELECT DISTINCT pid FROM pg_locks JOIN pg_stat_activity USING (pid)
                              WHERE relation = 'app.outbox_lane'::regclass AND query = 'SELECT 1'";

/// An outbox, and what belongs to it in Postgres and in Kafka.
pub struct Outbox {
    pub database: Database,
    pub roles: Roles,
    /// Runs the statements of the test itself.
    pub client: Client,
    pub cluster: Cluster,
    /// The topic of an aggregate type is this and the type.
    prefix: String,
    kinds: Vec<String>,
}

impl Outbox {
    /// With one topic, of the aggregate type `order`.
    pub async fn create(test: &str, partitions: i32) -> Self {
        let mut outbox = Self::without_topics(test).await;
        outbox.create_topic("order", partitions).await;
        outbox
    }

    pub async fn without_topics(test: &str) -> Self {
        Self::of(Database::create(test).await, &Cluster::shared()).await
    }

    /// The same in a database of this encoding.
    pub async fn without_topics_in(test: &str, encoding: &str) -> Self {
        Self::of(Database::create_in(test, encoding).await, &Cluster::shared()).await
    }

    /// Without topics, for a cluster of the test's own.
    pub async fn on(cluster: &Cluster, test: &str) -> Self {
        Self::of(Database::create(test).await, cluster).await
    }

    /// As [`Outbox::create`], on a server of the test's own.
    pub async fn create_on(server: &PostgresServer, test: &str, partitions: i32) -> Self {
        let database = Database::create_on(&server.url(), test).await;
        let mut outbox = Self::of(database, &Cluster::shared()).await;
        outbox.create_topic("order", partitions).await;
        outbox
    }

    async fn of(database: Database, cluster: &Cluster) -> Self {
        let mut client = database.connect().await;
        let table = "app.outbox".parse().unwrap();
        migrate::apply(&mut client, &table).await.unwrap();
        let roles = Roles::create(&client, &table).await;
        run(&client, APPLICATION).await;
        let prefix = format!("{}.", database.name());
        Self { database, roles, client, cluster: cluster.clone(), prefix, kinds: Vec::new() }
    }

    /// Connects again, after the server went.
    pub async fn reconnect(&mut self) {
        self.client = self.database.connect().await;
    }

    /// The database is that of another server from now on: a standby that was promoted.
    pub async fn move_to(&mut self, server: &PostgresServer) {
        self.database = self.database.on(&server.url());
        self.reconnect().await;
    }

    /// The topic of an aggregate type.
    pub fn topic(&self, kind: &str) -> String {
        format!("{}{kind}", self.prefix)
    }

    /// The topics that this world created.
    pub fn topics(&self) -> Vec<String> {
        self.kinds.iter().map(|kind| self.topic(kind)).collect()
    }

    pub async fn create_topic(&mut self, kind: &str, partitions: i32) {
        self.create_topic_with(kind, partitions, &[]).await;
    }

    /// With settings of the topic, such as `max.message.bytes`.
    pub async fn create_topic_with(&mut self, kind: &str, partitions: i32, settings: &[(&str, &str)]) {
        self.cluster.create(&self.topic(kind), partitions, settings).await;
        self.add_topic(kind);
    }

    /// Takes in the topic of an aggregate type that the test itself created.
    pub fn add_topic(&mut self, kind: &str) {
        self.kinds.push(kind.to_owned());
    }

    /// As the relay connects: with its own role, which can do no more than it must.
    pub fn relay_url(&self) -> String {
        self.database.url_of(self.roles.relay())
    }

    /// A relay of this outbox, to be configured and started.
    pub fn relay(&self) -> Relay {
        let relay = Relay::new()
            .set("postgres", "url", self.relay_url())
            .set("kafka", "bootstrap_servers", self.cluster.bootstrap.clone())
            .set("outbox", "table", "app.outbox")
            .set("outbox", "topic", format!("{}{{aggregate_type}}", self.prefix))
            .set("admin", "listen", "off")
            .set("log", "level", "info,outbox_relay=debug")
            .set("log", "format", "text");
        let properties = &self.cluster.properties;
        properties.iter().fold(relay, |relay, (name, value)| relay.set_kafka_property(name, value))
    }

    /// The commands of this outbox, for a person on call.
    pub fn operator(&self) -> Relay {
        self.relay().set("postgres", "url", self.database.url_of(&self.roles.on_call()))
    }

    /// A running relay with default settings.
    pub async fn start_relay(&self) -> RelayProcess {
        self.relay().start().await
    }

    /// Adds aggregates `{kind}-1` to `{kind}-{count}`, and returns their keys.
    pub async fn add_aggregates(&self, kind: &str, count: usize) -> Vec<String> {
        let sql = "INSERT INTO app.aggregate (key, kind)
                   SELECT $1 || '-' || n, $1 FROM generate_series(1, $2) AS n RETURNING key";
        let rows = self.client.query(sql, &[&kind, &(count as i32)]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// How many rows are in the outbox and not sent.
    pub async fn unsent(&self) -> i64 {
        self.count("SELECT count(*) FROM app.outbox WHERE sent_at IS NULL").await
    }

    /// How many rows of an aggregate type are in the outbox and not sent.
    pub async fn unsent_of(&self, kind: &str) -> i64 {
        let sql =
            format!("SELECT count(*) FROM app.outbox WHERE sent_at IS NULL AND aggregate_type = '{kind}'");
        self.count(&sql).await
    }

    /// Waits for the rows of a type, as long as some of them are settled at all. Returns how long it took.
    pub async fn wait_until_sent(&self, kind: &str, without_progress: Duration) -> Duration {
        let begun = Instant::now();
        loop {
            let before = self.unsent_of(kind).await;
            if before == 0 {
                return begun.elapsed();
            }
            let what = format!("fewer than {before} unsent rows of {kind}");
            wait_until(&what, without_progress, async || self.unsent_of(kind).await < before).await;
        }
    }

    /// How many claims are open: transactions that have asked for lanes.
    pub async fn claims(&self) -> i64 {
        self.count(&format!("SELECT count(*) FROM ({CLAIMS}) AS claims")).await
    }

    /// Claims, and transactions that the relay leaves open: those of the scout's short looks wait for nobody.
    pub async fn held_open(&self, relay: &RelayProcess) -> i64 {
        let sql = format!(
            "SELECT count(*) FROM pg_stat_activity
             WHERE application_name = '{}' AND state LIKE 'idle in transaction%'
               AND state_change < clock_timestamp() - interval '1 second'",
            relay.name
        );
        self.claims().await + self.count(&sql).await
    }

    /// How many of them wait for Kafka: they have given a sign of life since they read their rows.
    pub async fn waiting_claims(&self) -> i64 {
        self.count(&format!("SELECT count(*) FROM ({WAITING_CLAIMS}) AS claims")).await
    }

    /// Ends the connections of these; returns how many there were.
    pub async fn end_waiting_claims(&self) -> i64 {
        self.count(&format!("SELECT count(pg_terminate_backend(pid)) FROM ({WAITING_CLAIMS}) AS claims"))
            .await
    }

    /// A number from the database.
    pub async fn count(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
    }

    /// Waits until every committed row is settled, as long as rows are settled at all: `without_progress` is the
    /// longest time without any.
    pub async fn wait_until_drained(&self, without_progress: Duration) {
        loop {
            let before = self.unsent().await;
            if before == 0 {
                return;
            }
            let what = format!("fewer than {before} unsent rows");
            wait_until(&what, without_progress, async || self.unsent().await < before).await;
        }
    }

    /// How many of the writers' events are settled.
    pub async fn settled(&self) -> i64 {
        const SETTLED: &str = "SELECT (SELECT count(*) FROM app.ledger)
                                    - (SELECT count(*) FROM app.outbox WHERE sent_at IS NULL)";
        self.count(SETTLED).await
    }

    /// Waits until so many events more than now are settled.
    pub async fn wait_until_settled(&self, more: i64, within: Duration) {
        let enough = self.settled().await + more;
        let what = format!("{more} more events are settled");
        wait_until(&what, within, async || self.settled().await >= enough).await;
    }

    /// Waits until any more events are settled, and returns how long that took.
    pub async fn wait_until_resumed(&self, within: Duration) -> Duration {
        let before = self.settled().await;
        wait_until("events are settled again", within, async || self.settled().await > before).await
    }

    /// How many rows are in the dead letters.
    pub async fn dead_letters(&self) -> i64 {
        self.count("SELECT count(*) FROM app.outbox_dead_letter").await
    }

    /// The topics that are held, each with its reason, by name.
    pub async fn holds(&self) -> Vec<(String, String)> {
        let sql = "SELECT topic, reason FROM app.outbox_hold ORDER BY topic COLLATE \"C\"";
        self.client.query(sql, &[]).await.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    /// Waits until this relay holds a claim that it has read, and is busy with Kafka.
    pub async fn wait_until_publishing(&self, relay: &RelayProcess) {
        let what = format!("{} is in the middle of a batch", relay.name);
        wait_until(&what, PUBLISHING_WITHIN, async || {
            self.client.query_one(PUBLISHING, &[&relay.name]).await.unwrap().get(0)
        })
        .await;
    }

    /// Waits until somebody waits for a lock, this backend.
    pub async fn wait_until_blocked(&self, backend: i32) {
        let sql = "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'";
        wait_until("a writer waits for its turn", PUBLISHING_WITHIN, async || {
            self.client.query_one(sql, &[&backend]).await.unwrap().get(0)
        })
        .await;
    }

    /// The writers' ledger.
    pub async fn committed(&self) -> Vec<Committed> {
        let sql = "SELECT event_id, kind, key, seq, value FROM app.ledger";
        let rows = self.client.query(sql, &[]).await.unwrap();
        let event = |row: &tokio_postgres::Row| Committed {
            event_id: row.get(0),
            topic: self.topic(row.get(1)),
            key: row.get(2),
            seq: row.get(3),
            value: row.get(4),
        };
        rows.iter().map(event).collect()
    }

    /// Compares the ledger with what the topics hold now.
    pub async fn check(&self) -> Report {
        Report::new(&self.committed().await, &consumer::read_all_of(&self.cluster, &self.topics()).await)
    }

    /// The same for one aggregate type.
    pub async fn check_of(&self, kind: &str) -> Report {
        let mut committed = self.committed().await;
        committed.retain(|event| event.topic == self.topic(kind));
        Report::new(&committed, &consumer::read_all_of(&self.cluster, &[self.topic(kind)]).await)
    }

    /// For the end of a test that passed.
    pub async fn drop(self) {
        for topic in self.topics() {
            if self.cluster.partitions(&topic) > 0 {
                self.cluster.delete(&topic).await;
            }
        }
        self.drop_database().await;
    }

    /// For the end of a test that passed and whose Kafka ends with it.
    pub async fn drop_database(self) {
        drop(self.client);
        self.database.drop_with_roles(&self.roles).await;
    }
}
