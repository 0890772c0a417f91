//! Applications that write: the writers of one key take turns by locking the aggregate's row before they insert the
//! event, as the promise of order asks of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use super::database::Database;
use super::outbox::Outbox;

/// Takes the turn: waits for whoever has it. In the order of the keys, so that nobody deadlocks.
const TAKE_TURN: &str = "SELECT key FROM app.aggregate WHERE key = ANY($1) ORDER BY key FOR UPDATE";

/// One event of each key, and its line in the ledger.
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

/// Writes one event of each key within the transaction that this connection has open, or in one of its own. Returns
/// their ids.
pub async fn write(client: &Client, keys: &[impl AsRef<str>]) -> Vec<i64> {
    let keys: Vec<&str> = keys.iter().map(AsRef::as_ref).collect();
    client.query(TAKE_TURN, &[&keys]).await.unwrap();
    client.query(WRITE, &[&keys]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

/// How the writers of a test write.
#[derive(Clone, Debug)]
pub struct Load {
    pub writers: usize,
    /// Stops after about so many committed events.
    pub events: usize,
    /// Different keys in one transaction.
    pub keys_a_transaction: usize,
    /// Events of each of these keys.
    pub events_a_key: usize,
    /// One transaction of so many is rolled back.
    pub rolled_back: usize,
    /// Whether they go on when the server is back, after it went. Whether a COMMIT without an answer counts, the
    /// ledger says.
    pub outlast_the_server: bool,
    /// From one transaction to the next.
    pub pause: Duration,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            writers: 4,
            events: usize::MAX,
            keys_a_transaction: 5,
            events_a_key: 4,
            rolled_back: 10,
            outlast_the_server: false,
            pause: Duration::ZERO,
        }
    }
}

/// Writers at work.
pub struct Writers {
    tasks: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    committed: Arc<AtomicUsize>,
}

impl Writers {
    /// Each with a connection of its own.
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

    /// Waits until they have written what the load says.
    pub async fn finish(self) -> usize {
        for task in self.tasks {
            task.await.unwrap();
        }
        self.committed.load(Ordering::Relaxed)
    }

    /// Ends them behind the transaction they are at.
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
                Err(_) if self.load.outlast_the_server => {
                    self.client = self.database.connect_patiently().await;
                }
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    fn is_done(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.committed.load(Ordering::Relaxed) >= self.load.events
    }

    /// One after the other, on one connection.
    async fn transactions(&mut self) -> Result<(), tokio_postgres::Error> {
        let turn = self.client.prepare(TAKE_TURN).await?;
        let write = self.client.prepare(WRITE).await?;
        while !self.is_done() {
            let keys = self.random.choose_multiple(self.keys.iter(), self.load.keys_a_transaction);
            self.client.batch_execute("BEGIN").await?;
            self.client.query(&turn, &[&keys]).await?;
            for _ in 0..self.load.events_a_key {
                self.client.query(&write, &[&keys]).await?;
            }
            if self.random.usize(..self.load.rolled_back) == 0 {
                self.client.batch_execute("ROLLBACK").await?;
            } else {
                self.client.batch_execute("COMMIT").await?;
                self.committed.fetch_add(keys.len() * self.load.events_a_key, Ordering::Relaxed);
            }
            if !self.load.pause.is_zero() {
                tokio::time::sleep(self.load.pause).await;
            }
        }
        Ok(())
    }
}
