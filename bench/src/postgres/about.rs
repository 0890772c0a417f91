//! Facts about the server for the report, for finding its processes, and for judging its distance.

use outbox_relay::postgres::connection::connect::Database;
use outbox_relay::postgres::connection::fault::fault;
use outbox_relay::relay::failure::PostgresFault;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The settings that determine how fast a server inserts and updates, including durability.
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
    /// The relevant settings.
    pub settings: BTreeMap<String, String>,
    /// The maximum WAL between two checkpoints, in bytes.
    pub max_wal_bytes: u64,
    /// The process that served our connection, in the server's own namespace.
    pub backend: u32,
    /// The port at our end of that connection. `None` for a Unix socket.
    pub client_port: Option<u16>,
    /// The median round trip of an empty statement.
    pub round_trip: Duration,
}

/// Queries the server. The connection stays in the pool, so that its backend can be found.
///
/// # Errors
///
/// If the server fails.
pub async fn ask(database: &Database) -> Result<Server, PostgresFault> {
    let asking = |error| fault("querying the server's settings", error);
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
