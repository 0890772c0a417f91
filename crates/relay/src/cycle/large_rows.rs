//! Large rows: Kafka refuses a whole request because of one record that is too large for its topic. A row at least as large
//! as one that its topic has refused is therefore kept back and judged alone, so that it does not fail the session.

use crate::cycle::session::Destination;
use crate::rows::refusals::RefusedSizes;

/// The partitions of the current batch in which a large row has to be judged. Later rows of them wait for the next batch.
#[derive(Default)]
pub(crate) struct LargeRows {
    sizes: RefusedSizes,
    partitions: Vec<Destination>,
}

impl LargeRows {
    pub(crate) fn begin(&mut self, sizes: &RefusedSizes) {
        self.sizes = sizes.clone();
        self.partitions.clear();
    }

    /// Whether the rows of this partition wait behind a large row.
    pub(crate) fn blocks(&self, destination: Destination) -> bool {
        !self.partitions.is_empty() && self.partitions.contains(&destination)
    }

    /// Keeps a row of this size back if its topic would probably refuse it. Earlier rows of its partition must already be
    /// sent, because it is judged only after they are acknowledged.
    pub(crate) fn keeps(&mut self, destination: Destination, topic: &str, size: usize) -> bool {
        let is_large = self.sizes.covers(topic, size);
        if is_large {
            self.partitions.push(destination);
        }
        is_large
    }
}
