//! The database and the cluster before anything is made there, and what killed runs have left in them.

use super::error::BenchError;
use super::place::open;
use super::settings::Settings;
use crate::kafka::topics::Topics;
use crate::postgres::about::{self, Server};
use crate::postgres::schema::{self, Leftover};
use outbox_relay::config::Config;
use outbox_relay::postgres::connection::connect::Database;

/// Connections of the measuring side, beside those of writers.
const CONNECTIONS: usize = 8;

/// A database and a cluster that can be reached. Nothing is made yet.
pub struct Site {
    pub(super) settings: Settings,
    pub(super) config: Config,
    pub(super) database: Database,
    pub(super) topics: Topics,
    pub(super) server: Server,
}

impl Site {
    /// Connects to both, and makes nothing.
    ///
    /// # Errors
    ///
    /// The settings are no good, or Postgres or Kafka cannot be reached.
    pub async fn connect(settings: Settings) -> Result<Site, BenchError> {
        let config = settings.load()?;
        let database = open(&config.postgres, CONNECTIONS)?;
        let topics = Topics::new(&config.kafka)?;
        topics.names().await?;
        let server = about::ask(&database).await?;
        Ok(Site { settings, config, database, topics, server })
    }

    /// What runs have left behind that were killed.
    ///
    /// # Errors
    ///
    /// Postgres fails.
    pub async fn leftovers(&self) -> Result<Vec<Leftover>, BenchError> {
        Ok(schema::leftovers(&self.database).await?)
    }

    /// Removes what a killed run has left behind: its topics, as far as they have the name that it gave them, and then
    /// its schema.
    ///
    /// # Errors
    ///
    /// Postgres or Kafka fails, or there are topics on another cluster: the schema stays, as it says which.
    pub async fn remove(&self, leftover: &Leftover) -> Result<(), BenchError> {
        let here = &self.config.kafka.bootstrap_servers;
        if let Some((topic, cluster)) = leftover.topics.iter().find(|(_, cluster)| cluster != here) {
            return Err(BenchError::Configuration(format!(
                "schema {} has the topic {topic} on {cluster}, which is not the configured cluster: it is left alone",
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
