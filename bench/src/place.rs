//! Where measurements take place: a scratch schema in the user's database and scratch topics on the user's cluster.
//! Nothing else is read or written, and both are removed at the end.

use crate::BenchError;
use crate::load::{self, Shape};
use crate::relay::Subject;
use crate::schema::{self, Leftover, PREFIX, Schema};
use crate::server::{self, Server};
use crate::settings::Settings;
use crate::topics::Topics;
use crate::usage::{Parties, Party};
use outbox_relay::config::{self, Config};
use outbox_relay::postgres::columns::PayloadType;
use outbox_relay::postgres::connection::pool::Database;
use outbox_relay::postgres::cycle::statements::Statements;
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
    /// The user's configuration.
    pub(crate) config: Config,
    /// The settings of a relay for this outbox, without the topic.
    pub(crate) settings: Settings,
    /// Connections for the measuring side.
    pub(crate) database: Database,
    pub(crate) server: Server,
    /// The processes of PostgreSQL and Kafka, if they are visible.
    pub(crate) parties: Parties,
    pub(crate) topics: Topics,
    schema: Schema,
    /// Topics that exist or may exist.
    made: RefCell<Vec<String>>,
    /// The number of routes so far, so that no name is used twice, because Kafka deletes topics asynchronously.
    routes: Cell<u32>,
}

/// The topics of one measurement, and the rows that are published to them.
pub(crate) struct Route<'a> {
    pub place: &'a Place,
    pub shape: Shape,
    /// The `[outbox] topic` of a relay.
    pub template: TopicTemplate,
    pub topics: Vec<String>,
    pub partitions: i32,
}

impl Place {
    /// Connects and creates the schema.
    pub async fn create(settings: Settings) -> Result<Place, BenchError> {
        Place::make(Site::connect(settings).await?).await
    }

    /// Creates the schema. Topics are created when they are needed. Do not drop the future early: a schema that is
    /// created at that moment would be left behind.
    pub(crate) async fn make(site: Site) -> Result<Place, BenchError> {
        let Site { settings, config, database, topics, server } = site;
        let name = format!("{PREFIX}{:08x}", fastrand::u32(..));
        let schema = Schema::create(database.clone(), name).await?;
        let settings = settings
            .with("outbox", "table", schema.outbox().to_string())
            .with("outbox", "topic_allow", "") // the scratch outbox has no column topic
            .with("outbox", "headers__event_id", "{event_id}") // the checker reads it
            .with("outbox", "headers__event_type", "{event_type}")
            .with("postgres", "application_name", "outbox-bench relay")
            .with("admin", "listen", "127.0.0.1:0")
            .with("log", "level", "info")
            .with("log", "format", "text");
        // The columns of the scratch outbox have their standard names.
        let renamed = config.outbox.table.columns().renamed();
        let settings = renamed.fold(settings, |settings, (column, _)| {
            settings.with("outbox", &format!("columns__{}", column.name()), column.name())
        });
        let parties = Parties::find(&server, &config.kafka.bootstrap_servers);
        let (made, routes) = (RefCell::default(), Cell::new(0));
        Ok(Place { config, settings, database, server, parties, topics, schema, made, routes })
    }

    pub(crate) fn schema(&self) -> &str {
        &self.schema.name
    }

    /// The scratch outbox.
    pub fn table(&self) -> TableName {
        self.schema.outbox()
    }

    /// The statements of a measured relay. Apart from constants, they are the same for every route.
    pub(crate) fn statements(&self) -> Result<Statements, BenchError> {
        let outbox = &self.config.outbox;
        let template = scratch_template(&outbox.topic, &self.schema.name, 0)?;
        Ok(Statements::new(&self.table(), PayloadType::Json, outbox.on_sent, template, RECORD_BYTES_MAX))
    }

    /// The subject, and the servers if their processes are visible.
    pub(crate) fn watched(&self, subject: &impl Subject) -> Vec<Party> {
        let mut parties = vec![subject.party()];
        parties.extend(self.parties.visible());
        parties
    }

