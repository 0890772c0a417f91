//! Connections for what only these parts need: slots, publications, rows that were sent long ago.

use crate::world::World;
use anyhow::Context;
use outbox_relay::bench::site::Site;
use tokio_postgres::{Client, NoTls};

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
    let left =
        client.query("SELECT pubname::text FROM pg_publication WHERE pubname LIKE 'debezium%'", &[]).await?;
    for publication in left {
        client.batch_execute(&format!("DROP PUBLICATION {}", publication.get::<_, &str>(0))).await?;
    }
    client
        .batch_execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active",
        )
        .await?;
    let site = Site::connect(world.settings()).await?;
    for leftover in site.leftovers().await? {
        site.remove(&leftover).await?;
    }
    Ok(())
}
