//! The part of a partition that is read.

use super::super::producer::METADATA_TIMEOUT;
use super::{MICROSECONDS, PartitionRead, ReadError, TopicReader, kafka};
use rdkafka::consumer::Consumer as _;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

/// Is told how far the reading is.
pub(crate) trait Progress {
    /// A topic with about this many records begins.
    fn begin(&self, topic: &str, records: u64);
    /// More records were read.
    fn advance(&self, records: u64);
}

/// Offsets from `next` to `end`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Partition {
    next: i64,
    end: i64,
    is_truncated: bool,
    first_us: Option<i64>,
    has_gaps: bool,
}

impl TopicReader {
    /// The records of each partition from this time to its present end.
    pub(super) fn find_range(
        &self,
        topic: &str,
        partitions: u32,
        since_us: i64,
    ) -> Result<Vec<Partition>, ReadError> {
        let doing = format!("reading the offsets of topic {topic}");
        let failed = |error| kafka(topic, &doing, &error);
        let mut times = list(topic, 0..partitions as i32);
        // Kafka has no negative times.
        let since_ms = (since_us / MICROSECONDS).max(0);
        times.set_all_offsets(Offset::Offset(since_ms)).map_err(failed)?;
        let starts = self.consumer.offsets_for_times(times, METADATA_TIMEOUT).map_err(failed)?;
        let mut parts = Vec::new();
        for partition in 0..partitions as i32 {
            let (low, end) =
                self.consumer.fetch_watermarks(topic, partition, METADATA_TIMEOUT).map_err(failed)?;
            let start = starts.find_partition(topic, partition);
            if let Some(start) = &start {
                start.error().map_err(failed)?;
            }
            let next = match start.map(|start| start.offset()) {
                Some(Offset::Offset(offset)) => offset.clamp(low, end),
                // No record is that late.
                _ => end,
            };
            let is_truncated = low > 0 && next == low;
            parts.push(Partition { next, end, is_truncated, first_us: None, has_gaps: false });
        }
        Ok(parts)
    }
}

impl Partition {
    pub(super) fn left(&self) -> u64 {
        (self.end - self.next).unsigned_abs()
    }

    pub(super) fn is_done(&self) -> bool {
        self.next >= self.end
    }

    pub(super) fn end(&mut self) {
        self.next = self.end;
    }

    /// Whether the record at this offset belongs to the range.
    pub(super) fn take(&mut self, offset: i64, at_us: i64) -> bool {
        if offset < self.next || offset >= self.end {
            // A record after the end shows that no more records are left before it.
            self.next = self.next.max(offset.min(self.end));
            return false;
        }
        self.has_gaps |= offset > self.next;
        self.first_us.get_or_insert(at_us);
        self.next = offset + 1;
        true
    }

    pub(super) fn result(&self) -> PartitionRead {
        let Partition { is_truncated, first_us, has_gaps, .. } = *self;
        PartitionRead { is_truncated, first_us, has_gaps }
    }
}

/// The partitions that have records to read, with their first offsets.
pub(super) fn unread(topic: &str, parts: &[Partition]) -> TopicPartitionList {
    let mut unread = TopicPartitionList::new();
    for (partition, part) in (0..).zip(parts).filter(|(_, part)| !part.is_done()) {
        unread
            .add_partition(topic, partition)
            .set_offset(Offset::Offset(part.next))
            .unwrap_or_else(|error| unreachable!("{error}: an offset is never negative"));
    }
    unread
}

pub(super) fn list(topic: &str, partitions: impl IntoIterator<Item = i32>) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for partition in partitions {
        list.add_partition(topic, partition);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(next: i64, end: i64) -> Partition {
        Partition { next, end, is_truncated: false, first_us: None, has_gaps: false }
    }

    #[test]
    fn records_of_the_range_are_taken_once() {
        let mut part = part(5, 8);
        assert!(!part.take(4, 1), "before the range");
        assert!(part.take(5, 2) && !part.take(5, 2));
        assert_eq!((part.left(), part.has_gaps, part.first_us), (2, false, Some(2)));
        assert!(part.take(7, 3) && part.has_gaps && part.is_done());
        assert!(!part.take(8, 4), "after the range");
        assert_eq!(part.left(), 0);
    }

    #[test]
    fn record_after_the_end_ends_the_range() {
        let mut part = part(5, 8);
        assert!(!part.take(9, 1) && part.is_done());
    }
}
