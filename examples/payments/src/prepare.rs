//! Prerequisites of the processes: the example's tables and its topic. A real application has migrations, and its
//! operators create topics.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::types::RDKafkaErrorCode;

use crate::consumer::TOPIC;
use crate::database;

const PARTITIONS: i32 = 4;
const WITHIN: Duration = Duration::from_secs(20);

const TABLES: [&str; 3] = [
    include_str!("../sql/shop.sql"),
    include_str!("../sql/provider.sql"),
    include_str!("../sql/balances.sql"),
];

/// Creates what is missing.
pub async fn run(database_url: &str, bootstrap: &str) -> anyhow::Result<()> {
    let client = database::pool(database_url, 1)?.get().await?;
    for tables in TABLES {
        client.batch_execute(tables).await?;
    }
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", bootstrap).create()?;
    let topic = NewTopic::new(TOPIC, PARTITIONS, TopicReplication::Fixed(-1));
    let options = AdminOptions::new().operation_timeout(Some(WITHIN)).request_timeout(Some(WITHIN));
    for answer in admin.create_topics([&topic], &options).await? {
        match answer {
            Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
            Err((topic, code)) => anyhow::bail!("creating the topic {topic}: {code}"),
        }
    }
    Ok(())
}
