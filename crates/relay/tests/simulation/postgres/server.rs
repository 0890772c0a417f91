//! The model of the server: transactions, locks and commits, and what remains of them after a crash or a failover.

mod commits;
mod losses;

use super::tables::{Change, Row, Scope, Tables};
use crate::plan::Sabotage;
use crate::promises::Promises;
use crate::relays::PUBLISH_TIMEOUT;
use crate::world::World;
use relay::lanes::marks::{Excepted, Writer};
use relay::lanes::{LANES, Lane};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// The server ends a relay's claim after this time without a statement.
pub const TAKEOVER: Duration = Duration::from_secs(3);

/// A relay that freezes for less than this keeps its claims. The server counts from the last statement, and a waiting claim sends
/// one every third of [`TAKEOVER`]. A tenth of a second is for the way to the server.
pub const SURE_TO_KEEP: Duration = Duration::from_millis(1_900);
/// How long a statement waits for another transaction's row lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// When the fence has certainly excepted a transaction.
const FORGOTTEN_AFTER: Duration = Duration::from_millis(1_400);
/// Represents the row with the version of the holds among the locked rows.
const HOLD_VERSION: i64 = i64::MIN;
/// The maximum duration of a claim: `publish_timeout`, and time for the last reports, judging and settling.
const CLAIM_MAX: Duration = Duration::from_secs(PUBLISH_TIMEOUT.as_secs() + 10);

/// The server.
pub struct Server {
    pub world: Rc<World>,
    pub promises: Rc<Promises>,
    pub(super) state: RefCell<State>,
    /// When a relay that caches pauses last read them, and the result.
    pub(super) remembered: RefCell<(Instant, BTreeSet<Scope>)>,
    unlocked: Notify,
}

pub(super) struct State {
    pub(super) tables: Tables,
    commits: Vec<Commit>,
    transactions: BTreeMap<u64, Transaction>,
    lanes: [u64; LANES],
    pub(super) row_locks: BTreeMap<i64, u64>,
    next_transaction: u64,
    next_id: i64,
    next_connection: u64,
    /// `pg_postmaster_start_time()`.
    started: i64,
    /// Counts how many times all backends have ended.
    generation: u64,
}

struct Commit {
    changes: Vec<Change>,
    /// Whether it is on disk, because a client waited for that.
    flushed: bool,
}

struct Transaction {
    /// The relay that owns the claim.
    claim_of: Option<usize>,
    /// It holds RowExclusiveLock on the outbox.
    writes: bool,
    /// It holds RowExclusiveLock on the sequence.
    draws: bool,
    /// It holds AccessShareLock on the outbox.
    reads: bool,
    /// The first id that it has drawn.
    first_id: Option<i64>,
    begun: Instant,
    last_statement: Instant,
    /// Its relay is gone, but the server has not noticed.
    is_orphaned: bool,
    changes: Vec<Change>,
}

impl Server {
    pub fn new(world: &Rc<World>, promises: &Rc<Promises>) -> Rc<Server> {
        let state = State {
            tables: Tables::default(),
            commits: Vec::new(),
            transactions: BTreeMap::new(),
            lanes: [0; LANES],
            row_locks: BTreeMap::new(),
            next_transaction: 1,
            next_id: 1,
            next_connection: 1,
            started: 1,
            generation: 1,
        };
        Rc::new(Server {
            world: Rc::clone(world),
            promises: Rc::clone(promises),
            state: RefCell::new(state),
            remembered: RefCell::new((Instant::now(), BTreeSet::new())),
            unlocked: Notify::new(),
        })
    }

    /// The number of a new connection.
    pub fn connect(&self) -> u64 {
        let mut state = self.state.borrow_mut();
        state.next_connection += 1;
        state.next_connection - 1
    }

    /// The start time of the server, and how many times all backends have ended.
    pub fn life(&self) -> (i64, u64) {
        let state = self.state.borrow();
        (state.started, state.generation)
    }

    /// BEGIN. The server also ends the claims of silent relays.
    pub fn begin(&self, claim_of: Option<usize>) -> u64 {
        let mut state = self.state.borrow_mut();
        let name = state.next_transaction;
        state.next_transaction += 1;
        let now = Instant::now();
        let transaction = Transaction {
            claim_of,
            writes: false,
            draws: false,
            reads: false,
            first_id: None,
            begun: now,
            last_statement: now,
            is_orphaned: false,
            changes: Vec::new(),
        };
        state.transactions.insert(name, transaction);
        let open =
            |other: &&Transaction| claim_of.is_some() && other.claim_of == claim_of && !other.is_orphaned;
        let claims = state.transactions.values().filter(open).count();
        // The prober may have a claim, too.
        if claims > self.world.plan.workers + 1 {
            self.world.violate(|| format!("relay {claim_of:?} has {claims} claims open"));
        }
        name
    }

