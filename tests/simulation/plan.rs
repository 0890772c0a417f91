//! What a schedule is made of: drawn from its seed, so that each one mixes other faults.

use std::time::Duration;

/// The sizes and the faults of a schedule. Chances are in thousandths of the occasions.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub relays: usize,
    pub workers: usize,
    pub writers: usize,
    /// Transactions a writer.
    pub transactions: u64,
    /// The writers spread them over about so long.
    pub writing: Duration,
    pub topics: usize,
    pub keys: u64,
    pub lanes: u64,
    pub batch_rows: usize,
    pub batch_bytes: usize,
    /// Settled rows are deleted instead of marked.
    pub deletes_sent: bool,
    /// A pooler stands between relays and Postgres and gives each transaction another backend.
    pub pooler: bool,
    /// Sent rows are reaped after this.
    pub retention: Option<Duration>,

    pub rolls_back: u32,
    pub long_transaction: u32,
    pub prepares: u32,
    /// Events that the broker can never store.
    pub poison: u32,
    /// Events that are refused before they are sent.
    pub unsendable: u32,
    /// Events whose rows Postgres cannot read; half of them cannot be moved to the dead letters either.
    pub unreadable: u32,
    /// A read fails for a reason that is none of its rows'.
    pub read_errors: u32,
    /// Reads and looks over more lanes than this run into the statement timeout; 0: none does.
    pub lanes_in_time: usize,
    /// Somebody keeps the version of the holds locked for a while, so many times.
    pub hold_locks: u32,
    /// A row that is refused for good blocks its key, and is no dead letter.
    pub blocks_keys: bool,
    pub rejections_before_hold: u32,

    /// An answer of Postgres takes long, and comes whatever happens to the server meanwhile.
    pub answer_slow: u32,
    /// A statement fails, and the connection with it, before or after it has run.
    pub postgres_breaks: u32,
    /// COMMIT has run and its answer is lost.
    pub commit_answer_lost: u32,
    /// A produce request is refused with a retriable error.
    pub request_refused: u32,
    /// A produce request is stored and its answer is lost.
    pub request_answer_lost: u32,
    /// A request is refused although nothing is wrong with it, for good: the producer cannot go on.
    pub session_fatal: u32,
    /// Somebody locks rows for a while; put-backs, holds by hand, requeues and pauses, so many each.
    pub row_locks: u32,
    pub put_backs: u32,
    pub holds_by_hand: u32,
    pub requeues: u32,
    pub pauses: u32,
    /// How many disasters strike, and which kinds of them.
    pub disasters: u32,
    pub kinds: &'static [Disaster],

    /// The rule that the world breaks, if it breaks one.
    pub sabotage: Option<Sabotage>,
}

/// What strikes from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Disaster {
    Kill,
    HostLost,
    /// SIGTERM: it finishes what is in flight.
    Stop,
    /// SIGHUP: other limits hold from now on.
    Reload,
    FreezeShort,
    FreezeLong,
    CutFromPostgres,
    CutFromKafka,
    /// Connections break, nothing is lost.
    PostgresRestarts,
    /// A backend crashed: settlements that were not flushed are lost, and the postmaster stays the same.
    PostgresCrashes,
    /// A standby takes over that lacks the last commits.
    FailsOver,
    /// The outbox is truncated when all is sent, and ids begin again.
    IdsRestart,
    KafkaAway,
    /// A partition has no leader for a while.
    LeaderChange,
    /// A partition takes nothing for long, while others go on.
    PartitionStuck,
    /// One relay, and no other, cannot reach the leader of a partition for long. Not among ALL, whose schedules stay as they are.
    CutFromLeader,
    TopicDeleted,
    /// It goes and comes several times within moments.
    TopicFlickers,
    TopicDenied,
    /// A topic refuses whatever comes. Not among ALL, since innocent events become dead letters by it.
    TopicRejects,
}

use Disaster as D;

/// Faults of every kind.
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

