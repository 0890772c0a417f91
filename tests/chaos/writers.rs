//! Writers: applications that change aggregates and insert events, whatever happens to the server. They take turns by
//! locking the row of the aggregate first, as the guarantee of order requires.
//!
//! The ledger contains what they committed. If the answer to a COMMIT is lost, the writer does not know the outcome,
//! and reads it from the ledger later.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_postgres::{Client, Error};
use uuid::Uuid;

use crate::application::{self, take_turn, write};

const WRITERS: u32 = 6;
const KEYS_A_TRANSACTION: usize = 4;
const EVENTS_A_KEY: usize = 5;
const ROLLED_BACK: f64 = 0.1;
/// One in this number of transactions contains an event that Kafka can never accept.
const POISONED_ONE_OF: usize = 300;
/// The maximum number of characters in an ordinary event, in addition to its number.
const FILLING: usize = 200;
/// Longer than the topics allow, in characters that do not compress well.
const POISON: usize = 200_000;
/// The number of writers that wait behind each long transaction.
const WAITERS: usize = 2;
const LONG: std::ops::Range<u64> = 100..2_500;
const RECONNECT_INTERVAL: Duration = Duration::from_millis(50);
const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-";

/// The counts that the writers keep themselves.
#[derive(Debug, Default)]
pub struct Written {
    /// Events whose COMMIT was confirmed.
    pub committed: usize,
    /// Transactions that were rolled back on purpose.
    pub rolled_back: usize,
    /// Completed long transactions behind which other writers waited.
    pub long: usize,
    /// Transactions that a fault ended before their COMMIT.
    pub failed: usize,
    /// The events of each transaction whose COMMIT was not answered.
    pub unknown: Vec<Vec<Uuid>>,
}

impl Written {
    fn add(&mut self, other: Written) {
        self.committed += other.committed;
        self.rolled_back += other.rolled_back;
        self.long += other.long;
        self.failed += other.failed;
        self.unknown.extend(other.unknown);
    }
}

/// Writers at work.
pub struct Writers {
    tasks: Vec<JoinHandle<Written>>,
    stop: Arc<AtomicBool>,
}

impl Writers {
    /// Starts writers with a total rate of about this many events per second, as long as the server can accept them.
    pub fn start(url: &str, seed: u64, events_a_second: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let new = |number: u64| Writer {
            url: url.to_owned(),
            random: fastrand::Rng::with_seed(seed.wrapping_add(number)),
            stop: Arc::clone(&stop),
            written: Written::default(),
        };
        let mut tasks: Vec<_> = (0..WRITERS)
            .map(|number| tokio::spawn(new(number.into()).write(events_a_second / WRITERS)))
            .collect();
        tasks.push(tokio::spawn(new(WRITERS.into()).write_slowly()));
        Self { tasks, stop }
    }

    /// Stops the writers after their current transaction.
    pub async fn stop(self) -> Written {
        self.stop.store(true, Ordering::Relaxed);
        let mut written = Written::default();
        for task in self.tasks {
            written.add(task.await.unwrap());
        }
        written
    }
}

/// The outcome of a transaction, as far as its writer knows it.
enum Outcome {
    Committed(usize),
    RolledBack,
    Unknown(Vec<Uuid>),
}

struct Writer {
    url: String,
    random: fastrand::Rng,
    stop: Arc<AtomicBool>,
    written: Written,
}

impl Writer {
    async fn write(mut self, events_a_second: u32) -> Written {
        let pause =
            Duration::from_secs(1) * (KEYS_A_TRANSACTION * EVENTS_A_KEY) as u32 / events_a_second.max(1);
        let keys = application::keys();
        let mut next = Instant::now();
        while let Some(client) = self.connect().await {
            while !self.stop.load(Ordering::Relaxed) {
                tokio::time::sleep_until(next).await;
                // The writer does not catch up after an outage, so that the load stays the same.
                next = Instant::now().max(next + pause);
                let outcome = self.transaction(&client, &keys).await;
                if !self.note(outcome) {
                    break;
                }
            }
        }
        self.written
    }

