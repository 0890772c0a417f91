//! What one row costs the relay, part by part and without servers. Two programs measure the same [`PARTS`]: the
//! criterion benchmark in nanoseconds, the binary `instructions` under valgrind in instructions.
//!
//! ```text
//!   wire ── read ──▶ OutboxRow ── session ── partition, record, send ──▶ librdkafka
//!                                    └──── reports ── reach, marks
//! ```
//!
//! `microbench/README.md` says how to run them, and how to read them.

mod acknowledged;
mod failures;
mod publish;
mod read;
mod rows;
mod session;

/// So many rows are in a batch: the default of `batch_size` when there is much to do.
pub const ROWS: usize = 5_000;

/// A part of the per-row path, which works on one batch of [`ROWS`] rows after the other.
pub trait Part {
    /// Brings everything to where the next batch begins. Not measured.
    fn prepare(&mut self) {}

    /// Works on one batch. What is measured.
    fn run(&mut self);
}

/// A name, and what makes the part.
pub type Entry = (&'static str, fn() -> Box<dyn Part>);

/// Every part, in the order in which a row meets them.
pub const PARTS: &[Entry] = &[
    ("read", || Box::new(read::Decode::new())),
    ("partition", || Box::new(publish::Partition::new())),
    ("record", || Box::new(publish::Record::new(rows::Headers::None))),
    ("record with traceparent", || Box::new(publish::Record::new(rows::Headers::Traceparent))),
    ("send to librdkafka", || Box::new(publish::Send::new())),
    ("session", || Box::new(session::Handover::new())),
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

/// A runtime like the relay's: one thread.
fn runtime() -> tokio::runtime::Runtime {
    let built = tokio::runtime::Builder::new_current_thread().enable_time().build();
    built.unwrap_or_else(|error| panic!("no runtime: {error}"))
}
