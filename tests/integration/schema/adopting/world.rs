//! A table of events that existed before the relay, with names that are standard names of other columns, keywords, or need
//! quotes.

use outbox_relay::config::{Column, Columns};
use postgres::table::TableName;
use std::ops::Range;
use tokio_postgres::Client;

use crate::support::checker::{Committed, Report};
use crate::support::command::Ended;
use crate::support::consumer;
use crate::support::database::{Database, run};
use crate::support::relay::Relay;
use crate::support::roles::Roles;
use crate::support::topics::Cluster;
use crate::support::wait::{STALLED, wait_until};

/// Every column has another name. No index finds rows by their number.
pub const TABLE: &str = "
CREATE SCHEMA app;
CREATE TABLE app.events (
    \"seq no\"       bigserial,
    id             uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    topic          varchar(100) NOT NULL,
    \"Key\"          text,
    type           text NOT NULL,
    \"user\"         json,
    meta           jsonb,
    sent_at        timestamptz NOT NULL DEFAULT now(),
    \"published at\" timestamptz,
    note           text NOT NULL DEFAULT ''
)";

pub const NAMES: [(&str, &str); 9] = [
    ("id", "seq no"),
    ("event_id", "id"),
    ("aggregate_type", "topic"),
    ("aggregate_id", "Key"),
    ("event_type", "type"),
    ("payload", "user"),
    ("headers", "meta"),
    ("created_at", "sent_at"),
    ("sent_at", "published at"),
];

/// The same rows with the standard names, for the statements of the tests.
const VIEW: &str = "
CREATE VIEW app.event AS
SELECT \"seq no\" AS id, id AS event_id, topic AS aggregate_type, \"Key\" AS aggregate_id, type AS event_type,
       \"user\" AS payload, meta AS headers, sent_at AS created_at, \"published at\" AS sent_at
FROM app.events;
CREATE TABLE app.ledger (event_id uuid, kind text, key text, seq bigint, value text)";

/// A database with a table of events.
pub struct World {
    pub database: Database,
    pub client: Client,
    pub roles: Option<Roles>,
    pub cluster: Cluster,
    names: Vec<(String, String)>,
    topics: Vec<String>,
}

/// The table with these names of its columns.
pub fn table(names: &[(&str, &str)]) -> TableName {
    let column = |name: &str| Column::ALL.into_iter().find(|column| column.name() == name).unwrap();
    let names = names.iter().map(|(standard, name)| (column(standard), (*name).to_owned()));
    TableName::new("app", "events").unwrap().with_columns(Columns::new(names))
}

impl World {
    /// A database with this table, and a configuration with these names.
    pub async fn with(test: &str, sql: &str, names: &[(&str, &str)]) -> World {
        let database = Database::create(test).await;
        let client = database.connect().await;
        run(&client, sql).await;
        let names = names.iter().map(|(standard, name)| ((*standard).to_owned(), (*name).to_owned()));
        World {
            database,
            client,
            roles: None,
            cluster: Cluster::shared(),
            names: names.collect(),
            topics: Vec::new(),
        }
    }

    /// The adopted table, with the roles.
    pub async fn adopted(test: &str) -> World {
        let mut world = World::with(test, &format!("{TABLE};{VIEW}"), &NAMES).await;
        world.migrate(&["--adopt", "app.events", "--apply"]).succeeds();
        world.roles = Some(Roles::create(&world.client, &table(&NAMES)).await);
        world
    }

    /// The configuration of the owner of the table.
    pub fn owner(&self) -> Relay {
        let relay = Relay::new()
            .set("postgres", "url", self.database.url())
            .set("kafka", "bootstrap_servers", self.cluster.bootstrap.clone())
            .set("outbox", "table", "app.events")
            .set("outbox", "topic", format!("{}{{aggregate_type}}", self.prefix()))
            .set("admin", "listen", "off")
            .set("log", "level", "info,outbox_relay=debug")
            .set("log", "format", "text");
        self.names.iter().fold(relay, |relay, (standard, name)| {
            relay.set_inner("outbox", "columns", standard, name.as_str())
        })
    }

    /// The same, with the relay's own role.
    pub fn relay(&self) -> Relay {
        self.owner().set("postgres", "url", self.database.url_of(self.roles.as_ref().unwrap().relay()))
    }

    /// The same, with the role of an operator.
    pub fn operator(&self) -> Relay {
        self.owner().set("postgres", "url", self.database.url_of(&self.roles.as_ref().unwrap().on_call()))
    }

    pub fn migrate(&self, args: &[&str]) -> Ended {
        self.owner().command(&[&["migrate"], args].concat())
    }

    fn prefix(&self) -> String {
        format!("{}.", self.database.name())
    }

    pub fn topic(&self, kind: &str) -> String {
        format!("{}{kind}", self.prefix())
    }

    pub async fn create_topic(&mut self, kind: &str, partitions: i32, settings: &[(&str, &str)]) {
        self.cluster.create(&self.topic(kind), partitions, settings).await;
        self.topics.push(kind.to_owned());
    }

    /// Inserts numbered events of 20 keys. The filling makes the event larger.
    pub async fn insert(&self, kind: &str, numbers: Range<i64>, filling: i32) {
        let sql = "WITH event AS (
                       INSERT INTO app.event (aggregate_type, aggregate_id, event_type, payload)
                       SELECT $1::text, $1::text || '-' || n % 20, 'Numbered',
                              json_build_object('seq', n, 'filling', (SELECT string_agg(md5(n::text || i), '')
                                                                      FROM generate_series(1, $4) AS i))
                       FROM generate_series($2::bigint, $3::bigint - 1) AS n
                       ORDER BY n
                       RETURNING event_id, aggregate_type, aggregate_id, payload
                   )
                   INSERT INTO app.ledger (event_id, kind, key, seq, value)
                   SELECT event_id, aggregate_type, aggregate_id, (payload ->> 'seq')::bigint, payload::text FROM event";
        self.client.execute(sql, &[&kind, &numbers.start, &numbers.end, &filling]).await.unwrap();
    }

    pub async fn count(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
    }

    pub async fn unsent(&self) -> i64 {
        self.count("SELECT count(*) FROM app.event WHERE sent_at IS NULL").await
    }

    /// Waits until this number of events is unsent.
    pub async fn wait_for_unsent(&self, expected: i64) {
        let what = format!("{expected} events are unsent");
        wait_until(&what, STALLED, async || self.unsent().await == expected).await;
    }

    /// Compares the ledger with the records.
    pub async fn check(&self) -> Report {
        let sql = "SELECT event_id, kind, key, seq, value FROM app.ledger";
        let committed = self.client.query(sql, &[]).await.unwrap();
        let committed = committed.iter().map(|row| Committed {
            event_id: row.get(0),
            topic: self.topic(row.get(1)),
            key: row.get(2),
            seq: row.get(3),
            value: row.get(4),
        });
        let topics: Vec<String> = self.topics.iter().map(|kind| self.topic(kind)).collect();
        Report::new(&committed.collect::<Vec<_>>(), &consumer::read_all_of(&self.cluster, &topics).await)
    }

    /// For the end of a passed test.
    pub async fn drop(self) {
        for kind in &self.topics {
            self.cluster.delete(&self.topic(kind)).await;
        }
        drop(self.client);
        match &self.roles {
            Some(roles) => self.database.clone().drop_with_roles(roles).await,
            None => self.database.clone().drop(&[]).await,
        }
    }
}
