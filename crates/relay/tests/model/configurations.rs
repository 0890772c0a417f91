//! The configurations that are searched. The small ones run with every `cargo test`, the large ones with `make model`.

use super::configuration::{A_K, A_L, B_K, Configuration, Fault, Written};
use super::events::Set;

/// Topic A, a third key.
const A_M: Written = Written { topic: 0, key: 'm' };

const BASE: Configuration = Configuration::BASE;

/// Everything that interrupts a cycle, in Kafka or in PostgreSQL.
const CYCLE_FAULTS: &[Fault] = &[
    Fault::Crash,
    Fault::ClaimEnded,
    Fault::CommitAnswerLost,
    Fault::RequestFailed,
    Fault::FirstRequestRefused,
];

const ALL_FAULTS: &[Fault] = &[
    Fault::PutBack,
    Fault::Crash,
    Fault::ClaimEnded,
    Fault::CommitAnswerLost,
    Fault::RequestFailed,
    Fault::FirstRequestRefused,
    Fault::StandbyBehind,
    Fault::TopicHeld,
    Fault::RowLocked,
];

const ALL_FAULTS_BUT_REPLAY: &[Fault] = ALL_FAULTS.split_at(1).1;

/// No faults: two relays, two topics, a limit that cuts reads off, and a writer that stays open or rolls back.
pub const CALM: Configuration = Configuration {
    name: "calm",
    events: &[A_K, B_K, A_L, A_K],
    long: Set::of(&[0]),
    may_roll_back: Set::of(&[0]),
    relays: 2,
    limit: 2,
    ..BASE
};

/// Two faults of the cycle and three rows of one key.
pub const CYCLE: Configuration = Configuration {
    name: "cycle",
    events: &[A_K, A_K, A_K],
    relays: 2,
    faults: CYCLE_FAULTS,
    faults_max: 2,
    ..BASE
};

/// A topic that does not exist when its first rows are read.
pub const LATE_TOPIC: Configuration = Configuration {
    name: "late topic",
    events: &[B_K, A_L, B_K],
    relays: 2,
    missing_topics: Set::of(&[1]),
    faults: &[Fault::RequestFailed],
    faults_max: 1,
    ..BASE
};

/// Marks and a writer that stays open.
pub const MARKS: Configuration = Configuration {
    name: "marks",
    events: &[A_L, A_K, A_L, A_K],
    long: Set::of(&[1]),
    may_roll_back: Set::of(&[1]),
    marks: true,
    ..BASE
};

/// Marks and a writer that draws its id before it inserts the row.
pub const DRAWN: Configuration =
    Configuration { name: "drawn", early: Set::of(&[1]), may_roll_back: Set::of(&[]), ..MARKS };

/// Marks that except a writer that stays open.
pub const EXCEPTED: Configuration = Configuration { name: "excepted", excepts: true, ..MARKS };

/// Marks that except two writers, one of which draws its id before it inserts the row.
pub const EXCEPTED_DRAWN: Configuration = Configuration {
    name: "excepted, drawn",
    events: &[A_L, A_K, A_M, A_K],
    long: Set::of(&[1, 2]),
    early: Set::of(&[1]),
    may_roll_back: Set::of(&[]),
    excepts: true,
    ..MARKS
};

/// Marks that scans raise.
pub const SCANS: Configuration = Configuration { name: "scans", scans: true, ..EXCEPTED };

/// Marks and prepared transactions.
pub const PREPARED: Configuration = Configuration {
    name: "prepared",
    events: &[A_K, A_L, A_K],
    long: Set::of(&[0, 1]),
    may_prepare: Set::of(&[0, 1]),
    marks: true,
    ..BASE
};

/// Marks and reads that a limit cuts off.
pub const CUT: Configuration = Configuration {
    name: "cut",
    events: &[A_L, A_K, A_M, A_K],
    long: Set::of(&[0, 1]),
    limit: 1,
    marks: true,
    ..BASE
};

/// Marks and failed batches.
pub const MARKS_CYCLE: Configuration = Configuration {
    name: "marks, cycle",
    events: &[A_K, A_K],
    marks: true,
    faults: CYCLE_FAULTS,
    faults_max: 2,
    ..BASE
};

/// Marks that pass the rows of a held topic.
pub const HOLDS: Configuration = Configuration {
    name: "holds",
    events: &[B_K, A_L, B_K],
    marks: true,
    faults: &[Fault::TopicHeld],
    faults_max: 2,
    ..BASE
};

/// Held topics that are probed with one row, by requests that may arrive late.
pub const PROBES: Configuration = Configuration {
    name: "probes",
    events: &[B_K, B_K, B_K],
    probes: true,
    faults: &[Fault::TopicHeld, Fault::RequestFailed, Fault::ClaimEnded],
    faults_max: 2,
    ..BASE
};

