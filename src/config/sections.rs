//! The simple sections of the configuration, as the program uses them.

use std::net::SocketAddr;
use std::time::Duration;

use super::size::ByteSize;
use super::table::TableName;
use pg_outbox::topic::TopicTemplate;

/// `[outbox]`: the table, and how its rows become records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outbox {
    /// The outbox table.
    pub table: TableName,
    /// The template of the topic's name.
    pub topic: TopicTemplate,
    /// What happens to a row that Kafka has.
    pub on_sent: OnSent,
    /// What happens to a row that Kafka definitely rejects.
    pub on_rejected: OnRejected,
    /// How many rejected rows in a row are the rows' fault, and not the topic's.
    pub rejections_before_hold: u32,
    /// The headers that are added on request.
    pub optional_headers: Vec<OptionalHeader>,
}

/// What happens to a row that Kafka has acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnSent {
    /// `sent_at` is set, and the reaper deletes the row later.
    Mark,
    /// The row is deleted.
    Delete,
}

/// What happens to a row that can never become a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnRejected {
    /// It moves to the dead letters, and the rows behind it go on.
    #[default]
    DeadLetter,
    /// It stays, and the rows of its key wait behind it until somebody decides.
    BlockKey,
}

/// A header that records carry only on request, since each costs time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionalHeader {
    /// The row's aggregate type.
    AggregateType,
    /// When the row was inserted.
    CreatedAt,
}

/// `[relay]`: how much is moved at once, and how long things may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relay {
    /// The most rows in one batch.
    pub batch_size: usize,
    /// The most bytes in one batch that has more than one row.
    pub batch_bytes: ByteSize,
    /// The longest pause between two looks at an empty outbox.
    pub poll_interval: Duration,
    /// How many batches are under way at once.
    pub workers: usize,
    /// How long Kafka may take to acknowledge a batch.
    pub publish_timeout: Duration,
    /// How long a relay that froze or vanished keeps its claim.
    pub takeover_timeout: Duration,
    /// How long SIGTERM waits for what is in flight.
    pub shutdown_timeout: Duration,
}

/// `[reaper]`: the deletion of rows that were sent long ago.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reaper {
    /// Whether `run` deletes old rows.
    pub enabled: bool,
    /// How long a row is kept after it was sent.
    pub retention: Duration,
    /// How often old rows are looked for.
    pub interval: Duration,
    /// The most rows deleted in one transaction.
    pub batch_size: usize,
    /// How long the module inbox keeps the mark of an event.
    pub inbox_retention: Duration,
    /// How long the module idempotency keeps a finished request.
    pub idempotency_retention: Duration,
}

/// `[admin]`: metrics and health over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Where to listen; `None` opens no port.
    pub listen: Option<SocketAddr>,
}

/// `[log]`: what is logged, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// A filter in the syntax of tracing's `EnvFilter`.
    pub level: String,
    /// The form of the lines.
    pub format: LogFormat,
}

/// The form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// journald under systemd, else text.
    Auto,
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
    /// Entries with fields in the journal.
    Journald,
}
