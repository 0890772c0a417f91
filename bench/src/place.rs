//! Where measurements take place: a scratch schema in the user's database and scratch topics on the user's cluster.
//! Nothing else is read or written, and both are removed at the end.

use crate::error::BenchError;
use crate::kafka::topics::Topics;
use crate::postgres::about::Server;
use crate::postgres::load::{self, Prepared, Shape};
use crate::postgres::schema::{PREFIX, Schema};
use crate::processes::parties::{self, Parties};
use crate::settings::Settings;
use crate::site::Site;
use outbox_relay::config::{self, Config};
use outbox_relay::postgres::connection::connect::Database;
use outbox_relay::postgres::cycle::statements::Statements;
use outbox_relay::postgres::payload::PayloadType;
use outbox_relay::postgres::table::TableName;
use outbox_relay::relay::failure::{FailureKind, KafkaFailure};
use outbox_relay::relay::health::stats::Stats;
use pg_outbox::topic::TopicTemplate;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// librdkafka's `message.max.bytes`. The rows of measurements are much smaller.
pub const RECORD_BYTES_MAX: i32 = 1_000_000;

/// A scratch schema and its topics.
pub struct Place {
    settings: Settings,
    config: Config,
    database: Database,
    schema: Schema,
    topics: Topics,
    /// Topics that exist or may exist.
    made: RefCell<Vec<String>>,
    /// The number of routes so far, so that no name is used twice, because Kafka deletes topics asynchronously.
    routes: Cell<u32>,
    server: Server,
    parties: Parties,
}

/// The topics of one measurement.
#[derive(Clone, Debug)]
pub struct Route {
    template: TopicTemplate,
    /// Their names, in the order of [`Shape::kinds`].
    pub topics: Vec<String>,
    /// The number of partitions of each topic.
    pub partitions: i32,
}

impl Place {
    /// Connects and creates the schema.
    ///
    /// # Errors
    ///
    /// As for [`Site::connect`] and [`Place::make`].
    pub async fn create(settings: Settings) -> Result<Place, BenchError> {
        Place::make(Site::connect(settings).await?).await
    }

    /// Creates the schema. Topics are created when they are needed. Do not drop the future early: a schema that is
    /// created at that moment would be left behind.
    ///
    /// # Errors
    ///
    /// If the role may not create a schema, or if PostgreSQL fails.
    pub async fn make(site: Site) -> Result<Place, BenchError> {
        let Site { settings, config, database, topics, server } = site;
        let name = format!("{PREFIX}{:08x}", fastrand::u32(..));
        let schema = Schema::create(database.clone(), name).await?;
        let settings = settings
            .with("outbox", "table", schema.outbox().to_string())
            .with("outbox", "topic_allow", "") // the scratch outbox has no column topic
            .with("outbox", "headers__event_id", "{event_id}") // the checker reads it
            .with("outbox", "headers__event_type", "{event_type}")
            .with("postgres", "application_name", "outbox-bench")
            .with("admin", "listen", "127.0.0.1:0")
            .with("log", "level", "info")
            .with("log", "format", "text");
        let parties = parties::find(&server, &config.kafka.bootstrap_servers);
        let (made, routes) = (RefCell::default(), Cell::new(0));
        Ok(Place { settings, config, database, schema, topics, made, routes, server, parties })
    }

    /// The user's configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The settings of a relay for this outbox, without the topic.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Connections for the measuring side.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// The name of the schema.
    pub fn schema(&self) -> &str {
        self.schema.name()
    }

    /// The scratch outbox.
    pub fn table(&self) -> TableName {
        self.schema.outbox()
    }

    /// The statements of a measured relay. Apart from constants, they are the same for every route.
    ///
    /// # Errors
    ///
    /// If the topic of the user's configuration cannot be changed to a scratch topic.
    pub fn statements(&self) -> Result<Statements, BenchError> {
        let outbox = &self.config.outbox;
        let template = scratch_template(&outbox.topic, self.schema.name(), 0)?;
        Ok(Statements::new(&self.table(), PayloadType::Json, outbox.on_sent, &template, RECORD_BYTES_MAX))
    }

    /// The client for topics.
    pub fn topics(&self) -> &Topics {
        &self.topics
    }

    /// The facts about the server.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The processes of PostgreSQL and Kafka, if they are visible.
    pub fn parties(&self) -> &Parties {
        &self.parties
    }

