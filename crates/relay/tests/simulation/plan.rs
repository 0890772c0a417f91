//! The plan of a schedule. It is drawn from the seed, so that each schedule mixes different faults.

use std::time::Duration;

/// The sizes and the faults of a schedule. Probabilities are in thousandths per occasion.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub relays: usize,
    pub workers: usize,
    pub writers: usize,
    /// Transactions per writer.
    pub transactions: u64,
    /// The approximate time over which the writers spread their transactions.
    pub writing: Duration,
    pub topics: usize,
    pub topics_by: TopicsBy,
    pub keys: u64,
    pub lanes: u64,
    pub batch_rows: usize,
    pub batch_bytes: usize,
    /// How long claims read on. Zero in every other schedule.
    pub flow_window: Duration,
    /// How soon work must follow for a flow.
    pub flow_gap: Duration,
    /// The maximum number of gaps that a flow searches.
    pub gaps_max: usize,
    /// How many rows of a lane a scan reads that may be hidden, unless the scout asks for more.
    pub hidden_rows_max: usize,
    /// Whether settled rows are deleted instead of marked.
    pub deletes_sent: bool,
    /// Whether a pooler between the relays and PostgreSQL gives each transaction another backend.
    pub pooler: bool,
    /// The age at which sent rows are reaped.
    pub retention: Option<Duration>,

    pub rolls_back: u32,
    pub long_transaction: u32,
    /// Transactions that draw their ids some time before they insert the rows.
    pub draws_early: u32,
    pub prepares: u32,
    /// Events that the broker can never store.
    pub poison: u32,
    /// Events that are refused before they are sent.
    pub unsendable: u32,
    /// Events whose rows PostgreSQL cannot read. Half of them cannot be moved to the dead letters either.
    pub unreadable: u32,
    /// A read fails for a reason that is not the fault of its rows.
    pub read_errors: u32,
    /// Statements over more lanes than this exceed the statement timeout. 0 means that none does.
    pub lanes_in_time: usize,
    /// How often another session locks the version of the holds for some time.
    pub hold_locks: u32,
    /// Whether a permanently refused row blocks its key instead of becoming a dead letter.
    pub blocks_keys: bool,
    pub rejections_before_hold: u32,

    /// An answer of PostgreSQL takes long. It arrives whatever happens to the server in the meantime.
    pub answer_slow: u32,
    /// A statement and its connection fail, before or after the statement has run.
    pub postgres_breaks: u32,
    /// A COMMIT has run, but its answer is lost.
    pub commit_answer_lost: u32,
    /// How much longer the brokers take to answer each request.
    pub brokers_slow: Duration,
    /// A produce request is refused with a retriable error.
    pub request_refused: u32,
    /// A produce request is stored, but its answer is lost.
    pub request_answer_lost: u32,
    /// A valid request is refused permanently, so the producer cannot continue.
    pub session_fatal: u32,
    /// The number of times that rows are locked by another session, put back, held by an operator, requeued or paused.
    pub row_locks: u32,
    pub put_backs: u32,
    pub holds_by_hand: u32,
    pub requeues: u32,
    pub pauses: u32,
    /// No disaster happens before this time.
    pub calm_at_first: Duration,
    /// The number of disasters, and their possible kinds.
    pub disasters: u32,
    pub kinds: &'static [Disaster],

    /// The rule that the world breaks, if any.
    pub sabotage: Option<Sabotage>,
}

/// What determines the topic of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicsBy {
    AggregateType,
    /// Rows of a transaction have several topics, and rows of several aggregate types share a topic.
    EventType,
    /// The same, with the column `topic`.
    Column,
}

/// A fault that strikes a whole process or server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Disaster {
    Kill,
    HostLost,
    /// SIGTERM: the relay finishes its rows in flight.
    Stop,
    /// SIGHUP: other limits apply from now on.
    Reload,
    FreezeShort,
    FreezeLong,
    CutFromPostgres,
    CutFromKafka,
    /// Connections break, but no commit is lost.
    PostgresRestarts,
    /// A backend crashes. Settlements that were not flushed are lost, but the postmaster is the same.
    PostgresCrashes,
    /// A standby that lacks the last commits is promoted.
    FailsOver,
    /// The outbox is truncated when all events are sent, and ids start again at 1.
    IdsRestart,
    KafkaAway,
    /// A partition has no leader for some time.
    LeaderChange,
    /// A partition accepts nothing for a long time, while others continue.
    PartitionStuck,
    /// Only one relay cannot reach the leader of a partition for a long time. Not in ALL, so that existing schedules do
    /// not change.
    CutFromLeader,
    TopicDeleted,
    /// It is deleted and created several times within moments.
    TopicFlickers,
    TopicDenied,
    /// A topic refuses every record. Not in ALL, because valid events become dead letters.
    TopicRejects,
    /// Every event of a topic is refused before it is sent, until the events are corrected. Not in ALL, like TopicRejects.
    EventsInvalid,
}

use Disaster as D;

