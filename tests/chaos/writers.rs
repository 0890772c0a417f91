//! Writers: applications that change aggregates and insert events, whatever becomes of the server. They take turns by
//! locking the aggregate's row first, as the promise of order asks of them.
//!
//! What they committed is what the ledger says. A COMMIT whose answer was lost is unknown to its writer, and decided by
//! the ledger afterwards.

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
/// One transaction of so many holds an event that Kafka can never take.
const POISONED_ONE_OF: usize = 300;
/// What a usual event holds beside its number, in letters at most.
const FILLING: usize = 200;
/// More than the topics allow, in letters that no compression makes small enough.
const POISON: usize = 200_000;
/// How many wait behind each long transaction.
const WAITERS: usize = 2;
const LONG: std::ops::Range<u64> = 100..2_500;
const RECONNECT_EVERY: Duration = Duration::from_millis(50);
const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-";

/// What the writers know themselves.
#[derive(Debug, Default)]
pub struct Written {
    /// Events whose COMMIT was answered.
    pub committed: usize,
    /// Transactions that were rolled back on purpose.
    pub rolled_back: usize,
    /// Long transactions with waiters behind them that came to their end.
    pub long: usize,
    /// Transactions that a fault ended before their COMMIT.
    pub failed: usize,
    /// The events of those whose COMMIT was not answered, a list for each.
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
    /// About so many events a second, as long as the server takes them.
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

    /// Ends them behind the transaction they are at.
    pub async fn stop(self) -> Written {
        self.stop.store(true, Ordering::Relaxed);
        let mut written = Written::default();
        for task in self.tasks {
            written.add(task.await.unwrap());
        }
        written
    }
}

/// How a transaction ended, as far as its writer knows.
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
        let pause = Duration::from_secs(1) * (KEYS_A_TRANSACTION * EVENTS_A_KEY) as u32 / events_a_second;
        let keys = application::keys();
        let mut next = Instant::now();
        while let Some(client) = self.connect().await {
            while !self.stop.load(Ordering::Relaxed) {
                tokio::time::sleep_until(next).await;
                // What an outage cost is not made up for: the load stays what it is.
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

    /// Transactions that stay open with an early id, while others of the same key wait behind them.
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
                    waiters.iter().map(|client| behind(client, key, turn.clone())),
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

    /// Whether the connection may be used again.
    fn note(&mut self, outcome: Result<Outcome, Error>) -> bool {
        let usable = matches!(outcome, Ok(Outcome::Committed(_) | Outcome::RolledBack));
        match outcome {
            Ok(Outcome::Committed(events)) => self.written.committed += events,
            Ok(Outcome::RolledBack) => self.written.rolled_back += 1,
            Ok(Outcome::Unknown(events)) => self.written.unknown.push(events),
            Err(error) => {
                assert!(is_fault(&error), "a writer's own mistake: {error:?}");
                self.written.failed += 1;
            }
        }
        usable
    }

    /// A new connection, however long it takes; none once the writers are to stop.
    async fn connect(&self) -> Option<Client> {
        while !self.stop.load(Ordering::Relaxed) {
            if let Ok(client) = application::connect(&self.url).await {
                return Some(client);
            }
            tokio::time::sleep(RECONNECT_EVERY).await;
        }
        None
    }
}

/// Draws an id early, and stays open.
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

/// Asks for its turn once somebody has it.
async fn behind(
    client: &Client,
    key: &str,
    mut turn: tokio::sync::watch::Receiver<bool>,
) -> Result<Outcome, Error> {
    // An error means that nobody got it.
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

/// The connection was lost, or the server is going down (class 57).
fn is_fault(error: &Error) -> bool {
    error.is_closed() || error.code().is_none_or(|code| code.code().starts_with("57"))
}