    /// Handles a statement of a transaction. Returns whether the transaction still exists.
    pub fn receives_statement(&self, name: u64) -> bool {
        self.end_silent_claims();
        let mut state = self.state.borrow_mut();
        let Some(transaction) = state.transactions.get_mut(&name) else { return false };
        transaction.last_statement = Instant::now();
        if transaction.begun.elapsed() > CLAIM_MAX {
            let age = transaction.begun.elapsed();
            self.world.violate(|| format!("a claim has been open for {age:?}"));
        }
        true
    }

    /// ROLLBACK, or the end of the connection.
    pub fn roll_back(&self, name: u64) {
        let mut state = self.state.borrow_mut();
        if state.transactions.contains_key(&name) {
            state.end(name);
            self.unlocked.notify_waiters();
        }
    }

    /// The relay is gone. The server notices this only by its silence.
    pub fn lose_relay(&self, name: u64) {
        if let Some(transaction) = self.state.borrow_mut().transactions.get_mut(&name) {
            transaction.is_orphaned = true;
        }
    }

    fn end_silent_claims(&self) {
        let mut state = self.state.borrow_mut();
        let silent = |(name, transaction): (&u64, &Transaction)| {
            (transaction.claim_of.is_some() && transaction.last_statement.elapsed() >= TAKEOVER)
                .then_some(*name)
        };
        let silent: Vec<u64> = state.transactions.iter().filter_map(silent).collect();
        for name in silent {
            self.world.note("the server ends a silent claim", name);
            if self.world.plan.always_reaches_postgres() {
                self.world.violate(|| format!("claim {name} of a running relay was not kept alive"));
            }
            state.end(name);
            self.unlocked.notify_waiters();
        }
    }

    /// `SELECT ... FOR UPDATE SKIP LOCKED` on the lanes.
    pub fn lock_lanes(&self, name: u64, lanes: &[Lane]) -> Vec<Lane> {
        self.end_silent_claims();
        let mut state = self.state.borrow_mut();
        let mut owned = Vec::with_capacity(lanes.len());
        for lane in lanes {
            let holder = &mut state.lanes[lane.index()];
            if *holder == 0 || self.world.breaks(Sabotage::NoLaneLock) {
                *holder = name;
                owned.push(*lane);
            }
        }
        owned
    }

    /// A statement that changes rows takes a RowExclusiveLock on the table.
    pub fn lock_table(&self, name: u64) {
        if let Some(transaction) = self.state.borrow_mut().transactions.get_mut(&name) {
            transaction.writes = true;
        }
    }

    /// A statement that reads rows takes an AccessShareLock on the table and keeps it until the end of the transaction.
    pub fn reads(&self, name: u64) {
        if let Some(transaction) = self.state.borrow_mut().transactions.get_mut(&name) {
            transaction.reads = true;
        }
    }

    /// An operator empties the outbox with TRUNCATE ... RESTART IDENTITY once every event is sent. Returns false if
    /// rows are left or if the lock is not free.
    pub fn truncate(&self) -> bool {
        let state = self.state.borrow();
        let locks = |transaction: &Transaction| {
            // RESTART IDENTITY also locks the sequence.
            transaction.writes || transaction.reads || transaction.draws
        };
        let locked = state.transactions.values().any(locks);
        let tables = &state.tables;
        let unsent = tables.rows.values().any(|row| row.sent_at.is_none()) || !tables.blocked.is_empty();
        if locked || unsent || !tables.prepared.is_empty() {
            return false;
        }
        drop(state);
        self.commit_at_once(&[Change::Truncate], true);
        self.state.borrow_mut().next_id = 1;
        true
    }

    /// The next value of the identity column.
    pub fn draw_id(&self, name: u64) -> i64 {
        let mut state = self.state.borrow_mut();
        let id = state.next_id;
        state.next_id += 1;
        if let Some(transaction) = state.transactions.get_mut(&name) {
            transaction.draws = true;
            transaction.first_id.get_or_insert(id);
        }
        id
    }

