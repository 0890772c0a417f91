//! A running Debezium connector that publishes from a scratch outbox.

use super::connect::Connect;
use super::connector::{self, Source};
use super::tuning::Tuning;
use crate::database;
use anyhow::{Context, bail};
use outbox_bench::BenchError;
use outbox_bench::place::{Place, Route};
use outbox_bench::processes::usage::Party;
use outbox_bench::subject::Subject;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tokio_postgres::Client;

const CHANGES_WITHIN: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A connector with its slot and its publication. Call `detach` at the end, otherwise the server keeps WAL for the
/// slot.
pub struct Debezium<'a> {
    connect: &'a mut Connect,
    client: Client,
    name: String,
}

impl<'a> Debezium<'a> {
    /// Starts to follow the outbox of the place and to publish to the topics of the route.
    pub async fn attach(
        connect: &'a mut Connect,
        postgres: &str,
        place: &Place,
        route: &Route,
        tuning: Tuning,
    ) -> anyhow::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("debezium_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let client = database::connect(postgres).await?;
        let source = Source { postgres, schema: place.schema(), table: "outbox", topic: &route.template() };
        client.batch_execute(&connector::create_publication(&name, &source, tuning)).await?;
        connect.add(&name, &connector::settings(&name, &source, tuning)?).await?;
        let debezium = Self { connect, client, name };
        debezium.wait_until_slot_is("active").await?;
        Ok(debezium)
    }

    /// Stops publishing, so that a backlog can build up. The connector keeps reading until its queue is full.
    pub async fn pause(&self) -> anyhow::Result<()> {
        self.connect.pause(&self.name).await
    }

    /// Continues to publish.
    pub async fn resume(&self) -> anyhow::Result<()> {
        self.connect.resume(&self.name).await
    }

    /// Removes the connector, the slot and the publication.
    pub async fn detach(self) -> anyhow::Result<()> {
        self.connect.remove(&self.name).await?;
        self.wait_until_slot_is("not active").await?;
        self.client
            .batch_execute(&format!(
                "SELECT pg_drop_replication_slot('{name}'); DROP PUBLICATION {name}",
                name = self.name
            ))
            .await
            .context("cannot drop Debezium's slot")
    }

    async fn wait_until_slot_is(&self, state: &str) -> anyhow::Result<()> {
        let query =
            format!("SELECT 1 FROM pg_replication_slots WHERE {state} AND slot_name = '{}'", self.name);
        let begun = Instant::now();
        while self.client.query_opt(&query, &[]).await?.is_none() {
            if begun.elapsed() > CHANGES_WITHIN {
                bail!("Debezium's slot is not {state} after {CHANGES_WITHIN:?}");
            }
            sleep(LOOK_AGAIN).await;
        }
        Ok(())
    }
}

impl Subject for Debezium<'_> {
    fn party(&self) -> Party {
        Party::started("Debezium", self.connect.pid())
    }

    fn check(&mut self) -> Result<(), BenchError> {
        self.connect.check().map_err(|error| BenchError::Subject(error.to_string()))
    }

    /// Always settled: Debezium stores its position in the log from time to time, and no row waits for that.
    async fn has_settled(&mut self, _rows: u64) -> Result<bool, BenchError> {
        Ok(true)
    }
}