/// All kinds of faults.
const ALL: &[Disaster] = &[
    D::Kill,
    D::HostLost,
    D::Stop,
    D::Reload,
    D::FreezeShort,
    D::FreezeLong,
    D::CutFromPostgres,
    D::CutFromKafka,
    D::PostgresRestarts,
    D::PostgresCrashes,
    D::FailsOver,
    D::IdsRestart,
    D::KafkaAway,
    D::LeaderChange,
    D::PartitionStuck,
    D::TopicDeleted,
    D::TopicFlickers,
    D::TopicDenied,
];

/// A world that breaks one rule on which the relay relies, or that behaves like a relay which breaks it. The simulator
/// must detect it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// A lane is given to every transaction that requests it.
    NoLaneLock,
    /// The rows are read in the snapshot in which the lanes were locked.
    SnapshotOlderThanLock,
    /// Rows that another transaction has locked are skipped, and the rows after them are read.
    RowsSkipLocked,
    /// The fence passes after some time, even if writers remain.
    MarkLagsByTime,
    /// The fence does not count prepared transactions.
    PreparedUnfenced,
    /// The fence does not count transactions that have drawn an id and not locked the table yet.
    DrawnUnfenced,
    /// Claims do not check whether the transactions that the marks except are still in progress.
    ClaimIgnoresExcepted,
    /// Flows do not check it.
    FlowIgnoresExcepted,
    /// An excepted transaction counts as ended while it is open.
    ExceptedForgotten,
    /// Marks rise when the fence completes.
    MarkRaisedByFence,
    /// Marks rise when the rows are read, before the settlement is committed.
    MarkRaisedBeforeCommit,
    /// Marks are kept when the server may have lost commits.
    MarkKeptOverFailover,
    /// Marks are kept when a hold begins or ends.
    MarkKeptOverHold,
    /// Marks are kept when a hold ends and invalidated when a hold begins.
    MarkKeptOverRemoval,
    /// Marks are kept when ids start again at 1.
    MarkKeptOverTruncate,
    /// The acknowledged set counts only holds that have ended, as marks do, and not holds that have begun.
    AdditionsUncounted,
    /// The read uses pauses that are up to a second old, as a relay that caches them would.
    PausesCached,
    /// A held topic is probed although it is paused.
    ProbedThoughPaused,
    /// An acknowledgement of a probe that comes late is not settled while its row is paused.
    SettledLateUnlessPaused,
    /// Rows are reported as stored when they are sent.
    SettledBeforeAcknowledged,
    /// The acknowledged set recognizes a row by its id alone.
    RecognizedByIdAlone,
    /// A row whose outcome is unknown counts as stored.
    UnknownIsSuccess,
    /// A success without an offset counts as stored.
    NoOffsetIsSuccess,
    /// Rows that timed out are sent again by the same producer, after the rows that it has sent since.
    ResentOnSameProducer,
    /// Rows are still accepted while the queue is purged.
    EnqueuedWhilePurged,
    /// When a session ends, queued rows are taken back while later ones are in flight, which are then sent again.
    QueueTakenBackAlone,
    /// A missing topic fails its rows one by one, and the same session continues once the topic exists.
    TopicCreatedMidBatch,
    /// A new session starts with several rows.
    NotPrimed,
    /// A producer continues after a record was refused permanently.
    GapsAfterRefusal,
    /// A row is rejected because its batch was refused.
    RejectedWithBatch,
    /// A row that is refused before it is sent blocks its key, although an earlier row of the key stays unsent.
    BlockedBehindOpenRow,
    /// A topic is never held for its rejected rows.
    NeverHeld,
    /// A relay that was frozen records its settlement, although its claim has ended.
    SettledAfterTakeover,
    /// Several relays probe the same topic at once.
    LeaseIgnored,
    /// The reaper deletes rows by age, even unsent ones.
    ReapsUnsent,
    /// An unreadable row is skipped, and the rows after it are read.
    UnreadableSkipped,
    /// A row counts as unreadable although it was not read alone.
    UnreadableUnproven,
    /// A flow searches only above the highest id seen.
    FlowForgetsGaps,
    /// A flow no longer searches for an id once the fence has passed it, before it was read.
    FlowForgetsFencedGaps,
    /// A flow continues when a hold, pause or block has ended.
    FlowUnderAnyVersion,
    /// A flow publishes the rows of lanes that it does not hold.
    FlowReadsAllLanes,
    /// A flow records its newest row as sent, whether or not Kafka has it.
    FlowRecordsNewestRow,
    /// A row is held or paused by the topic of its aggregate type, although something else determines the topic.
    TopicsByTypeAlone,
    /// A block or pause of a key covers only one aggregate type, although several types share a topic.
    KeysByTypeAlone,
    /// The reaper does not recheck a row that was put back in the meantime.
    ReapsPutBack,
}

