//! The outbox as the cycle sees it. The crate `postgres` and the simulator of the tests implement these traits.

use crate::lanes::marks::Excepted;
use crate::{Lane, PostgresFault, Rejection};
use std::collections::HashSet;
use uuid::Uuid;

/// One claimed row. Everything is borrowed from the buffer that the row was read into, and texts are bytes, so nothing is
/// copied before the record is passed to the Kafka client.
pub trait Event {
    /// Determines the order within a key.
    fn id(&self) -> i64;
    /// Identity of the event for consumers.
    fn event_id(&self) -> Uuid;
    fn lane(&self) -> Lane;
    /// May determine the topic.
    fn aggregate_type(&self) -> &[u8];
    /// The topic that the event names, if it names one.
    fn topic(&self) -> Option<&[u8]> {
        None
    }
    /// The Kafka key, `aggregate_id`.
    fn key(&self) -> &[u8];
    /// The type of the event. May determine the topic.
    fn event_type(&self) -> &[u8];
    fn payload(&self) -> Payload<'_>;
    /// The row's own headers, as JSON text. `None` for NULL and for JSON null.
    fn headers(&self) -> Option<&[u8]>;
    /// When the row was inserted, in microseconds since 1970.
    fn created_at_us(&self) -> i64;
    /// The memory that the row occupies, in bytes, for the batch's byte limit.
    fn size(&self) -> usize;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    Bytes(&'a [u8]),
    /// A NULL payload, which Kafka's log compaction treats as a delete.
    Tombstone,
    /// The event is larger than the largest allowed record. Its large parts were not fetched.
    TooLarge {
        /// The length of the whole event in bytes.
        bytes: i64,
    },
}

pub trait Outbox {
    type Event: Event;
    /// A claim. It is a transaction and cannot outlive it.
    type Claim<'a>: Claim<Event = Self::Event>
    where
        Self: 'a;

    /// Begins a transaction and locks those of `lanes` that are free.
    ///
    /// With `promptly`, the read of all `lanes` is sent right after the lock statement, before its answer arrives, and
    /// [`Claim::next_slice`] returns all rows of the locked lanes at once. [`Claim::read`] replaces such a read.
    ///
    /// Dropping the future rolls the transaction back.
    async fn claim(
        &mut self,
        lanes: &[Lane],
        promptly: Option<&ReadRequest>,
    ) -> Result<Self::Claim<'_>, PostgresFault>;

    /// Whether a read is fetched slice by slice. Otherwise all of its rows are transferred, whatever their size.
    fn reads_in_slices(&self) -> bool {
        true
    }
}

/// Lanes locked by an open transaction, with their unsent rows. Dropping it rolls back and frees the lanes.
pub trait Claim {
    type Event: Event;

    fn lanes(&self) -> &[Lane];

    /// The server that answered, and behind a pooler the backend.
    fn server(&self) -> ServerId;

    /// Starts the read of the rows in a separate statement, whose snapshot is taken after the lane locks.
    async fn read(&mut self, read: &ReadRequest) -> Result<(), PostgresFault>;

    /// Appends up to `rows_max` further rows to `rows`, lane by lane in the order of [`Claim::lanes`], by id within a
    /// lane, until their sizes exceed `bytes_max`. Later rows are left out, so the rows stay a contiguous prefix.
    async fn next_slice(
        &mut self,
        rows_max: usize,
        bytes_max: usize,
        rows: &mut Vec<Self::Event>,
    ) -> Result<Slice, PostgresFault>;

    /// Reads the first row of the claim's only lane without its contents, and checks whether the server can read all of it.
    async fn head(&mut self, read: &ReadRequest) -> Result<Head<Self::Event>, PostgresFault>;

    /// Searches for new rows in a snapshot of its own, and appends those of the claimed lanes to `rows`, by id.
    async fn read_on(
        &mut self,
        search: &Search,
        rows: &mut Vec<Self::Event>,
    ) -> Result<SearchResult, PostgresFault>;

    /// Records acknowledged rows before the settlement, which must not contain them again. Returns whether all of them were
    /// recorded. They stay unsent if the transaction does not commit.
    async fn record_sent(&mut self, sent: &[&Self::Event]) -> Result<bool, PostgresFault>;

    async fn keep_alive(&mut self) -> Result<(), PostgresFault>;

    /// Records the outcome and commits. After an error it is unknown whether anything was recorded.
    ///
    /// Dropping the future leaves the outcome unknown.
    async fn settle(self, settlement: &Settlement<'_, Self::Event>) -> Result<Settled, PostgresFault>;

    /// Ends the claim without recording anything.
    async fn release(self) -> Result<(), PostgresFault>;
}

/// What marks are valid for. Marks of another epoch may be above rows that can be read again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Epoch {
    /// The file of the table. In another file, ids may start again.
    pub table_file: u32,
    /// How many holds, blocks and pauses have ended.
    pub ended: u32,
}

impl Epoch {
    /// An epoch that no table has.
    pub const NONE: Epoch = Epoch { table_file: u32::MAX, ended: u32::MAX };