/// A failover that loses commits and issues their ids again.
pub const FAILOVER: Configuration = Configuration {
    name: "failover",
    events: &[A_K, A_K, A_K],
    marks: true,
    faults: &[Fault::StandbyBehind],
    faults_max: 1,
    ..BASE
};

/// The same failover behind a pooler, whose connections survive it.
pub const POOLER: Configuration = Configuration { name: "pooler", backends: 2, ..FAILOVER };

/// An operator's transaction locks a row.
pub const LOCKED_ROW: Configuration = Configuration {
    name: "locked row",
    events: &[A_K, A_K],
    marks: true,
    faults: &[Fault::RowLocked, Fault::RequestFailed],
    faults_max: 2,
    ..BASE
};

/// An operator puts a row back, so that it is published again.
pub const REPLAY: Configuration = Configuration {
    name: "replay",
    events: &[A_K, A_K],
    marks: true,
    faults: &[Fault::PutBack, Fault::CommitAnswerLost, Fault::ClaimEnded],
    faults_max: 2,
    ..BASE
};

/// A row in the middle of its key that can never be sent.
pub const BLOCKS: Configuration = Configuration {
    name: "blocks",
    events: &[A_L, A_K, A_K, A_K],
    refused: Set::of(&[2]),
    faults: &[Fault::RequestFailed, Fault::RowLocked],
    faults_max: 2,
    ..BASE
};

/// A flow next to a writer that stays open.
pub const FLOW: Configuration = Configuration { name: "flow", flows: true, ..MARKS };

/// Flows whose search leaves out the ids of excepted transactions.
pub const FLOW_EXCEPTED: Configuration = Configuration { name: "flow, excepted", flows: true, ..EXCEPTED };

/// The same, with room for one id in its search.
pub const FLOW_GAPS: Configuration = Configuration {
    name: "flow, gaps",
    events: &[A_K, A_L, A_M, A_K],
    long: Set::of(&[0, 1]),
    flows: true,
    gaps_max: 1,
    ..MARKS
};

/// Flows next to reads that are cut off.
pub const FLOW_CUT: Configuration = Configuration { name: "flow, cut", flows: true, ..CUT };

/// Flows while holds begin and end.
pub const FLOW_HOLDS: Configuration = Configuration { name: "flow, holds", flows: true, ..HOLDS };

/// Flows that read a row that can never be sent.
pub const FLOW_BLOCKS: Configuration = Configuration {
    name: "flow, blocks",
    events: &[A_K, A_K, A_K],
    refused: Set::of(&[1]),
    marks: true,
    flows: true,
    faults: &[Fault::RequestFailed],
    faults_max: 1,
    ..BASE
};

/// Flows while the server fails over and issues ids again.
pub const FLOW_FAILOVER: Configuration =
    Configuration { name: "flow, failover", events: &[A_K, A_K, A_K], flows: true, ..FAILOVER };

/// Flows that fail.
pub const FLOW_CYCLE: Configuration =
    Configuration { name: "flow, cycle", events: &[A_K, A_K, A_K], flows: true, ..MARKS_CYCLE };

/// Every fault, next to a writer that stays open, is prepared or rolls back.
const EVERYTHING: Configuration = Configuration {
    name: "everything, writers",
    events: &[A_K, A_L, A_K],
    long: Set::of(&[0]),
    may_prepare: Set::of(&[0]),
    may_roll_back: Set::of(&[0]),
    faults: ALL_FAULTS,
    faults_max: 2,
    marks: true,
    ..BASE
};

pub const SMALL: &[Configuration] = &[
    CALM,
    CYCLE,
    LATE_TOPIC,
    MARKS,
    DRAWN,
    EXCEPTED,
    PREPARED,
    CUT,
    MARKS_CYCLE,
    HOLDS,
    PROBES,
    FAILOVER,
    POOLER,
    LOCKED_ROW,
    REPLAY,
    BLOCKS,
    FLOW,
    FLOW_BLOCKS,
    FLOW_CYCLE,
    FLOW_FAILOVER,
];

