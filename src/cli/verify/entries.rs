//! Entries: a row, a known event id or a record, in a form of a fixed size that sorts by event id, and sorting any number of them
//! in bounded memory.

use kafka::operate::reader::{Fingerprint, Record};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// The size of an entry in words of 16 bytes.
pub(super) const ENTRY_WORDS: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub id: i64,
    /// What must be in Kafka. `None` if the row is not judged: it is unsent, was created outside the range, belongs to a topic
    /// that is not verified, or cannot be published with the present configuration.
    pub expected: Option<Expected>,
}

/// The record of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Expected {
    /// The place in [`super::judge::Scope::topics`].
    pub topic: u32,
    pub partition: u32,
    /// In microseconds since 1970.
    pub created_us: i64,
    pub fingerprint: Fingerprint,
}

/// What is known about an event id. The variants are sorted in this order, rows by id and records by place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    Row(Row),
    /// The event is, or was, a dead letter.
    DeadLetter,
    /// An operator has replayed the event.
    Replay,
    /// An operator has copied the event to the topic at this place in [`super::judge::Scope::topics`].
    Copy(u32),
    Record(Record),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub event_id: Uuid,
    pub known: Known,
}

const JUDGED_ROW: u64 = 0;
const OTHER_ROW: u64 = 1;
const DEAD_LETTER: u64 = 2;
const REPLAY: u64 = 3;
const COPY: u64 = 4;
const RECORD: u64 = 5;

impl Entry {
    pub(super) fn encode(&self) -> [u128; ENTRY_WORDS] {
        let none = Fingerprint::default();
        let (kind, [first, second, third], Fingerprint { key, value, headers }) = match self.known {
            Known::Row(Row { id, expected: Some(expected) }) => {
                let Expected { topic, partition, created_us, fingerprint } = expected;
                (JUDGED_ROW, [sortable(id), pack_place(topic, partition), sortable(created_us)], fingerprint)
            }
            Known::Row(Row { id, expected: None }) => (OTHER_ROW, [sortable(id), 0, 0], none),
            Known::DeadLetter => (DEAD_LETTER, [0; 3], none),
            Known::Replay => (REPLAY, [0; 3], none),
            Known::Copy(topic) => (COPY, [topic.into(), 0, 0], none),
            Known::Record(Record { topic, partition, offset, at_us, fingerprint }) => {
                (RECORD, [pack_place(topic, partition), sortable(offset), sortable(at_us)], fingerprint)
            }
        };
        let [key, value, headers] = [key, value, headers].map(u128::from_be_bytes);
        [self.event_id.as_u128(), pack(kind, first), pack(second, third), key, value, headers]
    }

    pub(super) fn decode(&[event_id, start, rest, key, value, headers]: &[u128; ENTRY_WORDS]) -> Entry {
        let ((kind, first), (second, third)) = (unpack(start), unpack(rest));
        let [key, value, headers] = [key, value, headers].map(u128::to_be_bytes);
        let fingerprint = Fingerprint { key, value, headers };
        let known = match kind {
            JUDGED_ROW => {
                let ((topic, partition), created_us) = (unpack_place(second), signed(third));
                let expected = Some(Expected { topic, partition, created_us, fingerprint });
                Known::Row(Row { id: signed(first), expected })
            }
            OTHER_ROW => Known::Row(Row { id: signed(first), expected: None }),
            DEAD_LETTER => Known::DeadLetter,
            REPLAY => Known::Replay,
            COPY => Known::Copy(first as u32),
            _ => {
                let ((topic, partition), offset, at_us) =
                    (unpack_place(first), signed(second), signed(third));
                Known::Record(Record { topic, partition, offset, at_us, fingerprint })
            }
        };
        Entry { event_id: Uuid::from_u128(event_id), known }
    }
}

/// Inverts the sign, so that negative numbers sort first.
const SIGN: u64 = 1 << 63;

pub(super) fn sortable(number: i64) -> u64 {
    number as u64 ^ SIGN
}

pub(super) fn signed(sortable: u64) -> i64 {
    (sortable ^ SIGN) as i64
}

pub(super) fn pack(high: u64, low: u64) -> u128 {
    (u128::from(high) << 64) | u128::from(low)
}

pub(super) fn unpack(word: u128) -> (u64, u64) {
    ((word >> 64) as u64, word as u64)
}

pub(super) fn pack_place(topic: u32, partition: u32) -> u64 {
    (u64::from(topic) << 32) | u64::from(partition)
}

pub(super) fn unpack_place(place: u64) -> (u32, u32) {
    ((place >> 32) as u32, place as u32)
}

/// The memory for entries that are not in a file yet.
const BUFFER_BYTES: usize = 32 * 1024 * 1024;
/// More runs are merged into one, because each needs a file descriptor and a buffer.
const RUNS_MAX: usize = 128;

/// Sorts entries of a fixed size, with sorted runs in temporary files. The files have no name, so nothing is left when the
/// process ends, however it ends.
pub(super) struct Sorter<const N: usize> {
    folder: PathBuf,
    buffer: Vec<[u128; N]>,
    buffer_max: usize,
    runs: Vec<File>,
}

impl<const N: usize> Sorter<N> {
    pub(super) fn new(folder: &Path) -> Sorter<N> {
        Sorter::with_buffer(folder, BUFFER_BYTES / size_of::<[u128; N]>())
    }

