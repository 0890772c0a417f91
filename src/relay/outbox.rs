//! The outbox as the cycle sees it. `postgres/` implements it; so does the simulator of the tests.

use crate::relay::event::Event;
use crate::relay::failure::{Fault, Rejection};
use crate::relay::lane::Lane;
use std::collections::HashSet;

/// One worker's way to the outbox.
#[allow(async_fn_in_trait, reason = "the relay runs on one thread: no future has to be Send")]
pub trait Outbox {
    /// The rows it hands out.
    type Event: Event;
    /// A claim, which cannot outlive the transaction that it is.
    type Claim<'a>: Claim<Event = Self::Event>
    where
        Self: 'a;

    /// Begins a transaction and locks those of `lanes` that nobody else has locked.
    ///
    /// With `promptly` the read of all of `lanes` is sent along, before it is known which of them are free: its
    /// statement still comes after the lock's, and [`Claim::next_slice`] gives all its rows at once, without those of
    /// lanes that are not ours. [`Claim::read`] takes its place.
    ///
    /// Dropping the future rolls the transaction back.
    async fn claim(&mut self, lanes: &[Lane], promptly: Option<&Read>) -> Result<Self::Claim<'_>, Fault>;
}

/// Lanes locked by an open transaction, with their unsent rows. Dropping it rolls back and frees the lanes.
#[allow(async_fn_in_trait, reason = "the relay runs on one thread: no future has to be Send")]
pub trait Claim {
    /// The rows it hands out.
    type Event: Event;

    /// The lanes that are ours now, in the order in which they were asked for.
    fn lanes(&self) -> &[Lane];

    /// Which server, and behind a pooler which backend of it, answered.
    fn server(&self) -> ServerId;

    /// Starts the read of the rows: a statement of its own, whose snapshot is younger than the lane locks.
    async fn read(&mut self, read: &Read) -> Result<(), Fault>;

    /// Appends up to `rows_max` further rows to `rows`, lane by lane in the order of [`Claim::lanes`], by id inside a
    /// lane, until their sizes exceed `bytes_max`. What lies beyond is left out, so that what was read stays a
    /// contiguous prefix.
    async fn next_slice(
        &mut self,
        rows_max: usize,
        bytes_max: usize,
        rows: &mut Vec<Self::Event>,
    ) -> Result<Slice, Fault>;

    /// The first row that this read of the claim's only lane would give, without its contents, and whether the server
    /// refuses to read it whole. Both are looked at under the lock of the lane.
    async fn head(&mut self, read: &Read) -> Result<Head<Self::Event>, Fault>;

    /// Tells the server that this relay lives, and lets go of the read's snapshot.
    async fn keep_alive(&mut self) -> Result<(), Fault>;

    /// Records the outcome and commits. After an error nothing is known to be recorded.
    ///
    /// Dropping the future leaves the outcome unknown.
    async fn settle(self, settlement: &Settlement<'_, Self::Event>) -> Result<Settled, Fault>;

    /// Ends the claim and records nothing.
    async fn release(self) -> Result<(), Fault>;
}

/// Identifies a server process: a change of it may mean that commits were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServerId {
    /// Counts this process's connections: a new one may lead to another server.
    pub connection: u64,
    /// `pg_postmaster_start_time()` in microseconds.
    pub started_us: i64,
    /// `pg_backend_pid()`.
    pub backend: i32,
}

/// What to read.
#[derive(Clone, Debug)]
pub struct Read {
    /// One for each lane of the claim: only rows with a greater id are read.
    pub lows: Vec<i64>,
    /// What `lows` is valid for; under any other basis the read begins at the smallest id.
    pub basis: i64,
    /// At most this many rows.
    pub rows_max: usize,
    /// One for each lane of the claim: at most this many rows of it.
    pub shares: Vec<usize>,
    /// Which rows.
    pub rows: Rows,
}

/// Which rows to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Every unsent row of the claimed lanes that is not held, paused or blocked.
    Pending,
    /// The first unsent row of the key of each of these rows, even if its topic is held: what topics are probed with. `lows` and
    /// `shares` have one entry for each of them, and the rows come in this order.
    FirstOfKeys(Vec<(Lane, i64)>),
    /// These rows, if they are unsent, even if they are held, paused or blocked: Kafka has acknowledged them. `lows` and
    /// `shares` as for `FirstOfKeys`.
    These(Vec<(Lane, i64)>),
}

impl Rows {
    /// The rows that are named, with their lanes.
    pub fn named(&self) -> &[(Lane, i64)] {
        match self {
            Rows::Pending => &[],
            Rows::FirstOfKeys(rows) | Rows::These(rows) => rows,
        }
    }
}

/// The first row of a lane.
pub struct Head<E> {
    /// The set of holds under which it is the first one.
    pub hold_version: i64,
    /// The basis under which it is the first one.
    pub basis: i64,
    /// The row, without what may be large or damaged; `None` if there is none. It must not be published.
    pub row: Option<E>,
    /// What the server says when it is asked for the whole row; `None` if it gives it.
    pub refusal: Option<String>,
}

/// What a slice of the read said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The set of holds that the read's snapshot saw: another number after each change of it.
    pub hold_version: i64,
    /// What marks are valid for, as the read's snapshot saw it: the file of the table in the lower 32 bits, and above them
    /// how often a hold, a block or a pause has ended.
    pub basis: i64,
    /// Whether there is more.
    pub end: End,
}

/// Where a read stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Another slice may follow.
    More,
    /// Every unsent row above the marks was read, of each lane up to its share.
    Complete,
    /// A limit cut it off: the last lane read from, and those behind it, may have more.
    Cut,
}

/// The outcome of a batch.
pub struct Settlement<'a, E> {
    /// Rows that Kafka has acknowledged.
    pub sent: Vec<&'a E>,
    /// Rows that can never become a record, for the dead letters.
    pub rejected: Vec<Verdict<'a, E>>,
    /// The same, where their keys have to wait instead.
    pub blocked: Vec<Verdict<'a, E>>,
    /// Topics whose rows have to wait.
    pub held: Vec<Held<'a, E>>,
    /// Go round rows that somebody else has locked, since waiting for them has failed before.
    pub skip_locked: bool,
}

impl<E> Settlement<'_, E> {
    /// Nothing is to be recorded.
    pub(crate) fn is_empty(&self) -> bool {
        self.sent.is_empty() && self.rejected.is_empty() && self.blocked.is_empty() && self.held.is_empty()
    }
}

/// A row that can never become a record.
pub struct Verdict<'a, E> {
    /// The row.
    pub row: &'a E,
    /// The topic that it was meant for.
    pub topic: &'a str,
    /// Why.
    pub why: &'a Rejection,
}

/// A topic that cannot be written to now.
pub struct Held<'a, E> {
    /// The topic.
    pub topic: &'a str,
    /// Why.
    pub why: &'a Rejection,
    /// The first row that could not be published: the topic is probed with the first row of its key.
    pub witness: &'a E,
}

/// What a confirmed COMMIT recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Every row of the settlement.
    All,
    /// Some were locked, moved or deleted by somebody else. Of the sent ones, those with these ids are recorded.
    Only(HashSet<i64>),
    /// The same, and which of the sent ones are recorded is unknown.
    Fewer,
}
