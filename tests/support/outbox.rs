//! The world of one test: a migrated database, a ledger next to the outbox, and private topics.

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
use super::wait::{STALLED, wait_until};

/// Each aggregate has a row with a count of its events. A writer locks the row before it inserts an event. The ledger
/// is written in the same transaction.
const APPLICATION: &str = "
CREATE TABLE app.aggregate (key text PRIMARY KEY, kind text NOT NULL, seq bigint NOT NULL DEFAULT 0);
CREATE TABLE app.ledger (event_id uuid, kind text, key text, seq bigint, value text)";

/// A claim locks lanes and its read locks the outbox. In the idle state, the server waits for the relay.
const PUBLISHING: &str = "
SELECT count(*) > 0
FROM pg_stat_activity AS a
WHERE application_name = $1 AND datname = current_database() AND state = 'idle in transaction'
  AND 2 = (SELECT count(DISTINCT relation) FROM pg_locks AS l
           WHERE l.pid = a.pid AND relation IN ('app.outbox'::regclass, 'app.outbox_lane'::regclass))";

/// The lock exists from the claim's first statement to its end, whatever the connection is doing. Only the lock mode of
/// SELECT FOR UPDATE counts, because analyzing the table takes another one.
const CLAIMS: &str = "SELECT DISTINCT pid FROM pg_locks
                      WHERE relation = 'app.outbox_lane'::regclass AND mode = 'RowShareLock'";
const WAITING_CLAIMS: &str = "SELECT DISTINCT pid FROM pg_locks JOIN pg_stat_activity USING (pid)
                              WHERE relation = 'app.outbox_lane'::regclass AND query = 'SELECT 1'";

/// An outbox, its database and its topics.
pub struct Outbox {
    pub database: Database,
    pub roles: Roles,
    /// Runs the statements of the test itself.
    pub client: Client,
    pub cluster: Cluster,
    /// The prefix of topics. It is followed by the aggregate type.
    prefix: String,
    kinds: Vec<String>,
}

impl Outbox {
    /// Creates an outbox with one topic, for the aggregate type `order`.
    pub async fn create(test: &str, partitions: i32) -> Self {
        let mut outbox = Self::without_topics(test).await;
        outbox.create_topic("order", partitions).await;
        outbox
    }

    pub async fn without_topics(test: &str) -> Self {
        Self::of(Database::create(test).await, &Cluster::shared()).await
    }

    /// Creates an outbox in a database with this encoding.
    pub async fn without_topics_in(test: &str, encoding: &str) -> Self {
        Self::of(Database::create_in(test, encoding).await, &Cluster::shared()).await
    }

    /// Creates an outbox without topics, for a private cluster.
    pub async fn on(cluster: &Cluster, test: &str) -> Self {
        Self::of(Database::create(test).await, cluster).await
    }

    /// Like [`Outbox::create`], on a private server.
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

    /// Connects again after a restart of the server.
    pub async fn reconnect(&mut self) {
        self.client = self.database.connect().await;
    }

    /// Uses the database on another server from now on: a promoted standby.
    pub async fn move_to(&mut self, server: &PostgresServer) {
        self.database = self.database.on(&server.url());
        self.reconnect().await;
    }

    /// The topic of an aggregate type.
    pub fn topic(&self, kind: &str) -> String {
        format!("{}{kind}", self.prefix)
    }

    /// The topics that this outbox has created.
    pub fn topics(&self) -> Vec<String> {
        self.kinds.iter().map(|kind| self.topic(kind)).collect()
    }

    pub async fn create_topic(&mut self, kind: &str, partitions: i32) {
        self.create_topic_with(kind, partitions, &[]).await;
    }

    /// Creates a topic with these settings, such as `max.message.bytes`.
    pub async fn create_topic_with(&mut self, kind: &str, partitions: i32, settings: &[(&str, &str)]) {
        self.cluster.create(&self.topic(kind), partitions, settings).await;
        self.add_topic(kind);
    }

    /// Adds the topic of an aggregate type that the test itself has created.
    pub fn add_topic(&mut self, kind: &str) {
        self.kinds.push(kind.to_owned());
    }

    /// The URL of the relay's own role, which has only the necessary privileges.
    pub fn relay_url(&self) -> String {
        self.database.url_of(self.roles.relay())
    }

    /// A relay for this outbox, to be configured and started.
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

    /// The commands for this outbox, as an operator runs them.
    pub fn operator(&self) -> Relay {
        self.relay().set("postgres", "url", self.database.url_of(&self.roles.on_call()))
    }

    /// Starts a relay with default settings.
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