    /// The transactions that hold a RowExclusiveLock on the outbox or on its sequence.
    pub fn writers(&self) -> Vec<Writer> {
        let state = self.state.borrow();
        let unlisted = self.world.breaks(Sabotage::DrawnUnfenced);
        let forgets = self.world.breaks(Sabotage::ExceptedForgotten);
        let is_forgotten =
            |transaction: &Transaction| forgets && transaction.begun.elapsed() > FORGOTTEN_AFTER;
        let holds = |transaction: &Transaction| {
            (transaction.writes || transaction.draws && !unlisted) && !is_forgotten(transaction)
        };
        let open = state.transactions.iter().filter(|(_, transaction)| holds(transaction));
        // A transaction gets its id when it changes the first row.
        let open = open.map(|(name, transaction)| Writer {
            name: format!("3/{name}"),
            xid: (!transaction.changes.is_empty()).then_some(*name as i64),
        });
        let prepared = state
            .tables
            .prepared
            .keys()
            .map(|name| Writer { name: format!("-1/{name}"), xid: Some(*name as i64) });
        open.chain(prepared.filter(|_| !self.world.breaks(Sabotage::PreparedUnfenced))).collect()
    }

    /// Whether all of these transactions are still in progress.
    pub fn are_open(&self, xids: &[i64]) -> bool {
        let state = self.state.borrow();
        let is_open = |xid: &i64| {
            let name = *xid as u64;
            state.transactions.contains_key(&name) || state.tables.prepared.contains_key(&name)
        };
        xids.iter().all(is_open)
    }

    /// The id at which a read of pending rows begins at most.
    pub fn floor(&self, excepted: &Excepted) -> i64 {
        let ignored = self.world.breaks(Sabotage::ClaimIgnoresExcepted);
        if ignored || self.are_open(&excepted.xids) { i64::MAX } else { excepted.floor }
    }

    /// The highest id up to which no row can be committed any more. Only the server knows it.
    pub fn fenced(&self) -> i64 {
        let state = self.state.borrow();
        let open = state.transactions.values().filter_map(|transaction| transaction.first_id);
        let prepared = state.tables.prepared.values().flatten().map(|event| event.id);
        open.chain(prepared).chain([state.next_id]).min().unwrap_or(0) - 1
    }

    /// Locks those of these rows that exist, and returns them. Returns None if another transaction holds a lock for too
    /// long.
    pub async fn lock_rows(&self, name: u64, ids: &[i64], skip_locked: bool) -> Option<Vec<Row>> {
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            let changed = self.unlocked.notified();
            {
                let mut state = self.state.borrow_mut();
                let free = |id: &i64| state.row_locks.get(id).is_none_or(|holder| *holder == name);
                if skip_locked || ids.iter().all(free) {
                    let free: Vec<i64> = ids.iter().copied().filter(free).collect();
                    let rows: Vec<Row> =
                        free.iter().filter_map(|id| state.tables.rows.get(id).copied()).collect();
                    if state.transactions.contains_key(&name) {
                        state.row_locks.extend(rows.iter().map(|row| (row.event.id, name)));
                    }
                    return Some(rows);
                }
            }
            timeout_at(deadline, changed).await.ok()?;
        }
    }

    /// Locks the version of the set of holds, blocked keys and pauses. Returns None if another transaction holds the
    /// lock for too long.
    pub async fn lock_holds(&self, name: u64) -> Option<()> {
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            let changed = self.unlocked.notified();
            {
                let mut state = self.state.borrow_mut();
                if state.row_locks.get(&HOLD_VERSION).is_none_or(|holder| *holder == name) {
                    if state.transactions.contains_key(&name) {
                        state.row_locks.insert(HOLD_VERSION, name);
                    }
                    return Some(());
                }
            }
            timeout_at(deadline, changed).await.ok()?;
        }
    }

    /// A statement of this transaction changes something. The change is not visible before the commit.
    pub fn change(&self, name: u64, change: Change) {
        if let Some(transaction) = self.state.borrow_mut().transactions.get_mut(&name) {
            transaction.changes.push(change);
        }
    }
}

/// Rolls back if it is dropped before it has committed.
pub struct OpenTransaction {
    server: Rc<Server>,
    pub name: u64,
}

impl OpenTransaction {
    pub fn begin(server: &Rc<Server>) -> OpenTransaction {
        OpenTransaction { server: Rc::clone(server), name: server.begin(None) }
    }
}

impl Drop for OpenTransaction {
    fn drop(&mut self) {
        self.server.roll_back(self.name);
    }
}

impl State {
    fn end(&mut self, name: u64) -> Option<Transaction> {
        for holder in &mut self.lanes {
            if *holder == name {
                *holder = 0;
            }
        }
        self.row_locks.retain(|_, holder| *holder != name);
        self.transactions.remove(&name)
    }
}
