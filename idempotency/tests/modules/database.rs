//! Creates a schema with the modules for each test.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use deadpool_postgres::{Manager, Pool};
use pg_idempotency::idempotency::Idempotency;
use pg_idempotency::inbox::Inbox;
use pg_idempotency::once::Once;
use tokio_postgres::{Client, NoTls};

const URL: &str = "OUTBOX_RELAY_TEST_POSTGRES_URL";

const MIGRATIONS: [&str; 8] = [
    include_str!("../../../sql/inbox/0001_inbox.sql"),
    include_str!("../../../sql/idempotency/0001_idempotency.sql"),
    include_str!("../../../sql/once/0001_once.sql"),
    include_str!("../../../sql/inbox/0002_owner.sql"),
    include_str!("../../../sql/idempotency/0002_owner.sql"),
    include_str!("../../../sql/idempotency/0003_discard.sql"),
    include_str!("../../../sql/idempotency/0004_read_first.sql"),
    include_str!("../../../sql/once/0002_owner.sql"),
];

/// Long enough for every wait, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Database {
    pub client: Client,
    pub schema: String,
    pub inbox: Inbox,
    pub idempotency: Idempotency,
    pub once: Once,
}

pub fn url() -> String {
    std::env::var(URL).unwrap_or_else(|_| panic!("set {URL}; `scripts/services up` starts a server for it"))
}

pub async fn connect() -> Client {
    let (client, connection) = tokio_postgres::connect(&url(), NoTls).await.expect("connect to PostgreSQL");
    tokio::spawn(connection);
    client
}

pub fn pool(size: usize) -> Pool {
    let manager = Manager::new(url().parse().unwrap(), NoTls);
    Pool::builder(manager).max_size(size).build().unwrap()
}

impl Database {
    pub async fn new() -> Database {
        let client = connect().await;
        let schema = unique_schema();
        client.batch_execute(&format!("CREATE SCHEMA {schema}")).await.unwrap();
        for migration in MIGRATIONS {
            client.batch_execute(&render(migration, &schema)).await.unwrap();
        }
        Database {
            inbox: Inbox::in_schema(&schema).unwrap(),
            idempotency: Idempotency::in_schema(&schema).unwrap(),
            once: Once::in_schema(&schema).unwrap(),
            client,
            schema,
        }
    }

    /// Runs statements in which `{s}` stands for the schema.
    pub async fn run(&self, sql: &str) {
        self.client.batch_execute(&self.sql(sql)).await.unwrap();
    }

    pub fn sql(&self, sql: &str) -> String {
        sql.replace("{s}", &self.schema)
    }

    /// Runs a statement that returns one number, on another connection.
    pub async fn number(&self, sql: &str) -> i64 {
        connect().await.query_one(&self.sql(sql), &[]).await.unwrap().get(0)
    }

    /// Waits until a statement returns true.
    pub async fn until(&self, what: &str, sql: &str) {
        let (client, sql) = (connect().await, self.sql(sql));
        until(what, async || client.query_one(&sql, &[]).await.unwrap().get(0)).await;
    }

    pub async fn clean_up(self) {
        self.client.batch_execute(&format!("DROP SCHEMA {} CASCADE", self.schema)).await.unwrap();
    }
}

/// Waits until the backend waits for a lock of another one.
pub async fn until_blocked(pid: i32) {
    let client = connect().await;
    let blocked = "SELECT cardinality(pg_blocking_pids($1)) > 0";
    until("the backend waits", async || client.query_one(blocked, &[&pid]).await.unwrap().get(0)).await;
}

/// Waits until a statement on the schema waits for a lock of another backend.
#[allow(dead_code)] // only used by the contract tests
pub async fn until_any_blocked(schema: &str) {
    let client = connect().await;
    let blocked = "SELECT count(*) > 0 FROM pg_stat_activity
                   WHERE cardinality(pg_blocking_pids(pid)) > 0 AND strpos(query, $1) > 0";
    until("a backend waits", async || client.query_one(blocked, &[&schema]).await.unwrap().get(0)).await;
}

pub async fn pid(client: &Client) -> i32 {
    client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0)
}

async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let begun = Instant::now();
    while !condition().await {
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Test runs can share a server, so the name is unique across them.
fn unique_schema() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let micros = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
    format!("modules_{micros}_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Replaces `{schema_literal}`, and each `{name}` with `schema.name`.
fn render(migration: &str, schema: &str) -> String {
    let mut sql = String::new();
    let mut rest = migration;
    while let Some((before, after)) = rest.split_once('{') {
        sql.push_str(before);
        match after.split_once('}') {
            Some(("schema_literal", after)) => {
                sql.push_str(&format!("'{schema}'"));
                rest = after;
            }
            Some((name, after))
                if !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_') =>
            {
                sql.push_str(&format!("{schema}.{name}"));
                rest = after;
            }
            _ => {
                sql.push('{');
                rest = after;
            }
        }
    }
    sql + rest
}