    /// The number of unsent rows in the outbox.
    pub async fn unsent(&self) -> i64 {
        self.count("SELECT count(*) FROM app.outbox WHERE sent_at IS NULL").await
    }

    /// The number of unsent rows of an aggregate type.
    pub async fn unsent_of(&self, kind: &str) -> i64 {
        let sql =
            format!("SELECT count(*) FROM app.outbox WHERE sent_at IS NULL AND aggregate_type = '{kind}'");
        self.count(&sql).await
    }

    /// Waits until all rows of a type are settled, as long as there is progress. Returns how long it took.
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

    /// The number of open claims: transactions that have requested lanes.
    pub async fn claims(&self) -> i64 {
        self.count(&format!("SELECT count(*) FROM ({CLAIMS}) AS claims")).await
    }

    /// The number of claims and other transactions that the relay leaves open. The scout's short transactions do not
    /// count.
    pub async fn held_open(&self, relay: &RelayProcess) -> i64 {
        let sql = format!(
            "SELECT count(*) FROM pg_stat_activity
             WHERE application_name = '{}' AND state LIKE 'idle in transaction%'
               AND state_change < clock_timestamp() - interval '1 second'",
            relay.name
        );
        self.claims().await + self.count(&sql).await
    }

    /// The number of claims that wait for Kafka: those that have sent a keep-alive since they read their rows.
    pub async fn waiting_claims(&self) -> i64 {
        self.count(&format!("SELECT count(*) FROM ({WAITING_CLAIMS}) AS claims")).await
    }

    /// Closes the connections of the waiting claims, and returns how many there were.
    pub async fn end_waiting_claims(&self) -> i64 {
        self.count(&format!("SELECT count(pg_terminate_backend(pid)) FROM ({WAITING_CLAIMS}) AS claims"))
            .await
    }

    /// A number from the database.
    pub async fn count(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
    }

    /// Waits until every committed row is settled. `without_progress` is the longest time without a settled row.
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

    /// The number of settled events.
    pub async fn settled(&self) -> i64 {
        const SETTLED: &str = "SELECT (SELECT count(*) FROM app.ledger)
                                    - (SELECT count(*) FROM app.outbox WHERE sent_at IS NULL)";
        self.count(SETTLED).await
    }

    /// Waits until this number of additional events is settled.
    pub async fn wait_until_settled(&self, more: i64, within: Duration) {
        let enough = self.settled().await + more;
        let what = format!("{more} more events are settled");
        wait_until(&what, within, async || self.settled().await >= enough).await;
    }

    /// Waits until the next event is settled, and returns how long that took.
    pub async fn wait_until_resumed(&self, within: Duration) -> Duration {
        let before = self.settled().await;
        wait_until("another event is settled", within, async || self.settled().await > before).await
    }

    /// The number of dead letters.
    pub async fn dead_letters(&self) -> i64 {
        self.count("SELECT count(*) FROM app.outbox_dead_letter").await
    }

    /// The held topics with their reasons, sorted by name.
    pub async fn holds(&self) -> Vec<(String, String)> {
        let sql = "SELECT topic, reason FROM app.outbox_hold ORDER BY topic COLLATE \"C\"";
        self.client.query(sql, &[]).await.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    /// Waits until this relay has read a claim and is publishing.
    pub async fn wait_until_publishing(&self, relay: &RelayProcess) {
        let what = format!("{} is publishing", relay.name);
        wait_until(&what, STALLED, async || {
            self.client.query_one(PUBLISHING, &[&relay.name]).await.unwrap().get(0)
        })
        .await;
    }

    /// Waits until this backend waits for a lock.
    pub async fn wait_until_blocked(&self, backend: i32) {
        let sql = "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'";
        wait_until("a writer waits for its turn", STALLED, async || {
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

    /// Compares the ledger with the current records of the topics.
    pub async fn check(&self) -> Report {
        Report::new(&self.committed().await, &consumer::read_all_of(&self.cluster, &self.topics()).await)
    }

    /// The same comparison for one aggregate type.
    pub async fn check_of(&self, kind: &str) -> Report {
        let mut committed = self.committed().await;
        committed.retain(|event| event.topic == self.topic(kind));
        Report::new(&committed, &consumer::read_all_of(&self.cluster, &[self.topic(kind)]).await)
    }

    /// For the end of a passed test.
    pub async fn drop(self) {
        for topic in self.topics() {
            if self.cluster.partitions(&topic) > 0 {
                self.cluster.delete(&topic).await;
            }
        }
        self.drop_database().await;
    }

    /// For the end of a passed test whose Kafka cluster is private.
    pub async fn drop_database(self) {
        drop(self.client);
        self.database.drop_with_roles(&self.roles).await;
    }
}
