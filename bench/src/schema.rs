//! The scratch schema of a measurement. It is created for the measurement, dropped afterwards, and never confused with
//! other schemas.
//!
//! Its name, a comment on it, and a lock that its creator holds distinguish three cases: a schema in use, one that a
//! killed run left behind, and an unrelated one. A later run drops only the second kind, and only its own role's, because a schema
//! of another role could contain functions that would run with its privileges.

use crate::BenchError;
use deadpool_postgres::Object;
use outbox_relay::postgres::connection::errors::fault;
use outbox_relay::postgres::connection::pool::Database;
use outbox_relay::postgres::schema::errors::MigrateError;
use outbox_relay::postgres::schema::migrate;
use outbox_relay::postgres::table::{TableName, quote_identifier};
use outbox_relay::relay::failure::PostgresFault;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

/// The beginning of the name of every scratch schema. Eight hexadecimal digits follow.
pub const PREFIX: &str = "outbox_bench_";

const DENIED: &str = "the role may not create a schema in this database: GRANT CREATE ON DATABASE ... TO it, or use another role \
                      (OUTBOX_RELAY__POSTGRES__URL)";

/// The comment by which a later run recognizes the schema.
const MARK: &str = "made by `outbox-bench`, which also drops it";

/// The lock is held in an open transaction, which also works through a pooler, and ends with the connection. The
/// transaction has no snapshot and no transaction id, so it does not hold vacuum back.
const HOLD: &str = "
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SET LOCAL idle_in_transaction_session_timeout = 0;
SELECT set_config(name, '0', true) FROM pg_settings WHERE name = 'transaction_timeout'";
const LOCK: &str = "SELECT pg_try_advisory_xact_lock(hashtextextended('outbox-bench ' || $1, 0))";

const PUBLICATIONS: &str =
    "SELECT pubname::text FROM pg_publication WHERE puballtables ORDER BY pubname LIMIT 1";

const CREATE: &str = "
CREATE SCHEMA {schema};
COMMENT ON SCHEMA {schema} IS 'made by `outbox-bench`, which also drops it';
CREATE TABLE {schema}.bench_topic (name text PRIMARY KEY, bootstrap_servers text NOT NULL)";

const NOTE_TOPIC: &str = "INSERT INTO {schema}.bench_topic (name, bootstrap_servers) VALUES ($1, $2)";
const FORGET_TOPIC: &str = "DELETE FROM {schema}.bench_topic WHERE name = $1";
const TOPICS: &str = "SELECT name, bootstrap_servers FROM {schema}.bench_topic ORDER BY name";

const FIND: &str = "
SELECT nspname::text
FROM pg_namespace
WHERE nspname ~ '^outbox_bench_[0-9a-f]{8}$'
    AND obj_description(oid, 'pg_namespace') = $1
    AND nspowner = (SELECT oid FROM pg_roles WHERE rolname = current_user)
ORDER BY nspname";

/// First ends what an interrupted run has left running, such as a VACUUM.
const DROP: &str = "
SELECT pg_terminate_backend(a.pid)
FROM pg_stat_activity a
WHERE a.usename = current_user
    AND a.pid <> pg_backend_pid()
    AND EXISTS (
        SELECT FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
        WHERE l.pid = a.pid AND a.datname = current_database() AND c.relnamespace = '{schema}'::regnamespace
    );
BEGIN;
SET LOCAL lock_timeout = '10s';
SET LOCAL statement_timeout = 0;
SET LOCAL client_min_messages = warning;
DROP SCHEMA {schema} CASCADE;
COMMIT";

/// The scratch schema while this run owns it.
pub struct Schema {
    database: Database,
    pub name: String,
    /// Holds the lock.
    holder: Object,
}

/// What a killed run has left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    pub schema: String,
    /// Its topics, each with its cluster.
    pub topics: Vec<(String, String)>,
}

impl Schema {
    /// Creates the schema and the outbox in it. If this fails, nothing is left behind.
    pub async fn create(database: Database, name: String) -> Result<Schema, BenchError> {
        let holder = database.get().await?;
        hold(&holder, &name).await?;
        let schema = Schema { database, name, holder };
        let client = schema.database.get().await?;
        let published = client.query_typed(PUBLICATIONS, &[]).await;
        let published = published.map_err(|error| fault("reading the publications", error))?;
        if let Some(publication) = published.first() {
            return Err(BenchError::Configuration(format!(
                "The publication {} publishes all tables. Its subscribers would get the tables of the benchmark, and would stop \
                 if they lack them. Create another database on this server, and set OUTBOX_RELAY__POSTGRES__URL to it.",
                publication.get::<_, String>(0)
            )));
        }
        let created = client.batch_execute(&render(CREATE, &schema.name)).await;
        created.map_err(|error| match error.code() {
            Some(&SqlState::INSUFFICIENT_PRIVILEGE) => BenchError::Configuration(DENIED.to_owned()),
            _ => fault("creating the scratch schema", error).into(),
        })?;
        drop(client);
        match schema.migrate().await {
            Ok(()) => Ok(schema),
            Err(error) => {
                let database = schema.database.clone();
                schema.drop(&database).await?;
                Err(error)
            }
        }
    }