    /// Creates the topics of a measurement. They are new, so that each measurement starts with empty topics.
    pub(crate) async fn route(&self, shape: &Shape, partitions: i32) -> Result<Route<'_>, BenchError> {
        let number = self.routes.replace(self.routes.get() + 1);
        let template = scratch_template(&self.config.outbox.topic, &self.schema.name, number)?;
        let topics: Vec<String> = shape.kinds().iter().map(|kind| template.topic(kind, "")).collect();
        for topic in &topics {
            self.schema.note_topic(topic, &self.config.kafka.bootstrap_servers).await?;
            self.made.borrow_mut().push(topic.clone());
        }
        self.topics.create(&topics, partitions).await.map_err(refused)?;
        Ok(Route { place: self, shape: *shape, template, topics, partitions })
    }

    pub(crate) async fn empty(&self) -> Result<(), BenchError> {
        Ok(load::empty(&self.database, &self.table()).await?)
    }

    /// Empties the outbox and inserts a load. No relay may run here.
    pub async fn fill(&self, shape: &Shape) -> Result<(), BenchError> {
        self.empty().await?;
        self.add(shape).await
    }

    /// Inserts a load, and does the maintenance that a server would have done by then.
    pub(crate) async fn add(&self, shape: &Shape) -> Result<(), BenchError> {
        let table = self.table();
        load::fill(&self.database, &table, shape).await?;
        Ok(load::prepare(&self.database, &table).await?)
    }

    /// Deletes the topics and drops the schema. The measured program must have ended. If something is left, the error
    /// names it, and the next run removes it.
    pub async fn remove(self) -> Result<(), BenchError> {
        let Place { config, database, schema, topics, made, .. } = self;
        // Connections may still run abandoned statements, which only closing the connections ends.
        drop(database);
        let name = schema.name.clone();
        topics.delete(&made.into_inner()).await.map_err(|failure| {
            BenchError::Subject(format!("topics of schema {name} are left, and so is the schema: {failure}"))
        })?;
        let fresh = open(&config.postgres, 1)?;
        let dropped = schema.drop(&fresh).await;
        dropped.map_err(|fault| BenchError::Subject(format!("the schema {name} is left: {fault}")))
    }
}

impl Route<'_> {
    /// The number of records in the topics.
    pub async fn arrived(&self) -> Result<u64, BenchError> {
        Ok(self.place.topics.ends(&self.topics, self.partitions).await?)
    }

    /// Deletes the topics. If Kafka does not delete them, [`Place::remove`] tries again.
    pub async fn close(self) -> Result<(), BenchError> {
        self.place.topics.delete(&self.topics).await?;
        for topic in &self.topics {
            self.place.schema.forget_topic(topic).await?;
            self.place.made.borrow_mut().retain(|known| known != topic);
        }
        Ok(())
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

fn open(settings: &config::Postgres, connections: usize) -> Result<Database, BenchError> {
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

/// The number of connections of the measuring side, in addition to those of writers.
const CONNECTIONS: usize = 8;

/// A reachable database and cluster. Nothing has been created yet.
pub(crate) struct Site {
    settings: Settings,
    config: Config,
    pub(crate) database: Database,
    topics: Topics,
    server: Server,
}

impl Site {
    /// Connects to both without creating anything.
    pub async fn connect(settings: Settings) -> Result<Site, BenchError> {
        // `status` would count connections with the configured name as relays.
        let settings = settings.with("postgres", "application_name", "outbox-bench");
        let config = settings.load()?;
        let database = open(&config.postgres, CONNECTIONS)?;
        let topics = Topics::new(&config.kafka)?;
        topics.reach().await?;
        let server = server::ask(&database).await?;
        Ok(Site { settings, config, database, topics, server })
    }

    /// What killed runs have left behind.
    pub async fn leftovers(&self) -> Result<Vec<Leftover>, BenchError> {
        Ok(schema::leftovers(&self.database).await?)
    }

    /// Removes what a killed run has left behind: its topics, if their names are ones that it would choose, and then its
    /// schema. If there are topics on another cluster, the schema is kept, because it records them.
    pub async fn remove(&self, leftover: &Leftover) -> Result<(), BenchError> {
        let here = &self.config.kafka.bootstrap_servers;
        if let Some((topic, cluster)) = leftover.topics.iter().find(|(_, cluster)| cluster != here) {
            return Err(BenchError::Configuration(format!(
                "schema {} has the topic {topic} on {cluster}, which is not the configured cluster, so it was not removed",
                leftover.schema
            )));
        }
        let ours = |topic: &&String| topic.contains(&leftover.schema);
        let topics: Vec<String> =
            leftover.topics.iter().map(|(topic, _)| topic).filter(ours).cloned().collect();
        self.topics.delete(&topics).await?;
        Ok(schema::drop_schema(&self.database, &leftover.schema).await?)
    }
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