pub const LARGE: &[Configuration] = &[
    Configuration { name: "calm, with marks", marks: true, ..CALM },
    Configuration { name: "cycle, three faults", faults_max: 3, ..CYCLE },
    Configuration {
        name: "cycle, four rows of two topics",
        events: &[A_K, B_K, A_K, B_K],
        limit: 3,
        ..CYCLE
    },
    Configuration {
        name: "cycle, two topics, three faults",
        events: &[A_K, B_K, A_K],
        faults_max: 3,
        ..CYCLE
    },
    Configuration { name: "late topic, two faults", faults: CYCLE_FAULTS, faults_max: 2, ..LATE_TOPIC },
    Configuration { name: "late topic, with marks", marks: true, ..LATE_TOPIC },
    Configuration { name: "marks, two relays", relays: 2, ..MARKS },
    Configuration {
        name: "prepared, with a failover",
        faults: &[Fault::StandbyBehind],
        faults_max: 1,
        ..PREPARED
    },
    Configuration { name: "cut, two relays", relays: 2, ..CUT },
    Configuration { name: "marks, cycle, three rows", events: &[A_K, A_L, A_K], ..MARKS_CYCLE },
    Configuration { name: "marks, cycle, two relays", relays: 2, ..MARKS_CYCLE },
    Configuration { name: "holds, two relays", relays: 2, ..HOLDS },
    Configuration { name: "probes, two relays", relays: 2, marks: true, ..PROBES },
    Configuration { name: "failover, two relays", relays: 2, ..FAILOVER },
    Configuration {
        name: "failover, four rows",
        events: &[A_K, A_L, A_K, A_K],
        late_answers: true,
        ..FAILOVER
    },
    Configuration {
        name: "pooler, late answers",
        late_answers: true,
        faults: &[Fault::StandbyBehind, Fault::ClaimEnded],
        faults_max: 2,
        ..POOLER
    },
    Configuration { name: "locked row, two relays", relays: 2, ..LOCKED_ROW },
    Configuration { name: "replay, two relays", relays: 2, ..REPLAY },
    Configuration { name: "blocks, with marks", marks: true, ..BLOCKS },
    Configuration {
        name: "blocks, two relays",
        relays: 2,
        faults: &[Fault::RequestFailed, Fault::RowLocked, Fault::ClaimEnded],
        ..BLOCKS
    },
    Configuration { name: "drawn, two relays", relays: 2, ..DRAWN },
    Configuration { name: "flow, drawn", flows: true, ..DRAWN },
    EXCEPTED_DRAWN,
    SCANS,
    FLOW_EXCEPTED,
    Configuration { name: "excepted, two relays", relays: 2, ..EXCEPTED },
    Configuration { name: "excepted, prepared", excepts: true, scans: true, ..PREPARED },
    Configuration { name: "excepted, cut", excepts: true, ..CUT },
    Configuration {
        name: "excepted, cycle",
        events: &[A_K, A_L, A_K],
        long: Set::of(&[0]),
        excepts: true,
        scans: true,
        faults_max: 1,
        ..MARKS_CYCLE
    },
    Configuration { name: "excepted, holds", long: Set::of(&[1]), excepts: true, scans: true, ..HOLDS },
    Configuration { name: "excepted, failover", long: Set::of(&[0]), excepts: true, scans: true, ..FAILOVER },
    Configuration { name: "scans, replay", scans: true, ..REPLAY },
    Configuration { name: "flow, excepted, drawn", flows: true, ..EXCEPTED_DRAWN },
    Configuration { name: "flow, excepted, scans", scans: true, ..FLOW_EXCEPTED },
    Configuration { name: "flow, two relays", relays: 2, ..FLOW },
    Configuration { name: "flow, gaps, two relays", relays: 2, ..FLOW_GAPS },
    Configuration { name: "flow, cut, two relays", relays: 2, ..FLOW_CUT },
    Configuration { name: "flow, holds, two relays", relays: 2, ..FLOW_HOLDS },
    Configuration { name: "flow, cycle, two relays", relays: 2, events: &[A_K, A_K], ..FLOW_CYCLE },
    Configuration { name: "flow, blocks, with marks", flows: true, marks: true, ..BLOCKS },
    Configuration { name: "flow, prepared", flows: true, ..PREPARED },
    Configuration { name: "flow, pooler", flows: true, ..POOLER },
    Configuration { name: "flow, replay", flows: true, ..REPLAY },
    Configuration { name: "flow, late topic", flows: true, marks: true, ..LATE_TOPIC },
    Configuration { name: "flow, everything", flows: true, ..EVERYTHING },
    // Without replays: a row that is put back while its key is blocked waits too.
    Configuration {
        name: "blocks, all faults but replays",
        events: &[A_K, A_K, A_K],
        refused: Set::of(&[1]),
        marks: true,
        faults: ALL_FAULTS_BUT_REPLAY,
        ..BLOCKS
    },
    Configuration { name: "everything, late topic", faults: ALL_FAULTS, faults_max: 2, ..LATE_TOPIC },
    EVERYTHING,
    Configuration { name: "everything, pooler", faults: ALL_FAULTS, faults_max: 2, ..POOLER },
    Configuration {
        name: "everything, two rows",
        events: &[A_K, A_K],
        relays: 2,
        faults: ALL_FAULTS,
        faults_max: 2,
        marks: true,
        ..BASE
    },
    Configuration {
        name: "everything, three faults",
        events: &[A_K, A_K],
        faults: ALL_FAULTS,
        faults_max: 3,
        marks: true,
        ..BASE
    },
];
