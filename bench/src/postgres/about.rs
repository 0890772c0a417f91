//! What a report says of the server, and what it takes to find its processes and to judge its distance.

use outbox_relay::postgres::connection::connect::Database;
use outbox_relay::postgres::connection::fault::fault;
use outbox_relay::relay::failure::Fault;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The settings that decide how fast a server inserts and updates, durability included.
const SETTINGS: &str = "
SELECT name, current_setting(name)
FROM pg_settings
WHERE name IN ('shared_buffers', 'max_wal_size', 'checkpoint_timeout', 'wal_level', 'fsync', 'synchronous_commit',
               'full_page_writes', 'wal_compression', 'autovacuum')";

const SESSION: &str = "
SELECT current_setting('server_version'), pg_backend_pid(), coalesce(inet_client_port(), -1),
       pg_size_bytes(current_setting('max_wal_size'))";

const ROUND_TRIPS: usize = 50;

/// A server.
#[derive(Clone, Debug)]
pub struct Server {
    /// Its version.
    pub version: String,
    /// The settings that matter.
    pub settings: BTreeMap<String, String>,
    /// How much WAL it writes between two checkpoints at the most, in bytes.
    pub max_wal_bytes: u64,
    /// The process that served a connection of ours, by its own count.
    pub backend: u32,
    /// The port at our end of that connection; `None` over a socket.
    pub client_port: Option<u16>,
    /// The median of an empty statement's time from here and back.
    pub round_trip: Duration,
}

/// Asks it. The connection stays in the pool, so the backend is there to be looked for.
///
/// # Errors
///
/// The server fails.
pub async fn ask(database: &Database) -> Result<Server, Fault> {
    let asking = |error| fault("asking the server about itself", error);
    let client = database.get().await?;
    let session = client.query_typed_one(SESSION, &[]).await.map_err(asking)?;
    let settings = client.query_typed(SETTINGS, &[]).await.map_err(asking)?;
    let mut times = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let begun = Instant::now();
        client.batch_execute("SELECT 1").await.map_err(asking)?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    let port: i32 = session.get(2);
    Ok(Server {
        version: session.get(0),
        settings: settings.iter().map(|row| (row.get(0), row.get(1))).collect(),
        max_wal_bytes: session.get::<_, i64>(3).unsigned_abs(),
        backend: session.get::<_, i32>(1).unsigned_abs(),
        client_port: u16::try_from(port).ok(),
        round_trip: times[ROUND_TRIPS / 2],
    })
}
