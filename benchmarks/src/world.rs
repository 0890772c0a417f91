//! What the benchmarks run with: the servers that scripts/bench has started, the relay's binary, and Debezium's jars.

use crate::database;
use crate::debezium::Tuning;
use crate::debezium::connect::Connect;
use crate::machine;
use crate::parts;
use crate::results::Store;
use anyhow::Context;
use outbox_bench::settings::Settings;
use std::path::PathBuf;

pub struct World {
    /// The database's URL.
    pub postgres: String,
    /// The broker's address.
    pub kafka: String,
    /// A second listener of the broker, and the address that it advertises.
    pub kafka_behind: String,
    pub kafka_proxy: String,
    /// The folder of Debezium's jars.
    pub jars: PathBuf,
    /// The folder for logs and reduced results.
    pub folder: PathBuf,
    relay: PathBuf,
}

impl World {
    pub fn from_environment(folder: PathBuf) -> anyhow::Result<Self> {
        Ok(Self {
            postgres: variable("OUTBOX_RELAY_TEST_POSTGRES_URL")?,
            kafka: variable("OUTBOX_RELAY_TEST_KAFKA")?,
            kafka_behind: variable("OUTBOX_RELAY_TEST_KAFKA_BEHIND")?,
            kafka_proxy: variable("OUTBOX_RELAY_TEST_KAFKA_PROXY")?,
            jars: variable("OUTBOX_BENCHMARKS_JARS")?.into(),
            relay: variable("OUTBOX_BENCHMARKS_RELAY")?.into(),
            folder,
        })
    }

    /// The default settings with the addresses of the servers.
    pub fn settings(&self) -> Settings {
        self.settings_at(&self.postgres, &self.kafka)
    }

    /// The same with other addresses, for example of proxies.
    pub fn settings_at(&self, postgres: &str, kafka: &str) -> Settings {
        Settings::new(self.relay.clone(), None).with("postgres", "url", postgres).with(
            "kafka",
            "bootstrap_servers",
            kafka,
        )
    }

    /// Starts Kafka Connect.
    pub async fn start_connect(&self, tuning: Tuning) -> anyhow::Result<Connect> {
        let folder = self.folder.join("connect");
        Connect::start(&self.jars, &folder, &self.kafka, tuning).await
    }

    /// The settings of Debezium that the relay is compared with.
    pub fn fastest_debezium(&self) -> anyhow::Result<Tuning> {
        Ok(parts::debezium::fastest(&Store::published().load()?))
    }

    /// The machine, the versions and the settings for the report.
    pub async fn describe(&self) -> anyhow::Result<Vec<(String, String)>> {
        let mut setting = machine::describe(&self.jars);
        let client = database::connect(&self.postgres).await?;
        let query = "SELECT name, current_setting(name) FROM pg_settings WHERE name IN ('server_version', \
                     'shared_buffers', 'max_wal_size', 'checkpoint_timeout', 'wal_level', 'fsync', \
                     'synchronous_commit', 'full_page_writes', 'logical_decoding_work_mem') ORDER BY name";
        for row in client.query(query, &[]).await? {
            setting.push((format!("PostgreSQL: {}", row.get::<_, &str>(0)), row.get(1)));
        }
        Ok(setting)
    }
}

/// The value of a variable that scripts/bench sets.
pub fn variable(name: &str) -> anyhow::Result<String> {
    std::env::var(name).with_context(|| format!("{name} is not set: run scripts/bench"))
}
