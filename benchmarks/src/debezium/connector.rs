//! The settings of the connector: everything we found that makes it faster without weaker guarantees than the relay's.

use super::tuning::Tuning;
use anyhow::{Context, bail};
use serde_json::{Value, json};
use tokio_postgres::config::Host;

/// The columns that become a record. PostgreSQL does not send the others, so Debezium does not decode them.
const COLUMNS: [&str; 6] = ["id", "event_id", "aggregate_type", "aggregate_id", "event_type", "payload"];

/// Where events come from and where they go.
pub struct Source<'a> {
    /// The database's URL.
    pub postgres: &'a str,
    pub schema: &'a str,
    /// The name of the outbox table.
    pub table: &'a str,
    /// The relay's topic template.
    pub topic: &'a str,
}

/// The publication, which has the same name as the connector. It contains only inserts and the needed columns.
pub fn create_publication(name: &str, source: &Source<'_>, tuning: Tuning) -> String {
    let columns = if tuning.needed_columns { format!(" ({})", COLUMNS.join(", ")) } else { String::new() };
    let Source { schema, table, .. } = source;
    format!("CREATE PUBLICATION {name} FOR TABLE {schema}.{table}{columns} WITH (publish = 'insert')")
}

/// The connector's settings. The slot and the publication have the same name as the connector.
pub fn settings(name: &str, source: &Source<'_>, tuning: Tuning) -> anyhow::Result<Value> {
    let (host, port, user, database) = parts(source.postgres)?;
    let (schema, table) = (source.schema, source.table);
    let columns = if tuning.needed_columns { COLUMNS.join("|") } else { ".*".to_owned() };
    Ok(json!({
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "database.hostname": host,
        "database.port": port.to_string(),
        "database.user": user,
        "database.password": "",
        "database.dbname": database,
        "topic.prefix": name,
        "plugin.name": "pgoutput",
        "slot.name": name,
        "publication.name": name,
        "publication.autocreate.mode": "disabled",
        "table.include.list": format!("{schema}.{table}"),
        "column.include.list": format!("{schema}.{table}.({columns})"),
        "snapshot.mode": "no_data",
        "tombstones.on.delete": "false",

        "max.batch.size": tuning.batch_rows.to_string(),
        "max.queue.size": (tuning.batch_rows * 4).to_string(),
        "poll.interval.ms": "5",
        "statistics.metrics.enabled": "false",
        "extended.headers.enabled": "false",

        "transforms": "outbox",
        "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
        "transforms.outbox.table.field.event.id": "event_id",
        "transforms.outbox.table.field.event.key": "aggregate_id",
        "transforms.outbox.table.field.event.payload": "payload",
        "transforms.outbox.table.fields.additional.placement": "event_type:header:event_type",
        "transforms.outbox.route.by.field": "aggregate_type",
        "transforms.outbox.route.topic.replacement": source.topic.replace("{aggregate_type}", "${routedByValue}"),

        "producer.override.acks": "all",
        "producer.override.enable.idempotence": "true",
        "producer.override.compression.type": "lz4",
        "producer.override.batch.size": "262144",
        "producer.override.linger.ms": tuning.linger_ms.to_string(),
        "producer.override.buffer.memory": "67108864",
    }))
}

/// Host, port, user and database.
fn parts(url: &str) -> anyhow::Result<(String, u16, String, String)> {
    let config: tokio_postgres::Config = url.parse()?;
    let [Host::Tcp(host)] = config.get_hosts() else {
        bail!("Debezium needs one host in the database's URL")
    };
    let port = config.get_ports().first().copied().unwrap_or(5_432);
    let user = config.get_user().context("Debezium needs a user in the database's URL")?;
    let database = config.get_dbname().unwrap_or(user);
    Ok((host.clone(), port, user.to_owned(), database.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: Source<'_> = Source {
        postgres: "postgres://postgres@127.0.0.1:25432/app",
        schema: "scratch",
        table: "outbox",
        topic: "bench.1.{aggregate_type}",
    };

    #[test]
    fn the_settings_name_the_database_the_table_and_the_topics() {
        let settings = settings("d1", &SOURCE, Tuning { batch_rows: 4_096, ..Tuning::DEFAULT }).unwrap();
        let text = |key: &str| settings[key].as_str().unwrap().to_owned();
        assert_eq!(text("database.hostname"), "127.0.0.1");
        assert_eq!(text("database.port"), "25432");
        assert_eq!(text("database.dbname"), "app");
        assert_eq!(text("table.include.list"), "scratch.outbox");
        assert_eq!(text("transforms.outbox.route.topic.replacement"), "bench.1.${routedByValue}");
        assert_eq!((text("max.batch.size"), text("max.queue.size")), ("4096".into(), "16384".into()));
    }

    #[test]
    fn the_publication_has_the_columns_that_are_published() {
        assert_eq!(
            create_publication("d1", &SOURCE, Tuning::DEFAULT),
            "CREATE PUBLICATION d1 FOR TABLE scratch.outbox \
             (id, event_id, aggregate_type, aggregate_id, event_type, payload) WITH (publish = 'insert')"
        );
    }
}
