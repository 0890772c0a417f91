//! The database and the cluster before anything is created, and what killed runs have left in them.

use crate::error::BenchError;
use crate::kafka::topics::Topics;
use crate::place::open;
use crate::postgres::about::{self, Server};
use crate::postgres::schema::{self, Leftover};
use crate::settings::Settings;
use outbox_relay::config::Config;
use outbox_relay::postgres::connection::pool::Database;

/// The number of connections of the measuring side, in addition to those of writers.
const CONNECTIONS: usize = 8;

/// A reachable database and cluster. Nothing has been created yet.
pub struct Site {
    pub(super) settings: Settings,
    pub(super) config: Config,
    pub(super) database: Database,
    pub(super) topics: Topics,
    pub(super) server: Server,
}

impl Site {
    /// Connects to both without creating anything.
    ///
    /// # Errors
    ///
    /// If the settings are invalid, or if PostgreSQL or Kafka is unreachable.
    pub async fn connect(settings: Settings) -> Result<Site, BenchError> {
        let config = settings.load()?;
        let database = open(&config.postgres, CONNECTIONS)?;
        let topics = Topics::new(&config.kafka)?;
        topics.names().await?;
        let server = about::ask(&database).await?;
        Ok(Site { settings, config, database, topics, server })
    }

    /// What killed runs have left behind.
    ///
    /// # Errors
    ///
    /// If PostgreSQL fails.
    pub async fn leftovers(&self) -> Result<Vec<Leftover>, BenchError> {
        Ok(schema::leftovers(&self.database).await?)
    }

    /// Removes what a killed run has left behind: its topics, if their names are ones that it would choose, and then
    /// its schema.
    ///
    /// # Errors
    ///
    /// If PostgreSQL or Kafka fails, or if there are topics on another cluster. In that case the schema is kept,
    /// because it records them.
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
        Ok(schema::drop_leftover(&self.database, leftover).await?)
    }
}