/// No faults.
pub const CALM: Plan = Plan {
    relays: 2,
    workers: 2,
    writers: 3,
    transactions: 4,
    writing: Duration::from_secs(2),
    topics: 2,
    topics_by: TopicsBy::AggregateType,
    keys: 4,
    lanes: 2,
    batch_rows: 6,
    batch_bytes: 450,
    flow_window: Duration::ZERO,
    flow_gap: Duration::from_secs(3_600),
    gaps_max: 1_000,
    hidden_rows_max: 1_000,
    deletes_sent: false,
    pooler: false,
    retention: None,
    rolls_back: 150,
    long_transaction: 150,
    draws_early: 0,
    prepares: 100,
    poison: 0,
    unsendable: 0,
    unreadable: 0,
    read_errors: 0,
    lanes_in_time: 0,
    hold_locks: 0,
    blocks_keys: false,
    rejections_before_hold: 10,
    answer_slow: 0,
    postgres_breaks: 0,
    commit_answer_lost: 0,
    brokers_slow: Duration::ZERO,
    request_refused: 0,
    request_answer_lost: 0,
    session_fatal: 0,
    row_locks: 0,
    put_backs: 0,
    holds_by_hand: 0,
    requeues: 0,
    pauses: 0,
    calm_at_first: Duration::ZERO,
    disasters: 0,
    kinds: &[],
    sabotage: None,
};

impl Plan {
    /// Various sizes and settings, without faults.
    pub fn calm(seed: u64) -> Plan {
        let mut random = fastrand::Rng::with_seed(seed ^ 0x5eed);
        Plan {
            relays: random.usize(1..=3),
            workers: random.usize(1..=2),
            writers: random.usize(1..=3),
            transactions: random.u64(2..=5),
            writing: Duration::from_millis(random.u64(300..=3_000)),
            topics: if random.bool() { 1 } else { random.usize(2..=3) },
            keys: random.u64(1..=5),
            lanes: random.u64(1..=3),
            batch_rows: random.usize(1..=8),
            batch_bytes: random.usize(1..=9) * 100,
            flow_window: if seed.is_multiple_of(2) { Duration::from_millis(100) } else { Duration::ZERO },
            deletes_sent: random.u8(..4) == 0,
            pooler: random.u8(..4) == 0,
            blocks_keys: random.u8(..3) == 0,
            retention: (random.u8(..3) == 0).then(|| Duration::from_millis(random.u64(100..=3_000))),
            ..CALM
        }
    }

    /// Two busy keys in one lane and large batches, so that faults often strike between two rows.
    pub fn busy(seed: u64) -> Plan {
        let writing = Duration::from_secs(2);
        let traffic = Plan { writers: 3, transactions: 5, writing, ..Plan::calm(seed) };
        Plan { topics: 1, keys: 2, lanes: 1, batch_rows: 8, batch_bytes: 900, blocks_keys: false, ..traffic }
    }

    /// Any of the faults. Each occurs in about half of the schedules, because some faults hide others.
    pub fn storm(seed: u64) -> Plan {
        let mut random = fastrand::Rng::with_seed(seed ^ 0x5707);
        let random_width = 8 << random.usize(0..3); // a sweep covers 8 lanes
        let mut perhaps = |thousandths: u32| if random.bool() { thousandths } else { 0 };
        Plan {
            poison: perhaps(60),
            unsendable: perhaps(30),
            unreadable: perhaps(20),
            read_errors: perhaps(10),
            lanes_in_time: perhaps(1) as usize * random_width,
            hold_locks: perhaps(2),
            answer_slow: perhaps(20),
            postgres_breaks: perhaps(12),
            commit_answer_lost: perhaps(40),
            request_refused: perhaps(100),
            request_answer_lost: perhaps(60),
            session_fatal: perhaps(10),
            row_locks: perhaps(4),
            put_backs: perhaps(2),
            holds_by_hand: perhaps(1),
            requeues: perhaps(2),
            pauses: perhaps(2),
            disasters: random.u32(0..=3),
            draws_early: if seed.is_multiple_of(5) { 100 } else { 0 },
            kinds: ALL,
            hidden_rows_max: if seed & 2 == 0 { 3 } else { 1_000 },
            ..if seed.is_multiple_of(3) { Plan::busy(seed) } else { Plan::calm(seed) }
        }
    }

    /// Whether every running relay can always reach PostgreSQL.
    pub fn always_reaches_postgres(&self) -> bool {
        let silent = [D::Kill, D::HostLost, D::FreezeShort, D::FreezeLong, D::CutFromPostgres];
        let broken = [D::PostgresRestarts, D::PostgresCrashes, D::FailsOver];
        let silences = |kind: &Disaster| silent.contains(kind) || broken.contains(kind);
        let strikes = self.disasters > 0 && self.kinds.iter().any(silences);
        self.postgres_breaks == 0 && self.commit_answer_lost == 0 && !strikes
    }

    /// The same plan with this rule broken.
    pub fn breaking(self, rule: Sabotage) -> Plan {
        Plan { sabotage: Some(rule), ..self }
    }
}
