//! Database work that only the benchmarks need: replication slots, publications and rows that were sent long ago.

use crate::world::World;
use anyhow::{Context, ensure};
use outbox_bench::site::Site;
use std::time::{Duration, Instant};
use tokio_postgres::{Client, NoTls};

const SLOTS_FREE_WITHIN: Duration = Duration::from_secs(60);

/// Connects to the server of scripts/services, which does not use TLS. The connection ends when the client is dropped.
pub async fn connect(url: &str) -> anyhow::Result<Client> {
    let (client, connection) =
        tokio_postgres::connect(url, NoTls).await.context("cannot connect to PostgreSQL")?;
    tokio::spawn(async move {
        // The client reports the same error.
        _ = connection.await;
    });
    Ok(client)
}

/// Removes what a failed part has left behind, above all slots, because the server keeps WAL for them.
pub async fn clean(world: &World) -> anyhow::Result<()> {
    let client = connect(&world.postgres).await?;
    // The server may still be about to notice that the client of a slot is gone.
    let begun = Instant::now();
    while client.query_opt("SELECT 1 FROM pg_replication_slots WHERE active LIMIT 1", &[]).await?.is_some() {
        ensure!(begun.elapsed() < SLOTS_FREE_WITHIN, "a replication slot of this server is still in use");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    client.batch_execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots").await?;
    for publication in client.query("SELECT quote_ident(pubname) FROM pg_publication", &[]).await? {
        client.batch_execute(&format!("DROP PUBLICATION {}", publication.get::<_, &str>(0))).await?;
    }
    let site = Site::connect(world.settings()).await?;
    for leftover in site.leftovers().await? {
        site.remove(&leftover).await?;
    }
    Ok(())
}
