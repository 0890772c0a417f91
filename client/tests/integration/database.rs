//! Creates a schema with an outbox for each test.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use pg_outbox::{EventId, Outbox};
use tokio_postgres::{Client, NoTls};

const URL: &str = "OUTBOX_RELAY_TEST_POSTGRES_URL";

const MIGRATIONS: [&str; 2] =
    [include_str!("../../../sql/0001_outbox.sql"), include_str!("../../../sql/0002_setting.sql")];

pub struct Database {
    pub client: Client,
    pub outbox: Outbox,
    pub schema: String,
}

/// A row of the outbox, with the stored bytes of the payload.
#[derive(Debug, PartialEq)]
pub struct Row {
    pub event_id: EventId,
    pub aggregate_type: String,
    pub aggregate_id: String,
    pub event_type: String,
    pub payload: Option<Vec<u8>>,
    pub headers: Option<String>,
}

pub fn url() -> String {
    std::env::var(URL).unwrap_or_else(|_| panic!("set {URL}; `scripts/services up` starts a server for it"))
}

pub async fn connect() -> Client {
    let (client, connection) = tokio_postgres::connect(&url(), NoTls).await.expect("connect to PostgreSQL");
    tokio::spawn(connection);
    client
}

impl Database {
    /// The payload column has the type json.
    pub async fn new() -> Database {
        let client = connect().await;
        let schema = unique_schema();
        client.batch_execute(&format!("CREATE SCHEMA {schema}; {}", migrations(&schema))).await.unwrap();
        let outbox = Outbox::new(&format!("{schema}.outbox")).unwrap();
        Database { client, outbox, schema }
    }

    pub async fn with_payload(column_type: &str) -> Database {
        let database = Database::new().await;
        database.set_payload(column_type).await;
        database
    }

    pub async fn set_payload(&self, column_type: &str) {
        let table = self.table();
        self.client
            .batch_execute(&format!(
                "ALTER TABLE {table} DROP payload; ALTER TABLE {table} ADD payload {column_type}"
            ))
            .await
            .unwrap();
    }

    pub fn table(&self) -> String {
        format!("{}.outbox", self.schema)
    }

    /// Reads the committed rows in id order on another connection.
    pub async fn rows(&self) -> Vec<Row> {
        let sql = format!(
            "SELECT event_id, aggregate_type, aggregate_id, event_type, payload, headers::text
             FROM {} ORDER BY id",
            self.table()
        );
        let rows = connect().await.query(&sql, &[]).await.unwrap();
        rows.iter()
            .map(|row| Row {
                event_id: EventId::from(row.get::<_, uuid::Uuid>(0)),
                aggregate_type: row.get(1),
                aggregate_id: row.get(2),
                event_type: row.get(3),
                payload: row.get::<_, Option<Bytes>>(4).map(|bytes| bytes.0),
                headers: row.get(5),
            })
            .collect()
    }

    pub async fn payloads(&self) -> Vec<Option<Vec<u8>>> {
        self.rows().await.into_iter().map(|row| row.payload).collect()
    }

    pub async fn keys(&self) -> Vec<String> {
        self.rows().await.into_iter().map(|row| row.aggregate_id).collect()
    }

    pub async fn clean_up(self) {
        self.client.batch_execute(&format!("DROP SCHEMA {} CASCADE", self.schema)).await.unwrap();
    }
}

/// Test runs can share a server, so the name is unique across them.
fn unique_schema() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let micros = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
    format!("client_{micros}_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

fn migrations(schema: &str) -> String {
    let mut sql = MIGRATIONS.concat().replace("{pending_index}", "outbox_pending");
    for (placeholder, name) in [
        ("{outbox}", "outbox"),
        ("{lane}", "outbox_lane"),
        ("{dead_letter}", "outbox_dead_letter"),
        ("{hold}", "outbox_hold"),
        ("{blocked_key}", "outbox_blocked_key"),
        ("{pause}", "outbox_pause"),
        ("{act}", "outbox_act"),
        ("{hold_version}", "outbox_hold_version"),
        ("{hold_changed}", "outbox_hold_changed"),
        ("{enqueue}", "outbox_enqueue"),
        ("{setting}", "outbox_setting"),
        ("{template}", "outbox_template"),
    ] {
        sql = sql.replace(placeholder, &format!("{schema}.{name}"));
    }
    sql
}

/// The stored bytes of a json or bytea column, or the text of a jsonb column.
struct Bytes(Vec<u8>);

impl<'a> tokio_postgres::types::FromSql<'a> for Bytes {
    fn from_sql(
        column: &tokio_postgres::types::Type,
        raw: &'a [u8],
    ) -> Result<Bytes, Box<dyn std::error::Error + Sync + Send>> {
        let version_bytes = usize::from(*column == tokio_postgres::types::Type::JSONB);
        Ok(Bytes(raw[version_bytes..].to_vec()))
    }

    fn accepts(column: &tokio_postgres::types::Type) -> bool {
        matches!(column.name(), "json" | "jsonb" | "bytea")
    }
}
