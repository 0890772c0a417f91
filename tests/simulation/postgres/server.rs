//! The model of the server: transactions, locks, commits, and what is left of them after a crash or a failover.

use super::tables::{Change, Row, Scope, Tables};
use crate::event::{SimEvent, TOPICS};
use crate::plan::Sabotage;
use crate::promises::Promises;
use crate::relays::PUBLISH_TIMEOUT;
use crate::world::{World, add};
use outbox_relay::relay::event::Event;
use outbox_relay::relay::lane::{LANES, Lane};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// After so long without a word from a relay the server ends its claim.
pub const TAKEOVER: Duration = Duration::from_secs(3);
/// So long a statement waits for somebody else's row lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// Stands for the row of the version of the holds among the locked rows.
const HOLD_VERSION: i64 = i64::MIN;
/// A claim ends after `publish_timeout`, and what follows it: the last reports, judging, and settling.
const CLAIM_MAX: Duration = Duration::from_secs(PUBLISH_TIMEOUT.as_secs() + 10);

/// The server.
pub struct Server {
    pub world: Rc<World>,
    pub promises: Rc<Promises>,
    pub(super) state: RefCell<State>,
    /// When a relay that remembers pauses last looked at them, and what it saw.
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
    /// Counts the ends of all backends.
    generation: u64,
}

struct Commit {
    changes: Vec<Change>,
    /// Whoever waited for it knows that it is on disk.
    flushed: bool,
}

struct Transaction {
    /// The relay whose claim it is.
    claim_of: Option<usize>,
    /// It holds RowExclusiveLock on the outbox.
    writes: bool,
    /// It holds AccessShareLock on the outbox.
    reads: bool,
    /// The first id that it has drawn.
    first_id: Option<i64>,
    begun: Instant,
    heard: Instant,
    /// Its relay is gone, and the server has not noticed.
    forsaken: bool,
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

    /// A new connection: its number.
    pub fn connect(&self) -> u64 {
        let mut state = self.state.borrow_mut();
        state.next_connection += 1;
        state.next_connection - 1
    }

    /// When the server started, and how often all backends have ended.
    pub fn life(&self) -> (i64, u64) {
        let state = self.state.borrow();
        (state.started, state.generation)
    }

    /// BEGIN. The server ends the claims of relays that fall silent.
    pub fn begin(&self, claim_of: Option<usize>) -> u64 {
        let mut state = self.state.borrow_mut();
        let name = state.next_transaction;
        state.next_transaction += 1;
        let now = Instant::now();
        let transaction = Transaction {
            claim_of,
            writes: false,
            reads: false,
            first_id: None,
            begun: now,
            heard: now,
            forsaken: false,
            changes: Vec::new(),
        };
        state.transactions.insert(name, transaction);
        let open = |other: &&Transaction| claim_of.is_some() && other.claim_of == claim_of && !other.forsaken;
        let claims = state.transactions.values().filter(open).count();
        // The prober has one, too.
        if claims > self.world.plan.workers + 1 {
            self.world.violate(|| format!("relay {claim_of:?} has {claims} claims open"));
        }
        name
    }