/// A world that breaks one rule which the relay relies on, or stands for a relay that breaks it: the simulator must
/// see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Lanes are given to whoever asks.
    NoLaneLock,
    /// The rows are read in the snapshot in which the lanes were locked.
    SnapshotOlderThanLock,
    /// Rows that somebody else has locked are skipped, and those behind them read.
    RowsSkipLocked,
    /// The fence passes after a while, whoever still writes.
    MarkLagsByTime,
    /// The fence does not count prepared transactions.
    PreparedUnfenced,
    /// Marks rise when the fence completes.
    MarkRaisedByFence,
    /// Marks rise when the rows are read, before their settlement is committed.
    MarkRaisedBeforeCommit,
    /// Marks stay when the server may have lost commits.
    MarkKeptOverFailover,
    /// Marks stay when a hold begins or ends.
    MarkKeptOverHold,
    /// Marks stay when a hold ends, and are invalid when one begins.
    MarkKeptOverRemoval,
    /// Marks stay when ids begin again.
    MarkKeptOverTruncate,
    /// The acknowledged set goes by the holds that have ended, as marks do, and not by those that have begun.
    AdditionsUncounted,
    /// The read goes by the pauses of a second ago, as a relay that remembers them would.
    PausesRemembered,
    /// A held topic is probed although it is paused.
    ProbedThoughPaused,
    /// An acknowledgement of a probe that comes late is not settled while its row is paused.
    SettledLateUnlessPaused,
    /// Rows are reported as stored when they are handed over.
    SettledBeforeAcknowledged,
    /// The acknowledged set knows a row by its id alone.
    KnownByIdAlone,
    /// A row whose fate is unknown counts as stored.
    UnknownIsSuccess,
    /// A success without an offset counts as stored.
    NoOffsetIsSuccess,
    /// What timed out is sent again by the same producer, behind what it has sent since.
    ResentOnSameProducer,
    /// Rows go on being handed over while the queue is purged.
    EnqueuedWhilePurged,
    /// A topic that is missing fails its rows one by one, and the same session goes on once it exists.
    TopicCreatedMidBatch,
    /// A new session begins with several rows.
    NotPrimed,
    /// A producer goes on after a record was refused for good.
    GapsAfterRefusal,
    /// A row is found guilty with its batch.
    GuiltyByBatch,
    /// A row that is refused before it is sent blocks its key although an earlier row of the key stays unsent.
    BlockedBehindOpenRow,
    /// A relay that was frozen records its settlement although its claim has ended.
    SettledAfterTakeover,
    /// A relay does not see that another one publishes to a topic that it has held.
    ReleasesUnnoticed,
    /// A topic that one relay probes is probed by the others as well.
    LeaseIgnored,
    /// The reaper deletes by age, sent or not.
    ReapsUnsent,
    /// A row that cannot be read is left out, and those behind it are read.
    UnreadableSkipped,
    /// A row counts as unreadable without having been read alone.
    UnreadableUnproven,
    /// The reaper does not look again at a row that was put back meanwhile.
    ReapsPutBack,
}

/// Nothing fails.
pub const CALM: Plan = Plan {
    relays: 2,
    workers: 2,
    writers: 3,
    transactions: 4,
    writing: Duration::from_secs(2),
    topics: 2,
    keys: 4,
    lanes: 2,
    batch_rows: 6,
    batch_bytes: 450,
    deletes_sent: false,
    pooler: false,
    retention: None,
    rolls_back: 150,
    long_transaction: 150,
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
    request_refused: 0,
    request_answer_lost: 0,
    session_fatal: 0,
    row_locks: 0,
    put_backs: 0,
    holds_by_hand: 0,
    requeues: 0,
    pauses: 0,
    disasters: 0,
    kinds: &[],
    sabotage: None,
};

impl Plan {
    /// Sizes and ways of working differ, and nothing fails.
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
            deletes_sent: random.u8(..4) == 0,
            pooler: random.u8(..4) == 0,
            blocks_keys: random.u8(..3) == 0,
            retention: (random.u8(..3) == 0).then(|| Duration::from_millis(random.u64(100..=3_000))),
            ..CALM
        }
    }

    /// Two busy keys in one lane and large batches: much may go wrong between two rows.
    pub fn busy(seed: u64) -> Plan {
        let writing = Duration::from_secs(2);
        let traffic = Plan { writers: 3, transactions: 5, writing, ..Plan::calm(seed) };
        Plan { topics: 1, keys: 2, lanes: 1, batch_rows: 8, batch_bytes: 900, blocks_keys: false, ..traffic }
    }

    /// Any of the faults, each in about half of the schedules: some faults hide others.
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
            kinds: ALL,
            ..if seed.is_multiple_of(3) { Plan::busy(seed) } else { Plan::calm(seed) }
        }
    }

    /// Nothing keeps a relay that lives from being heard by Postgres.
    pub fn is_always_heard(&self) -> bool {
        let unheard = [D::Kill, D::HostLost, D::FreezeShort, D::FreezeLong, D::CutFromPostgres];
        let broken = [D::PostgresRestarts, D::PostgresCrashes, D::FailsOver];
        let silences = |kind: &Disaster| unheard.contains(kind) || broken.contains(kind);
        let strikes = self.disasters > 0 && self.kinds.iter().any(silences);
        self.postgres_breaks == 0 && self.commit_answer_lost == 0 && !strikes
    }

    /// The same with this rule broken.
    pub fn breaking(self, rule: Sabotage) -> Plan {
        Plan { sabotage: Some(rule), ..self }
    }
}