    /// Creates the topics of a measurement. They are new, so that each measurement starts with empty topics.
    ///
    /// # Errors
    ///
    /// If Kafka refuses to create them.
    pub async fn route(&self, shape: &Shape, partitions: i32) -> Result<Route, BenchError> {
        let number = self.routes.replace(self.routes.get() + 1);
        let template = scratch_template(&self.config.outbox.topic, self.schema.name(), number)?;
        let topics: Vec<String> = shape.kinds().iter().map(|kind| template.topic(kind, "")).collect();
        for topic in &topics {
            self.schema.note_topic(topic, &self.config.kafka.bootstrap_servers).await?;
            self.made.borrow_mut().push(topic.clone());
        }
        self.topics.create(&topics, partitions).await.map_err(refused)?;
        Ok(Route { template, topics, partitions })
    }

    /// Deletes the topics of a measurement.
    ///
    /// # Errors
    ///
    /// If Kafka does not delete them. They stay recorded, and [`Place::remove`] tries again.
    pub async fn close(&self, route: Route) -> Result<(), BenchError> {
        self.topics.delete(&route.topics).await?;
        for topic in &route.topics {
            self.schema.forget_topic(topic).await?;
            self.made.borrow_mut().retain(|known| known != topic);
        }
        Ok(())
    }

    /// Empties the outbox, inserts a load, and runs the maintenance that a server would have done by then. No relay may
    /// run here.
    ///
    /// # Errors
    ///
    /// If PostgreSQL fails.
    pub async fn fill(&self, shape: &Shape) -> Result<Prepared, BenchError> {
        let table = self.table();
        load::empty(&self.database, &table).await?;
        load::fill(&self.database, &table, shape).await?;
        Ok(load::prepare(&self.database, &table).await?)
    }

    /// The number of unsent rows.
    ///
    /// # Errors
    ///
    /// If PostgreSQL fails.
    pub async fn unsent(&self) -> Result<i64, BenchError> {
        Ok(load::unsent(&self.database, &self.table()).await?)
    }

    /// Deletes the topics and drops the schema. The measured program must have ended.
    ///
    /// # Errors
    ///
    /// If something is left. The error names it, and the next run removes it.
    pub async fn remove(self) -> Result<(), BenchError> {
        let Place { config, database, schema, topics, made, .. } = self;
        // Connections may still run abandoned statements, which only closing the connections ends.
        drop(database);
        let name = schema.name().to_owned();
        topics.delete(&made.into_inner()).await.map_err(|failure| {
            BenchError::Subject(format!("topics of schema {name} are left, and so is the schema: {failure}"))
        })?;
        let fresh = open(&config.postgres, 1)?;
        let dropped = schema.drop(&fresh).await;
        dropped.map_err(|fault| BenchError::Subject(format!("the schema {name} is left: {fault}")))
    }
}

impl Route {
    /// The `[outbox] topic` of a relay.
    pub fn template(&self) -> String {
        self.template.to_string()
    }

    /// The parsed template.
    pub fn parsed(&self) -> &TopicTemplate {
        &self.template
    }
}

/// A cluster that refuses a topic needs a different fix from one that does not answer.
fn refused(failure: KafkaFailure) -> BenchError {
    match failure.kind {
        FailureKind::Topic => BenchError::Configuration(format!(
            "{failure}: the Kafka user needs permission to create, write, read and delete the scratch topics"
        )),
        _ => BenchError::Kafka(failure),
    }
}

pub(super) fn open(settings: &config::Postgres, connections: usize) -> Result<Database, BenchError> {
    Ok(Database::new(settings, connections, Arc::new(Stats::new()))?)
}

/// Starts like the user's topics, because permissions are often granted by prefix.
fn scratch_template(
    template: &TopicTemplate,
    schema: &str,
    number: u32,
) -> Result<TopicTemplate, BenchError> {
    // Scratch topics are by aggregate type, so that their number is known.
    let (prefix, suffix) = (template.prefix(), template.suffix());
    let dot = if template.is_constant() { "." } else { "" };
    let text = format!("{prefix}{dot}{schema}.{number}.{{aggregate_type}}{suffix}");
    TopicTemplate::parse(&text).map_err(|error| {
        BenchError::Configuration(format!("cannot derive a scratch topic from [outbox] topic: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_topics_start_like_the_users_topics() {
        let topic = |template: &str| {
            let template = TopicTemplate::parse(template).unwrap();
            scratch_template(&template, "outbox_bench_0123abcd", 2).unwrap().topic("order", "")
        };
        assert_eq!(topic("events.{aggregate_type}"), "events.outbox_bench_0123abcd.2.order");
        assert_eq!(topic("a-{aggregate_type}.v1"), "a-outbox_bench_0123abcd.2.order.v1");
        assert_eq!(topic("a.{event_type}.{aggregate_type}"), "a.outbox_bench_0123abcd.2.order");
        assert_eq!(topic("everything"), "everything.outbox_bench_0123abcd.2.order");
    }
}
