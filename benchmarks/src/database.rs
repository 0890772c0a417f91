//! Connections for what only these parts need: slots, publications, rows that were sent long ago.

use crate::world::World;
use anyhow::{Context, ensure};
use outbox_bench::site::Site;
use std::time::{Duration, Instant};
use tokio_postgres::{Client, NoTls};

const SLOTS_FREE_WITHIN: Duration = Duration::from_secs(60);

/// Connects to the server of scripts/services, which needs no TLS. The connection ends when the client is dropped.
pub async fn connect(url: &str) -> anyhow::Result<Client> {
    let (client, connection) =
        tokio_postgres::connect(url, NoTls).await.context("cannot connect to Postgres")?;
    tokio::spawn(async move {
        // Whoever uses the client gets the same error.
        _ = connection.await;
    });
    Ok(client)
}

/// Removes what a part has left behind that failed: slots above all, since the server keeps its log for them.
pub async fn clean(world: &World) -> anyhow::Result<()> {
    let client = connect(&world.postgres).await?;
    // The server may not have noticed yet that the other side of a slot is gone.
    let begun = Instant::now();
    while client.query_opt("SELECT 1 FROM pg_replication_slots WHERE active LIMIT 1", &[]).await?.is_some() {
        ensure!(begun.elapsed() < SLOTS_FREE_WITHIN, "somebody else uses a replication slot of this server");
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