    fn with_buffer(folder: &Path, buffer_max: usize) -> Sorter<N> {
        Sorter { folder: folder.to_owned(), buffer: Vec::new(), buffer_max, runs: Vec::new() }
    }

    pub(super) fn push(&mut self, entry: [u128; N]) -> io::Result<()> {
        if self.buffer.len() >= self.buffer_max {
            self.write_run()?;
        }
        self.buffer.push(entry);
        Ok(())
    }

    fn write_run(&mut self) -> io::Result<()> {
        self.buffer.sort_unstable();
        self.runs.push(write(&self.folder, self.buffer.drain(..).map(Ok))?);
        if self.runs.len() >= RUNS_MAX {
            let all: Sorted<N> = Sorted::new(std::mem::take(&mut self.runs))?;
            self.runs.push(write(&self.folder, all)?);
        }
        Ok(())
    }

    pub(super) fn sorted(mut self) -> io::Result<Sorted<N>> {
        self.write_run()?;
        Sorted::new(self.runs)
    }
}

/// Writes a run, ready to be read from its beginning.
fn write<const N: usize>(
    folder: &Path,
    entries: impl Iterator<Item = io::Result<[u128; N]>>,
) -> io::Result<File> {
    let mut writer = BufWriter::new(tempfile::tempfile_in(folder)?);
    for entry in entries {
        for word in entry? {
            writer.write_all(&word.to_be_bytes())?;
        }
    }
    let mut file = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.rewind()?;
    Ok(file)
}

/// Merges sorted runs.
pub(super) struct Sorted<const N: usize> {
    runs: Vec<BufReader<File>>,
    /// The next entry of each run.
    next: BinaryHeap<Reverse<([u128; N], usize)>>,
}

impl<const N: usize> Sorted<N> {
    fn new(runs: Vec<File>) -> io::Result<Sorted<N>> {
        let places = 0..runs.len();
        let runs = runs.into_iter().map(BufReader::new).collect();
        let mut sorted = Sorted { runs, next: BinaryHeap::new() };
        for place in places {
            sorted.read(place)?;
        }
        Ok(sorted)
    }

    /// Reads the next entry of a run, if there is one.
    fn read(&mut self, place: usize) -> io::Result<()> {
        let mut entry = [0; N];
        for word in &mut entry {
            let mut bytes = [0; 16];
            match self.runs[place].read_exact(&mut bytes) {
                Ok(()) => *word = u128::from_be_bytes(bytes),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.next.push(Reverse((entry, place)));
        Ok(())
    }
}

impl<const N: usize> Iterator for Sorted<N> {
    type Item = io::Result<[u128; N]>;

    fn next(&mut self) -> Option<io::Result<[u128; N]>> {
        let Reverse((entry, place)) = self.next.pop()?;
        Some(self.read(place).map(|()| entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_sort_like_numbers() {
        let numbers = [i64::MIN, -2, -1, 0, 1, 2, i64::MAX];
        let written = numbers.map(|number| pack(sortable(number), 7));
        assert!(written.is_sorted());
        assert_eq!(written.map(|word| signed(unpack(word).0)), numbers);
    }

    #[test]
    fn entries_are_read_as_written_and_sort_by_event() {
        let fingerprint = Fingerprint { key: [1; 16], value: [2; 16], headers: [3; 16] };
        let expected = Expected { topic: 7, partition: 8, created_us: -9, fingerprint };
        let record = |offset| Known::Record(Record { topic: 1, partition: 2, offset, at_us: 4, fingerprint });
        let known = [
            Known::Row(Row { id: -1, expected: Some(expected) }),
            Known::Row(Row { id: i64::MAX, expected: Some(expected) }),
            Known::Row(Row { id: 5, expected: None }),
            Known::DeadLetter,
            Known::Replay,
            Known::Copy(7),
            record(1),
            record(256),
        ];
        let entries =
            [1, 2].map(|id| known.map(|known| Entry { event_id: Uuid::from_u128(id), known })).concat();
        let encoded: Vec<_> = entries.iter().map(Entry::encode).collect();
        assert!(encoded.is_sorted());
        assert_eq!(encoded.iter().map(Entry::decode).collect::<Vec<_>>(), entries);
    }

    #[test]
    fn entries_are_sorted_with_any_number_of_runs() {
        let mut random = fastrand::Rng::with_seed(1);
        for (entries, buffer) in [(0, 10), (5, 10), (10, 10), (1_000, 10), (20_000, 50)] {
            let mut sorter = Sorter::<2>::with_buffer(&std::env::temp_dir(), buffer);
            let mut expected: Vec<[u128; 2]> =
                (0..entries).map(|_| [random.u128(..1_000), random.u128(..)]).collect();
            for entry in &expected {
                sorter.push(*entry).unwrap();
                assert!(sorter.runs.len() < RUNS_MAX && sorter.buffer.len() <= buffer);
            }
            expected.sort_unstable();
            let sorted: io::Result<Vec<_>> = sorter.sorted().unwrap().collect();
            assert!(sorted.unwrap() == expected, "{entries} entries");
        }
    }

    #[test]
    fn folder_that_does_not_exist_is_an_error() {
        let mut sorter = Sorter::<1>::with_buffer(Path::new("/does/not/exist"), 1);
        sorter.push([1]).unwrap();
        assert_eq!(sorter.push([2]).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