    async fn migrate(&self) -> Result<(), BenchError> {
        let mut client = self.database.get().await?;
        let migrated = migrate::apply(&mut client, &self.outbox()).await;
        migrated.map(|_| ()).map_err(|error| {
            BenchError::Configuration(match error {
                MigrateError::Server { source, .. } => format!("creating the scratch outbox: {source}"),
                error => error.to_string(),
            })
        })
    }

    pub fn outbox(&self) -> TableName {
        TableName::new(&self.name, "outbox").unwrap_or_else(|_| unreachable!("the name is ours"))
    }

    /// Records a topic before it is created, so that a later run can delete it.
    pub async fn note_topic(&self, topic: &str, bootstrap_servers: &str) -> Result<(), PostgresFault> {
        self.execute("noting a scratch topic", NOTE_TOPIC, &[&topic, &bootstrap_servers]).await
    }

    /// Removes the record of a deleted topic.
    pub async fn forget_topic(&self, topic: &str) -> Result<(), PostgresFault> {
        self.execute("forgetting a scratch topic", FORGET_TOPIC, &[&topic]).await
    }

    async fn execute(
        &self,
        doing: &'static str,
        sql: &str,
        texts: &[&(dyn ToSql + Sync)],
    ) -> Result<(), PostgresFault> {
        let texts: Vec<_> = texts.iter().map(|text| (*text, Type::TEXT)).collect();
        let executed = self.database.get().await?.execute_typed(&render(sql, &self.name), &texts).await;
        executed.map(|_| ()).map_err(|error| fault(doing, error))
    }

    /// Drops the schema and everything in it, using another pool. Connections of the old pool may still run abandoned
    /// statements, which only closing them ends.
    pub async fn drop(self, fresh: &Database) -> Result<(), PostgresFault> {
        let Schema { database, name, holder } = self;
        // Not returned to the pool, where it would be reused with its open transaction.
        drop(Object::take(holder));
        drop(database);
        drop_schema(fresh, &name).await
    }
}

/// The leftovers of runs that are no longer active.
pub async fn leftovers(database: &Database) -> Result<Vec<Leftover>, PostgresFault> {
    const DOING: &str = "looking for what earlier runs left behind";
    let client = database.get().await?;
    let found =
        client.query_typed(FIND, &[(&MARK, Type::TEXT)]).await.map_err(|error| fault(DOING, error))?;
    let mut leftovers = Vec::new();
    for row in &found {
        let schema: String = row.get(0);
        let holder = database.get().await?;
        let free = hold(&holder, &schema).await;
        drop(Object::take(holder));
        if !free? {
            continue;
        }
        let topics = client.query_typed(&render(TOPICS, &schema), &[]).await;
        // The run may have been killed before the table existed, or another run may be dropping the schema.
        let topics = topics.unwrap_or_default().iter().map(|row| (row.get(0), row.get(1))).collect();
        leftovers.push(Leftover { schema, topics });
    }
    Ok(leftovers)
}

/// Begins a transaction and takes the lock in it. False if another run holds it.
async fn hold(holder: &Object, schema: &str) -> Result<bool, PostgresFault> {
    const DOING: &str = "locking the scratch schema";
    holder.batch_execute(HOLD).await.map_err(|error| fault(DOING, error))?;
    let locked = holder.query_typed_one(LOCK, &[(&schema, Type::TEXT)]).await;
    let locked = locked.map_err(|error| fault(DOING, error))?.get(0);
    // The finished portal of the extended protocol keeps its snapshot until the next statement. It would hold vacuum back for
    // the whole measurement.
    holder.batch_execute("SELECT 1").await.map_err(|error| fault(DOING, error))?;
    Ok(locked)
}

/// Drops a schema in which no run is active.
pub async fn drop_schema(database: &Database, name: &str) -> Result<(), PostgresFault> {
    let client = database.get().await?;
    let dropped = client.batch_execute(&render(DROP, name)).await;
    if dropped.is_err() {
        drop(Object::take(client));
    }
    dropped.map_err(|error| fault("dropping the scratch schema", error))
}

fn render(sql: &str, schema: &str) -> String {
    sql.replace("{schema}", &quote_identifier(schema))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schema_is_created_with_the_name_and_mark_by_which_it_is_found() {
        assert!(CREATE.contains(&format!("COMMENT ON SCHEMA {{schema}} IS '{MARK}'")));
        assert!(FIND.contains(&format!("'^{PREFIX}[0-9a-f]{{8}}$'")));
    }
}