    async fn transaction(&mut self, client: &Client, keys: &[String]) -> Result<Outcome, Error> {
        let keys = self.random.choose_multiple(keys.iter(), KEYS_A_TRANSACTION);
        let keys: Vec<&str> = keys.into_iter().map(String::as_str).collect();
        let mut events = Vec::new();
        client.batch_execute("BEGIN").await?;
        take_turn(client, &keys).await?;
        for _ in 0..EVENTS_A_KEY {
            let letters = self.random.usize(..FILLING);
            events.extend(write(client, &keys, &filling(&mut self.random, letters), false).await?);
            if self.random.usize(..POISONED_ONE_OF * EVENTS_A_KEY) == 0 {
                let poison = filling(&mut self.random, POISON);
                events.extend(write(client, &keys[..1], &poison, true).await?);
            }
        }
        if self.random.f64() < ROLLED_BACK {
            client.batch_execute("ROLLBACK").await?;
            return Ok(Outcome::RolledBack);
        }
        Ok(commit(client, events).await)
    }

    /// Transactions that draw an id early and stay open while others of the same key wait behind them.
    async fn write_slowly(mut self) -> Written {
        let keys = application::slow_keys();
        while let Some(holder) = self.connect().await {
            let mut waiters = Vec::new();
            for _ in 0..WAITERS {
                waiters.extend(application::connect(&self.url).await);
            }
            while !self.stop.load(Ordering::Relaxed) {
                let key = self.random.choice(&keys).expect("there are slow keys").as_str();
                let open = Duration::from_millis(self.random.u64(LONG));
                let rolled_back = self.random.f64() < 2.0 * ROLLED_BACK;
                let (taken, turn) = tokio::sync::watch::channel(false);
                let wait = futures_util::future::join_all(
                    waiters.iter().map(|client| wait_in_line(client, key, turn.clone())),
                );
                let (held, waited) = tokio::join!(hold(&holder, key, open, rolled_back, taken), wait);
                let mut all_went_well = self.note(held);
                for outcome in waited {
                    all_went_well &= self.note(outcome);
                }
                if !all_went_well {
                    break;
                }
                self.written.long += 1;
            }
        }
        self.written
    }

    /// Records the outcome. Returns whether the connection can be used again.
    fn note(&mut self, outcome: Result<Outcome, Error>) -> bool {
        let usable = matches!(outcome, Ok(Outcome::Committed(_) | Outcome::RolledBack));
        match outcome {
            Ok(Outcome::Committed(events)) => self.written.committed += events,
            Ok(Outcome::RolledBack) => self.written.rolled_back += 1,
            Ok(Outcome::Unknown(events)) => self.written.unknown.push(events),
            Err(error) => {
                assert!(is_fault(&error), "the error is not due to a fault: {error:?}");
                self.written.failed += 1;
            }
        }
        usable
    }

    /// Opens a connection, however long that takes. Returns None if the writers are stopped.
    async fn connect(&self) -> Option<Client> {
        while !self.stop.load(Ordering::Relaxed) {
            if let Ok(client) = application::connect(&self.url).await {
                return Some(client);
            }
            tokio::time::sleep(RECONNECT_INTERVAL).await;
        }
        None
    }
}

/// Draws an id early and stays open.
async fn hold(
    client: &Client,
    key: &str,
    open: Duration,
    rolled_back: bool,
    taken: tokio::sync::watch::Sender<bool>,
) -> Result<Outcome, Error> {
    client.batch_execute("BEGIN").await?;
    take_turn(client, &[key]).await?;
    let mut events = write(client, &[key], "early", false).await?;
    taken.send_replace(true);
    tokio::time::sleep(open).await;
    events.extend(write(client, &[key], "late", false).await?);
    if rolled_back {
        client.batch_execute("ROLLBACK").await?;
        return Ok(Outcome::RolledBack);
    }
    Ok(commit(client, events).await)
}

/// Waits until the current writer has finished its turn.
async fn wait_in_line(
    client: &Client,
    key: &str,
    mut turn: tokio::sync::watch::Receiver<bool>,
) -> Result<Outcome, Error> {
    // An error means that no writer has taken the turn.
    _ = turn.wait_for(|taken| *taken).await;
    client.batch_execute("BEGIN").await?;
    take_turn(client, &[key]).await?;
    let events = write(client, &[key], "behind", false).await?;
    Ok(commit(client, events).await)
}

async fn commit(client: &Client, events: Vec<Uuid>) -> Outcome {
    match client.batch_execute("COMMIT").await {
        Ok(()) => Outcome::Committed(events.len()),
        Err(_) => Outcome::Unknown(events),
    }
}

fn filling(random: &mut fastrand::Rng, letters: usize) -> String {
    (0..letters).map(|_| char::from(LETTERS[random.usize(..LETTERS.len())])).collect()
}

/// Whether the connection was lost or the server is shutting down (class 57).
fn is_fault(error: &Error) -> bool {
    error.is_closed() || error.code().is_none_or(|code| code.code().starts_with("57"))
}
