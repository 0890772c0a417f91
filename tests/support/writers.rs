//! Applications that write. The writers of one key take turns by locking the aggregate's row before they insert the
//! event, as the guarantee of order requires.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use super::database::Database;
use super::outbox::Outbox;

/// Waits for the turn of each aggregate. Locks in the order of the keys, so that writers do not deadlock.
const TAKE_TURN: &str = "SELECT key FROM app.aggregate WHERE key = ANY($1) ORDER BY key FOR UPDATE";

/// Inserts one event for each key, and its ledger line.
const WRITE: &str = "
WITH turn AS (
    UPDATE app.aggregate SET seq = seq + 1 WHERE key = ANY($1) RETURNING key, kind, seq
), event AS (
    INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload)
    SELECT kind, key, 'Changed', json_build_object('seq', seq) FROM turn
    RETURNING id, event_id, aggregate_id, payload
), entry AS (
    INSERT INTO app.ledger (event_id, kind, key, seq, value)
    SELECT event_id, kind, key, seq, payload::text FROM event JOIN turn ON key = aggregate_id
)
SELECT id FROM event ORDER BY id";

/// Writes one event for each key, within the open transaction of this connection or in a new one. Returns the ids.
pub async fn write(client: &Client, keys: &[impl AsRef<str>]) -> Vec<i64> {
    let keys: Vec<&str> = keys.iter().map(AsRef::as_ref).collect();
    client.query(TAKE_TURN, &[&keys]).await.unwrap();
    client.query(WRITE, &[&keys]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

/// The load of a test.
#[derive(Clone, Debug)]
pub struct Load {
    pub writers: usize,
    /// The writers stop after about this many committed events.
    pub events: usize,
    /// The number of different keys in a transaction.
    pub keys_per_transaction: usize,
    /// The number of events for each of these keys.
    pub events_per_key: usize,
    /// One in this number of transactions is rolled back.
    pub rolled_back: usize,
    /// Whether the writers continue after an outage of the server. The ledger decides whether an unanswered COMMIT
    /// counts.
    pub survives_outages: bool,
    /// The pause between two transactions.
    pub pause: Duration,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            writers: 4,
            events: usize::MAX,
            keys_per_transaction: 5,
            events_per_key: 4,
            rolled_back: 10,
            survives_outages: false,
            pause: Duration::ZERO,
        }
    }
}

/// Running writers.
pub struct Writers {
    tasks: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    committed: Arc<AtomicUsize>,
}

impl Writers {
    /// Starts the writers. Each has its own connection.
    pub async fn start(outbox: &Outbox, keys: &[String], load: Load) -> Self {
        let keys: Arc<[String]> = keys.into();
        let stop = Arc::new(AtomicBool::new(false));
        let committed = Arc::new(AtomicUsize::new(0));
        let mut tasks = Vec::new();
        for number in 0..load.writers {
            let writer = Writer {
                client: outbox.database.connect().await,
                database: outbox.database.clone(),
                keys: Arc::clone(&keys),
                load: load.clone(),
                random: fastrand::Rng::with_seed(number as u64),
                stop: Arc::clone(&stop),
                committed: Arc::clone(&committed),
            };
            tasks.push(tokio::spawn(writer.write()));
        }
        Self { tasks, stop, committed }
    }

    /// Waits until the writers have finished the load.
    pub async fn finish(self) -> usize {
        for task in self.tasks {
            task.await.unwrap();
        }
        self.committed.load(Ordering::Relaxed)
    }

    /// Stops the writers after their current transaction.
    pub async fn stop(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.finish().await
    }
}

struct Writer {
    client: Client,
    database: Database,
    keys: Arc<[String]>,
    load: Load,
    random: fastrand::Rng,
    stop: Arc<AtomicBool>,
    committed: Arc<AtomicUsize>,
}

impl Writer {
    async fn write(mut self) {
        while !self.is_done() {
            match self.transactions().await {
                Ok(()) => {}
                Err(_) if self.load.survives_outages => {
                    self.client = self.database.connect_patiently().await;
                }
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    fn is_done(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.committed.load(Ordering::Relaxed) >= self.load.events
    }

    /// Runs one transaction after the other on one connection.
    async fn transactions(&mut self) -> Result<(), tokio_postgres::Error> {
        let turn = self.client.prepare(TAKE_TURN).await?;
        let write = self.client.prepare(WRITE).await?;
        while !self.is_done() {
            let keys = self.random.choose_multiple(self.keys.iter(), self.load.keys_per_transaction);
            self.client.batch_execute("BEGIN").await?;
            self.client.query(&turn, &[&keys]).await?;
            for _ in 0..self.load.events_per_key {
                self.client.query(&write, &[&keys]).await?;
            }
            if self.random.usize(..self.load.rolled_back) == 0 {
                self.client.batch_execute("ROLLBACK").await?;
            } else {
                self.client.batch_execute("COMMIT").await?;
                self.committed.fetch_add(keys.len() * self.load.events_per_key, Ordering::Relaxed);
            }
            if !self.load.pause.is_zero() {
                tokio::time::sleep(self.load.pause).await;
            }
        }
        Ok(())
    }
}