    /// The number that the database compares.
    pub fn number(self) -> i64 {
        i64::from(self.ended) << 32 | i64::from(self.table_file)
    }
}

impl From<i64> for Epoch {
    fn from(number: i64) -> Epoch {
        Epoch { table_file: number as u32, ended: (number >> 32) as u32 }
    }
}

/// Identifies a server process. If it changes, commits may have been lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServerId {
    /// The number of this process's connection. A new connection may lead to another server.
    pub connection: u64,
    /// `pg_postmaster_start_time()` in microseconds.
    pub started_us: i64,
    pub backend: i32,
}

#[derive(Clone, Debug)]
pub struct ReadRequest {
    pub rows: RowSelection,
    /// One for each lane of the claim, or for each row that the request names.
    pub wanted: Vec<Wanted>,
    /// The epoch for which the marks in `wanted` are valid. Under another one the read begins at the smallest id.
    pub epoch: Epoch,
    /// If one of these transactions has ended, the read begins at their floor, if that is lower.
    pub excepted: Excepted,
    pub rows_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub lane: Lane,
    /// Only rows with a greater id are read.
    pub low: i64,
    pub share: usize,
    pub row: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowSelection {
    /// Every unsent row of the claimed lanes that is not held, paused or blocked.
    Pending,
    /// The first unsent row of the key of each row that is named, even if its topic is held: what topics are probed with. The rows
    /// come in the order of the request.
    FirstOfKeys,
    /// The rows that are named, if they are unsent, even if they are held, paused or blocked: Kafka has acknowledged them.
    Named,
}

/// What a flow reads: every row with a greater id than `above`, and those with the ids of `gaps`.
#[derive(Clone, Debug)]
pub struct Search {
    /// The highest id that this flow, or a read before its first one, has read.
    pub above: i64,
    /// Ids below it that no read has seen, in order.
    pub gaps: Vec<i64>,
    /// The set of holds of the flow. If it has changed, the read returns no rows.
    pub hold_version: i64,
    /// The epoch of the flow. If it has changed, the read returns no rows.
    pub epoch: Epoch,
    /// Transactions whose ids are not in `gaps`. If one of them has ended, the read returns no rows and another `hold_version`.
    pub excepted: Vec<i64>,
    pub rows_max: usize,
    /// The read ends after this many bytes.
    pub bytes_max: usize,
    /// Whether the read will probably find something. Determines only its cost.
    pub expects_rows: bool,
    /// Whether probably nothing is held, blocked or paused. Determines only the cost of the read.
    pub expects_free: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchResult {
    pub hold_version: i64,
    pub epoch: Epoch,
    /// The ids of all rows found, in ascending order, including rows that are sent or wait, and rows of other lanes.
    pub ids: Vec<i64>,
    /// A limit ended the read: rows with greater ids may follow.
    pub cut: bool,
}

/// The first row of a lane.
pub struct Head<E> {
    pub hold_version: i64,
    pub epoch: Epoch,
    /// The row without columns that may be large or damaged, or `None` if there is none. It must not be published.
    pub row: Option<E>,
    /// The server's error if it cannot read the whole row.
    pub error: Option<String>,
}

/// The end of a slice, and what the read's snapshot contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The set of holds. The number changes with every change of the set.
    pub hold_version: i64,
    pub epoch: Epoch,
    pub end: ReadEnd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadEnd {
    More,
    /// Every unsent row above the marks was read, up to the share of each lane.
    Complete,
    /// A limit ended the read: the last lane that was read and the lanes after it may have more.
    Cut,
}

pub struct Settlement<'a, E> {
    pub sent: Vec<&'a E>,
    pub rejected: Vec<RejectedRow<'a, E>>,
    pub blocked: Vec<RejectedRow<'a, E>>,
    pub held: Vec<TopicHold<'a, E>>,
    /// Skip rows that another session has locked, because waiting for them has failed before.
    pub around_locks: bool,
}

pub struct RejectedRow<'a, E> {
    pub row: &'a E,
    pub topic: &'a str,
    pub why: &'a Rejection,
}

/// A topic that cannot be written to now.
pub struct TopicHold<'a, E> {
    pub topic: &'a str,
    pub why: &'a Rejection,
    /// The first row that could not be published. Probes use the first unsent row of its key.
    pub example: &'a E,
}

/// What a confirmed COMMIT recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    All,
    /// Other sessions have locked, moved or deleted some rows. Those with these ids are known to be recorded.
    Only(HashSet<i64>),
}

impl Settled {
    /// Whether this row is known to be recorded as sent, as a dead letter or as the cause of a block.
    pub(crate) fn has_recorded<E: Event>(&self, row: &E) -> bool {
        match self {
            Settled::All => true,
            Settled::Only(recorded) => recorded.contains(&row.id()),
        }
    }
}
