//! The demo's schema. It is created at the start, dropped at the end, and never confused with other schemas.

use super::verdict::Written;
use anyhow::{Context, anyhow};
use deadpool_postgres::Object;
use outbox_relay::cli::failed::Failed;
use outbox_relay::postgres::connection::pool::Database;
use outbox_relay::postgres::schema::migrate;
use outbox_relay::postgres::table::TableName;
use std::collections::HashSet;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use uuid::Uuid;

/// Its name.
pub(super) const SCHEMA: &str = "outbox_demo";
/// The outbox in it.
pub(super) const OUTBOX: &str = "outbox_demo.outbox";
/// The number of customers of the shop.
pub(super) const CUSTOMERS: i64 = 200;

/// The lock ends with the connection, so a later demo can replace the schema of a killed one.
const LOCK: &str = "SELECT pg_try_advisory_lock(hashtextextended('outbox-demo', 0))";

const FIND: &str = "
SELECT coalesce(obj_description(oid, 'pg_namespace') = $1, false) FROM pg_namespace WHERE nspname = 'outbox_demo'";

/// The comment by which a later demo recognizes the schema.
const MARK: &str = "made by `outbox-demo`, which also drops it";

const CREATE: &str = "
CREATE SCHEMA outbox_demo;
COMMENT ON SCHEMA outbox_demo IS 'made by `outbox-demo`, which also drops it';
CREATE TABLE outbox_demo.customer (
    id      bigint PRIMARY KEY,
    orders  bigint NOT NULL DEFAULT 0,
    cents   bigint NOT NULL DEFAULT 0,
    version bigint NOT NULL DEFAULT 0
);
CREATE TABLE outbox_demo.shop_order (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer_id bigint NOT NULL REFERENCES outbox_demo.customer,
    cents       bigint NOT NULL,
    status      text   NOT NULL DEFAULT 'placed',
    version     bigint NOT NULL DEFAULT 1
)";

const ADD_CUSTOMERS: &str = "INSERT INTO outbox_demo.customer (id) SELECT generate_series(1, $1::bigint)";

const DROP: &str = "
SET lock_timeout = '10s';
SET client_min_messages = warning;
DROP SCHEMA outbox_demo CASCADE";

const KNOWN: &str = "SELECT event_id FROM outbox_demo.outbox WHERE event_id = ANY($1)";

/// A connection to the database before the schema exists.
pub(super) struct Connected {
    database: Database,
    connection: Object,
}

/// The schema while the demo owns it.
pub(super) struct OwnSchema {
    database: Database,
    /// Holds the lock.
    connection: Object,
}

impl OwnSchema {
    /// Connects to the database without changing anything.
    pub(super) async fn connect(database: Database) -> Result<Connected, Failed> {
        let connection = database.get().await.map_err(|fault| {
            Failed::Unavailable(anyhow!(fault).context("the database of --postgres cannot be reached"))
        })?;
        Ok(Connected { database, connection })
    }
}

impl Connected {
    /// Creates the schema, with the shop's tables and the outbox. If this fails, nothing is left behind.
    pub(super) async fn create(self, outbox: &TableName) -> Result<OwnSchema, Failed> {
        let Connected { database, connection } = self;
        let locked = connection.query_typed(LOCK, &[]).await.context("requesting a lock")?;
        if !locked.iter().any(|row| row.get(0)) {
            return Err(Failed::Failure(anyhow!(
                "another demo is running in this database: wait until it has ended, or use another database"
            )));
        }
        let found =
            connection.query_typed(FIND, &[(&MARK, Type::TEXT)]).await.context("looking for the schema")?;
        match found.first().map(|row| row.get(0)) {
            None => {}
            Some(true) => connection.batch_execute(DROP).await.context("dropping what a demo left behind")?,
            Some(false) => {
                return Err(Failed::Configuration(anyhow!(
                    "the schema {SCHEMA} exists in this database and was not created by the demo, so the demo does not \
                     replace it: rename it, or use another database"
                )));
            }
        }
        connection.batch_execute(CREATE).await.map_err(not_created)?;
        let mut schema = OwnSchema { database, connection };
        match schema.fill(outbox).await {
            Ok(()) => Ok(schema),
            Err(failed) => {
                schema.drop().await?;
                Err(failed)
            }
        }
    }
}

impl OwnSchema {
    async fn fill(&mut self, outbox: &TableName) -> Result<(), Failed> {
        let customers: &[(&(dyn tokio_postgres::types::ToSql + Sync), Type)] = &[(&CUSTOMERS, Type::INT8)];
        self.connection.execute_typed(ADD_CUSTOMERS, customers).await.context("filling the shop's tables")?;
        migrate::apply(&mut self.connection, outbox)
            .await
            .map_err(|error| Failed::Configuration(anyhow!(error).context("creating the outbox")))?;
        Ok(())
    }

    /// The events that are in the outbox, and were therefore committed. Settled rows stay there during the demo.
    pub(super) async fn committed(&mut self, events: Vec<Written>) -> anyhow::Result<Vec<Written>> {
        if events.is_empty() {
            return Ok(events);
        }
        let connection = self.database.get().await.context("connecting to PostgreSQL")?;
        let ids: Vec<Uuid> = events.iter().map(|event| event.event_id).collect();
        let rows = connection
            .query_typed(KNOWN, &[(&ids, Type::UUID_ARRAY)])
            .await
            .context("looking up events whose COMMIT was not answered")?;
        let known: HashSet<Uuid> = rows.iter().map(|row| row.get(0)).collect();
        Ok(events.into_iter().filter(|event| known.contains(&event.event_id)).collect())
    }

    /// Drops the schema and everything in it.
    pub(super) async fn drop(self) -> Result<(), Failed> {
        let remains = || {
            format!("the schema {SCHEMA} is still there: DROP SCHEMA {SCHEMA} CASCADE, or run the demo again")
        };
        // PostgreSQL may have been restarted. The pool replaces closed connections.
        drop(self.connection);
        let connection = self.database.get().await.with_context(remains)?;
        connection.batch_execute(DROP).await.with_context(remains)?;
        Ok(())
    }
}

fn not_created(error: tokio_postgres::Error) -> Failed {
    match error.code() {
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => Failed::Configuration(anyhow!(
            "the demo may not create its schema {SCHEMA}: GRANT CREATE ON DATABASE ... TO this role, or use \
             another database"
        )),
        Some(_) => Failed::Failure(anyhow!(error).context(format!("creating the schema {SCHEMA}"))),
        None => Failed::Unavailable(anyhow!(error).context(format!("creating the schema {SCHEMA}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schema_is_created_with_the_mark_by_which_it_is_found() {
        assert!(CREATE.contains(&format!("COMMENT ON SCHEMA {SCHEMA} IS '{MARK}'")));
        assert_eq!(OUTBOX.parse::<TableName>().unwrap().schema(), SCHEMA);
    }
}
