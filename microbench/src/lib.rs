//! The cost of one row in the relay, part by part and without servers. Two programs measure the same [`PARTS`]: the
//! criterion benchmark counts nanoseconds, and the binary `instructions` counts instructions under valgrind.
//!
//! ```text
//!   wire ── read ──▶ OutboxRow ── session ── partition, record, send ──▶ librdkafka
//!                                    └──── reports ── reach, marks
//! ```
//!
//! `microbench/README.md` explains how to run them and how to read the results.

mod acknowledged;
mod failures;
mod publish;
mod read;
mod rows;
mod session;

/// The number of rows in a batch: the default of `batch_size` under load.
pub const ROWS: usize = 5_000;

/// A part of the per-row path, which processes one batch of [`ROWS`] rows after the other.
pub trait Part {
    /// Restores the state before a batch. Not measured.
    fn prepare(&mut self) {}

    /// Processes one batch. Measured.
    fn run(&mut self);
}

/// The name of a part, and its constructor.
pub type Entry = (&'static str, fn() -> Box<dyn Part>);

/// Every part, in the order in which a row passes through them.
pub const PARTS: &[Entry] = &[
    ("read", || Box::new(read::Decode::new())),
    ("partition", || Box::new(publish::Partition::new())),
    ("record", || Box::new(publish::Record::new(rows::Headers::None))),
    ("record with traceparent", || Box::new(publish::Record::new(rows::Headers::Traceparent))),
    ("send to librdkafka", || Box::new(publish::Send::new())),
    ("session", || Box::new(session::SendBatch::new())),
    ("reach and marks", || Box::new(session::Marking::new())),
    ("acknowledged: keep, 0 others", || Box::new(acknowledged::Keep::new(0))),
    ("acknowledged: keep, 5000 others", || Box::new(acknowledged::Keep::new(5_000))),
    ("acknowledged: keep, 100000 others", || Box::new(acknowledged::Keep::new(100_000))),
    ("acknowledged: contains, 0 others", || Box::new(acknowledged::Contains::new(0))),
    ("acknowledged: contains, 5000 others", || Box::new(acknowledged::Contains::new(5_000))),
    ("acknowledged: contains, 100000 others", || Box::new(acknowledged::Contains::new(100_000))),
    ("acknowledged: forget, 0 others", || Box::new(acknowledged::Forget::new(0))),
    ("acknowledged: forget, 5000 others", || Box::new(acknowledged::Forget::new(5_000))),
    ("acknowledged: forget, 100000 others", || Box::new(acknowledged::Forget::new(100_000))),
    ("classify Kafka's code", || Box::new(failures::Codes)),
    ("classify an SQLSTATE", || Box::new(failures::Sqlstates)),
];

/// A single-threaded runtime, like the relay's.
fn runtime() -> tokio::runtime::Runtime {
    let built = tokio::runtime::Builder::new_current_thread().enable_time().build();
    built.unwrap_or_else(|error| panic!("cannot create a runtime: {error}"))
}