    /// Whether a transaction still lives; a statement of it came in.
    pub fn hears(&self, name: u64) -> bool {
        self.end_silent_claims();
        let mut state = self.state.borrow_mut();
        let Some(transaction) = state.transactions.get_mut(&name) else { return false };
        transaction.heard = Instant::now();
        if transaction.begun.elapsed() > CLAIM_MAX {
            let age = transaction.begun.elapsed();
            self.world.violate(|| format!("a claim is open for {age:?}"));
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

    /// Its relay is gone, and the server will notice by its silence only.
    pub fn forsake(&self, name: u64) {
        if let Some(transaction) = self.state.borrow_mut().transactions.get_mut(&name) {
            transaction.forsaken = true;
        }
    }

    fn end_silent_claims(&self) {
        let mut state = self.state.borrow_mut();
        let silent = |(name, transaction): (&u64, &Transaction)| {
            (transaction.claim_of.is_some() && transaction.heard.elapsed() >= TAKEOVER).then_some(*name)
        };
        let silent: Vec<u64> = state.transactions.iter().filter_map(silent).collect();
        for name in silent {
            self.world.note("the server ends a silent claim", name);
            if self.world.plan.is_always_heard() {
                self.world.violate(|| format!("claim {name} of a relay that lives was not kept"));
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

    /// A statement that changes rows takes RowExclusiveLock on the table.
    pub fn lock_table(&self, name: u64) {
        if let Some(transaction) = self.state.borrow_mut().transactions.get_mut(&name) {
            transaction.writes = true;
        }
    }

    /// A statement that reads rows takes AccessShareLock on the table, which stays to the end of the transaction.
    pub fn reads(&self, name: u64) {
        if let Some(transaction) = self.state.borrow_mut().transactions.get_mut(&name) {
            transaction.reads = true;
        }
    }

    /// An operator empties the outbox with TRUNCATE ... RESTART IDENTITY, once every event is sent. False if something is
    /// left in it, or if the lock is not free.
    pub fn truncate(&self) -> bool {
        let state = self.state.borrow();
        let locked = state.transactions.values().any(|transaction| transaction.writes || transaction.reads);
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
            transaction.first_id.get_or_insert(id);
        }
        id
    }

    /// Who holds RowExclusiveLock on the outbox.
    pub fn writers(&self) -> Vec<String> {
        let state = self.state.borrow();
        let open = state.transactions.iter().filter(|(_, transaction)| transaction.writes);
        let open = open.map(|(name, _)| format!("3/{name}"));
        let prepared = state.tables.prepared.keys().map(|name| format!("-1/{name}"));
        open.chain(prepared.filter(|_| !self.world.breaks(Sabotage::PreparedUnfenced))).collect()
    }

    /// The highest id below which nothing can be committed any more, as only the server knows it.
    pub fn fenced(&self) -> i64 {
        let state = self.state.borrow();
        let open = state.transactions.values().filter_map(|transaction| transaction.first_id);
        let prepared = state.tables.prepared.values().flatten().map(|event| event.id);
        open.chain(prepared).chain([state.next_id]).min().unwrap_or(0) - 1
    }

    /// Locks these rows as far as they exist; returns those that it got, or nothing if somebody else had one for too
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

    /// Locks the version of the set of holds, blocked keys and pauses; nothing if somebody else has it for too long.
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

    /// A statement of this transaction changes something. Nobody sees it before the commit.
    pub fn change(&self, name: u64, change: Change) {
        if let Some(transaction) = self.state.borrow_mut().transactions.get_mut(&name) {
            transaction.changes.push(change);
        }
    }

    /// PREPARE TRANSACTION. The lock goes on under another name.
    pub fn prepare(&self, name: u64) -> bool {
        let mut state = self.state.borrow_mut();
        let Some(transaction) = state.transactions.get_mut(&name) else { return false };
        for change in &mut transaction.changes {
            if let Change::Insert(event) = *change {
                *change = Change::Prepared(name, event);
            }
        }
        drop(state);
        self.commit(name, true)
    }

    /// COMMIT PREPARED, or ROLLBACK PREPARED.
    pub fn end_prepared(&self, name: u64, commits: bool) {
        let Some(events) = self.state.borrow().tables.prepared.get(&name).cloned() else { return };
        let end = self.begin(None);
        self.change(end, Change::EndPrepared(name));
        for event in events.into_iter().filter(|_| commits) {
            self.change(end, Change::Insert(event));
        }
        self.commit(end, true);
    }

    /// COMMIT. False if the transaction had ended before.
    pub fn commit(&self, name: u64, flushed: bool) -> bool {
        let mut state = self.state.borrow_mut();
        let lanes: Vec<usize> = (0..LANES).filter(|lane| state.lanes[*lane] == name).collect();
        let Some(transaction) = state.end(name) else { return false };
        for change in &transaction.changes {
            self.check_claim(change, &lanes);
            self.tell(change, &state.tables);
            state.tables.apply(change);
        }
        if !transaction.changes.is_empty() {
            state.commits.push(Commit { changes: transaction.changes, flushed });
        }
        drop(state);
        self.unlocked.notify_waiters();
        self.world.progress.notify_waiters();
        true
    }

    /// Changes that are committed at once.
    pub fn commit_at_once(&self, changes: &[Change], flushed: bool) {
        let name = self.begin(None);
        for change in changes {
            self.change(name, *change);
        }
        self.commit(name, flushed);
    }

    /// Only who has locked a lane settles its rows.
    fn check_claim(&self, change: &Change, lanes: &[usize]) {
        if let Change::Sent(event, _) | Change::SentAndDeleted(event) | Change::DeadLetter(event) = change
            && !lanes.contains(&event.lane().index())
            && !self.world.breaks(Sabotage::NoLaneLock)
        {
            self.world.violate(|| format!("{event:?} was settled without the lock of its lane"));
        }
    }

    fn tell(&self, change: &Change, tables: &Tables) {
        let note = |what, event: &SimEvent| {
            self.world.note(what, (event.id, event.identity, event.topic, event.key));
        };
        match change {
            Change::Insert(event) => {
                note("commits (id, event, topic, key)", event);
                self.promises.committed(event);
            }
            Change::Sent(event, _) | Change::SentAndDeleted(event) => {
                note("is settled (id, event, topic, key)", event);
                self.promises.settled(event);
            }
            Change::PutBack(event) => {
                note("is put back (id, event, topic, key)", event);
                self.promises.put_back(event);
            }
            Change::Reaped(event) => {
                note("is reaped (id, event, topic, key)", event);
                let row = tables.rows.get(&event.id);
                self.promises.reaped(event, row.is_some_and(|row| row.sent_at.is_none()));
            }
            Change::DeadLetter(event) => {
                note("is a dead letter (id, event, topic, key)", event);
                self.promises.died(event);
            }
            Change::Hold(topic, reason, key) => {
                self.world.note("topic is held", (TOPICS[*topic as usize], reason, key));
            }
            Change::Block(event) => {
                note("blocks its key (id, event, topic, key)", event);
                self.promises.condemned(event);
            }
            Change::Unblock(event) => note("blocks its key no more (id, event, topic, key)", event),
            Change::Pause(scope) => {
                self.world.note("is paused:", scope);
                self.promises.paused(*scope);
            }
            Change::Resume(scope) => {
                self.world.note("is resumed:", scope);
                self.promises.resumed(*scope);
            }
            Change::Lift(topic) => self.world.note("topic is held no more", TOPICS[*topic as usize]),
            Change::Truncate => self.world.note("the outbox is truncated, and ids restart at", 1),
            Change::Requeued(_) | Change::Prepared(..) | Change::EndPrepared(_) => {}
        }
    }

    /// Every backend ends, and with it every transaction that is not prepared.
    pub fn end_all_backends(&self, postmaster_too: bool) {
        self.world.note("every backend of Postgres ends; the postmaster, too:", postmaster_too);
        let mut state = self.state.borrow_mut();
        state.generation += 1;
        state.started += i64::from(postmaster_too);
        state.transactions.clear();
        state.lanes = [0; LANES];
        state.row_locks.clear();
        drop(state);
        self.unlocked.notify_waiters();
    }

    /// A backend crashes: of what was committed at the end, what was not flushed may be lost.
    pub fn crash(&self, lost_at_most: usize) {
        self.end_all_backends(false);
        let state = self.state.borrow();
        let unflushed = state.commits.iter().rev().take_while(|commit| !commit.flushed).count();
        let lost = unflushed.min(lost_at_most);
        drop(state);
        self.lose(lost, false);
    }

    /// A standby takes over that lacks the last commits. Their ids are issued again.
    pub fn fail_over(&self, lost: usize) {
        self.end_all_backends(true);
        self.lose(lost, true);
    }

    fn lose(&self, lost: usize, ids_too: bool) {
        let mut guard = self.state.borrow_mut();
        let state = &mut *guard;
        let keep = state.commits.len().saturating_sub(lost);
        let settled = |change: &&Change| {
            matches!(change, Change::Sent(..) | Change::SentAndDeleted(_) | Change::DeadLetter(_))
        };
        let lost = state.commits.split_off(keep);
        let settlements = lost.iter().flat_map(|commit| &commit.changes).filter(settled).count();
        self.world.note("commits and settlements are lost:", (lost.len(), settlements));
        add(&self.world.count.settlements_lost, settlements as u32);
        let holds = std::mem::take(&mut state.tables.holds);
        state.tables = Tables::default();
        self.promises.failed_over();
        for change in state.commits.iter().flat_map(|commit| &commit.changes) {
            match change {
                Change::Insert(event) => self.promises.committed(event),
                Change::DeadLetter(event) => self.promises.stays_dead(event),
                Change::Pause(scope) => self.promises.paused(*scope),
                Change::Resume(scope) => self.promises.resumed(*scope),
                _ => {}
            }
            state.tables.apply(change);
        }
        // When they are probed does not matter enough to be kept.
        for (topic, hold) in &mut state.tables.holds {
            if let Some(before) = holds.get(topic) {
                (hold.probe_at, hold.is_leased) = (before.probe_at, before.is_leased);
            }
        }
        if ids_too {
            state.next_id = state.tables.highest_id + 1;
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
