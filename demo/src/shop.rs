//! The shop: several writers on a separate thread, as an application would be a separate process.

use super::ledger::SharedLedger;
use super::order::{Ending, Till};
use super::schema::{CUSTOMERS, OUTBOX};
use anyhow::Context;
use outbox_relay::config;
use outbox_relay::postgres::connection::pool::Database;
use outbox_relay::relay::health::stats::Stats;
use pg_outbox::Outbox;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval, sleep};

/// The number of concurrent writers.
pub(super) const WRITERS: usize = 8;
/// Transactions per second of all writers together. Moderate, so that the demo does not need a fast machine.
const TRANSACTIONS_PER_SECOND: u32 = 900;
/// The number of open orders. Few enough that writers compete for the same order.
const OPEN_ORDERS_MAX: usize = 300;
/// The pause of a writer after an error. PostgreSQL may be restarting.
const PAUSE: Duration = Duration::from_millis(200);

/// An open shop.
pub(super) struct Shop {
    closing: Arc<AtomicBool>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Shop {
    /// Opens the shop.
    pub(super) fn open(settings: config::Postgres, ledger: SharedLedger) -> Shop {
        let closing = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&closing);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("starting the shop's runtime")?;
            runtime.block_on(trade(&settings, &ledger, &asked))
        });
        Shop { closing, thread: Some(thread) }
    }

    /// Lets every writer finish its transaction. Blocks until then.
    pub(super) fn close(mut self) -> anyhow::Result<()> {
        self.join()
    }

    fn join(&mut self) -> anyhow::Result<()> {
        self.closing.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the shop panicked")))
    }
}

impl Drop for Shop {
    /// The tables are dropped next, so no writer may be running, whatever failed.
    fn drop(&mut self) {
        _ = self.join();
    }
}

async fn trade(
    settings: &config::Postgres,
    ledger: &SharedLedger,
    closing: &AtomicBool,
) -> anyhow::Result<()> {
    let database = Database::new(settings, WRITERS, Arc::new(Stats::new()))?;
    let outbox = Outbox::new(OUTBOX)?;
    let open_orders = RefCell::new(Vec::new());
    let writers = (0..WRITERS).map(|_| async {
        let mut writer = Writer { database: &database, outbox: &outbox, ledger, open_orders: &open_orders };
        writer.write(closing).await;
    });
    futures_util::future::join_all(writers).await;
    Ok(())
}

struct Writer<'a> {
    database: &'a Database,
    outbox: &'a Outbox,
    ledger: &'a SharedLedger,
    open_orders: &'a RefCell<Vec<i64>>,
}

impl Writer<'_> {
    async fn write(&mut self, closing: &AtomicBool) {
        let mut pace = interval(Duration::from_secs(1) * WRITERS as u32 / TRANSACTIONS_PER_SECOND);
        // A slow machine has fewer orders, and need not catch up.
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !closing.load(Ordering::Acquire) {
            pace.tick().await;
            if let Err(error) = self.transact().await {
                self.ledger.lock().fault(format!("a writer: {error:#}"));
                sleep(PAUSE).await;
            }
        }
    }

    /// A random business transaction.
    async fn transact(&mut self) -> anyhow::Result<()> {
        let mut connection = self.database.get().await?;
        let mut till = Till { connection: &mut connection, outbox: self.outbox, ledger: self.ledger };
        let (customer, cents) = (fastrand::i64(1..=CUSTOMERS), fastrand::i64(100..50_000));
        let known = fastrand::choice(self.open_orders.borrow().iter()).copied();
        match (fastrand::u8(0..100), known) {
            (0..12, _) => _ = till.place(customer, cents, Ending::RollBack).await?,
            (12..50, Some(order)) => {
                if !till.advance(order).await? {
                    self.forget(order);
                }
            }
            (50..57, Some(order)) => {
                till.cancel(order).await?;
                self.forget(order);
            }
            _ => {
                let order = till.place(customer, cents, Ending::Commit).await?;
                self.remember(order);
            }
        }
        Ok(())
    }

    fn remember(&self, order: i64) {
        let mut open_orders = self.open_orders.borrow_mut();
        if open_orders.len() == OPEN_ORDERS_MAX {
            open_orders.swap_remove(fastrand::usize(0..OPEN_ORDERS_MAX));
        }
        open_orders.push(order);
    }

    fn forget(&self, order: i64) {
        self.open_orders.borrow_mut().retain(|open| *open != order);
    }
}
