//! The part of a partition that is read.

use super::{MICROSECONDS, PartitionRead, ReadError, TopicReader, kafka};
use crate::publishing::producer::METADATA_TIMEOUT;
use rdkafka::consumer::Consumer as _;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

/// Receives the progress of the reading.
pub trait Progress {
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
    /// The partition's leader has confirmed the end, and the rest is read again.
    end_is_confirmed: bool,
}

impl TopicReader {
    /// The records of each partition from this time to its present end, and the record before them.
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
            let start = match start.map(|start| start.offset()) {
                Some(Offset::Offset(offset)) => offset,
                // No record is that late.
                _ => end,
            };
            parts.push(Partition::new(low, start, end));
        }
        Ok(parts)
    }

    /// The client has reached the end of the partition before the offset that was its end. Either the last offsets have no
    /// records, or the partition has a new leader that does not know yet that they are committed.
    pub(super) fn check_end(
        &self,
        topic: &str,
        partition: i32,
        part: &mut Partition,
    ) -> Result<(), ReadError> {
        if part.end_is_confirmed {
            part.skip_rest();
            return Ok(());
        }
        let doing = format!("reading the end of topic {topic}");
        let failed = |error| kafka(topic, &doing, &error);
        let (_, end) = self.consumer.fetch_watermarks(topic, partition, METADATA_TIMEOUT).map_err(failed)?;
        part.end_is_confirmed = end >= part.end;
        // The client does not report the same end twice.
        self.consumer.seek(topic, partition, Offset::Offset(part.next), METADATA_TIMEOUT).map_err(failed)
    }
}

impl Partition {
    /// From `low`, its first offset, to `end`. The range begins at `start`.
    fn new(low: i64, start: i64, end: i64) -> Partition {
        let start = start.clamp(low, end);
        Partition {
            next: (start - 1).max(low),
            end,
            is_truncated: low > 0 && start == low,
            first_us: None,
            has_gaps: false,
            end_is_confirmed: false,
        }
    }

    pub(super) fn left(&self) -> u64 {
        (self.end - self.next).unsigned_abs()
    }

    pub(super) fn is_done(&self) -> bool {
        self.next >= self.end
    }

    /// No records are left before the end.
    fn skip_rest(&mut self) {
        self.has_gaps |= !self.is_done();
        self.next = self.end;
    }

    /// Whether the record at this offset belongs to the range.
    pub(super) fn take(&mut self, offset: i64, at_us: i64) -> bool {
        if offset < self.next || offset >= self.end {
            if offset >= self.end {
                self.skip_rest();
            }
            return false;
        }
        self.has_gaps |= offset > self.next;
        self.end_is_confirmed = false;
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
        Partition { next, ..Partition::new(0, 0, end) }
    }

    #[test]
    fn record_before_the_range_is_read_too() {
        let first = |low, start, end| {
            let part = Partition::new(low, start, end);
            (part.next, part.is_truncated)
        };
        assert_eq!(first(0, 0, 8), (0, false));
        assert_eq!(first(0, 5, 8), (4, false));
        assert_eq!(first(0, 8, 8), (7, false), "no record is in the range");
        assert_eq!(first(3, 3, 8), (3, true));
        assert_eq!(first(3, 1, 8), (3, true), "records expired meanwhile");
        assert_eq!(first(3, 4, 8), (3, false));
        assert_eq!(first(8, 8, 8), (8, true));
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
        assert!(!part.take(9, 1) && part.is_done() && part.has_gaps);
    }
}
