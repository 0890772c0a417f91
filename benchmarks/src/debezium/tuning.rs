//! What is tried in search of the fastest Debezium.

use std::fmt;

/// Settings of the connector and of the JVM around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// `max.batch.size`; the queue holds four of them.
    pub batch_rows: u32,
    /// `linger.ms` of the producer.
    pub linger_ms: u32,
    /// Postgres sends, and Debezium decodes, only the columns that become a record.
    pub needed_columns: bool,
    /// At its full size from the start.
    pub heap: &'static str,
    pub collector: &'static str,
}

impl Tuning {
    /// What is compared with, but for the size of batches, which the comparison itself tries. The parallel collector: the
    /// machine has few cores, and nobody waits for a single row.
    pub const DEFAULT: Self =
        Self { batch_rows: 8_192, linger_ms: 5, needed_columns: true, heap: "1g", collector: "Parallel" };

    /// The JVM's flags.
    pub fn flags(&self) -> [String; 3] {
        let Self { heap, collector, .. } = self;
        [format!("-Xms{heap}"), format!("-Xmx{heap}"), format!("-XX:+Use{collector}GC")]
    }
}

impl fmt::Display for Tuning {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { batch_rows, linger_ms, needed_columns, heap, collector } = self;
        let columns = if *needed_columns { "needed columns" } else { "all columns" };
        write!(
            to,
            "max.batch.size={batch_rows} linger.ms={linger_ms}, {columns}, {collector} GC, heap {heap}"
        )
    }
}
