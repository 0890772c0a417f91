//! The settings that are tried to find the fastest Debezium.

use std::fmt;

/// Settings of the connector and of its JVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// `max.batch.size`. The queue holds four batches.
    pub batch_rows: u32,
    /// `linger.ms` of the producer.
    pub linger_ms: u32,
    /// Whether PostgreSQL sends, and Debezium decodes, only the columns that become a record.
    pub needed_columns: bool,
    /// The size of the heap, which is allocated at the start.
    pub heap: &'static str,
    pub collector: &'static str,
}

impl Tuning {
    /// The settings that the relay is compared with, except for the batch size, which the drain benchmark tries itself.
    /// The parallel collector suits a machine with few cores and a benchmark of throughput.
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
