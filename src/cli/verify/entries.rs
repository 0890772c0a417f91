//! Entries: a row, a known event id or a record, in a form of a fixed size that sorts by event id, and sorting any number of them
//! in bounded memory.

use kafka::operate::reader::{Fingerprint, Record};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// The size of an entry in bytes.
pub(super) const ENTRY_BYTES: usize = 90;

/// A row of the outbox.
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

const JUDGED_ROW: u8 = 0;
const OTHER_ROW: u8 = 1;
const DEAD_LETTER: u8 = 2;
const REPLAY: u8 = 3;
const COPY: u8 = 4;
const RECORD: u8 = 5;

impl Entry {
    pub(super) fn encode(&self) -> [u8; ENTRY_BYTES] {
        let entry = Writer::new().put(self.event_id.as_bytes());
        match &self.known {
            Known::Row(Row { id, expected: Some(expected) }) => {
                let Expected { topic, partition, created_us, fingerprint } = expected;
                let entry = entry.u8(JUDGED_ROW).i64(*id).u32(*topic).u32(*partition).i64(*created_us);
                put(entry, fingerprint)
            }
            Known::Row(Row { id, expected: None }) => entry.u8(OTHER_ROW).i64(*id),
            Known::DeadLetter => entry.u8(DEAD_LETTER),
            Known::Replay => entry.u8(REPLAY),
            Known::Copy(topic) => entry.u8(COPY).u32(*topic),
            Known::Record(Record { topic, partition, offset, at_us, fingerprint }) => {
                let entry = entry.u8(RECORD).u32(*topic).u32(*partition).i64(*offset).i64(*at_us);
                put(entry, fingerprint)
            }
        }
        .entry()
    }

    pub(super) fn decode(bytes: &[u8; ENTRY_BYTES]) -> Entry {
        let mut reader = Reader(bytes);
        let event_id = Uuid::from_bytes(reader.take());
        let known = match reader.u8() {
            JUDGED_ROW => {
                let id = reader.i64();
                let (topic, partition, created_us) = (reader.u32(), reader.u32(), reader.i64());
                let fingerprint = take(&mut reader);
                Known::Row(Row { id, expected: Some(Expected { topic, partition, created_us, fingerprint }) })
            }
            OTHER_ROW => Known::Row(Row { id: reader.i64(), expected: None }),
            DEAD_LETTER => Known::DeadLetter,
            REPLAY => Known::Replay,
            COPY => Known::Copy(reader.u32()),
            _ => {
                let (topic, partition) = (reader.u32(), reader.u32());
                let (offset, at_us) = (reader.i64(), reader.i64());
                let fingerprint = take(&mut reader);
                Known::Record(Record { topic, partition, offset, at_us, fingerprint })
            }
        };
        Entry { event_id, known }
    }
}

fn put(entry: Writer<ENTRY_BYTES>, fingerprint: &Fingerprint) -> Writer<ENTRY_BYTES> {
    entry.put(&fingerprint.key).put(&fingerprint.value).put(&fingerprint.headers)
}

fn take(reader: &mut Reader<'_>) -> Fingerprint {
    Fingerprint { key: reader.take(), value: reader.take(), headers: reader.take() }
}

/// Inverts the sign, so that negative numbers sort first.
const SIGN: u64 = 1 << 63;

/// Fills an entry from its beginning.
pub(super) struct Writer<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Writer<N> {
    pub(super) fn new() -> Writer<N> {
        Writer { bytes: [0; N], at: 0 }
    }

    /// # Panics
    ///
    /// If the entry is full. Every entry has a fixed layout, so a test finds that.
    pub(super) fn put(mut self, bytes: &[u8]) -> Writer<N> {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
        self
    }

    pub(super) fn u8(self, number: u8) -> Writer<N> {
        self.put(&[number])
    }

    pub(super) fn u32(self, number: u32) -> Writer<N> {
        self.put(&number.to_be_bytes())
    }

    pub(super) fn i64(self, number: i64) -> Writer<N> {
        self.put(&(number as u64 ^ SIGN).to_be_bytes())
    }

    /// The entry. The rest is filled with zeros.
    pub(super) fn entry(self) -> [u8; N] {
        self.bytes
    }
}

/// Reads an entry from its beginning.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    pub(super) fn take<const N: usize>(&mut self) -> [u8; N] {
        let (taken, rest) = self.0.split_at(N);
        self.0 = rest;
        let mut bytes = [0; N];
        bytes.copy_from_slice(taken);
        bytes
    }

    pub(super) fn u8(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take())
    }

    pub(super) fn i64(&mut self) -> i64 {
        (u64::from_be_bytes(self.take()) ^ SIGN) as i64
    }
}

/// The memory for entries that are not in a file yet.
const BUFFER_BYTES: usize = 32 * 1024 * 1024;
/// More runs are merged into one, because each needs a file descriptor and a buffer.
const RUNS_MAX: usize = 128;

/// Sorts entries of a fixed size, with sorted runs in temporary files. The files have no name, so nothing is left when the
/// process ends, however it ends.
pub(super) struct Sorter<const N: usize> {
    folder: PathBuf,
    buffer: Vec<[u8; N]>,
    buffer_max: usize,
    runs: Vec<File>,
}

impl<const N: usize> Sorter<N> {
    pub(super) fn new(folder: &Path) -> Sorter<N> {
        Sorter::with_buffer(folder, BUFFER_BYTES / N)
    }

    fn with_buffer(folder: &Path, buffer_max: usize) -> Sorter<N> {
        Sorter { folder: folder.to_owned(), buffer: Vec::new(), buffer_max, runs: Vec::new() }
    }

    pub(super) fn push(&mut self, entry: [u8; N]) -> io::Result<()> {
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

    /// All entries in order.
    pub(super) fn sorted(mut self) -> io::Result<Sorted<N>> {
        self.write_run()?;
        Sorted::new(self.runs)
    }
}

/// Writes a run, ready to be read from its beginning.
fn write<const N: usize>(
    folder: &Path,
    entries: impl Iterator<Item = io::Result<[u8; N]>>,
) -> io::Result<File> {
    let mut writer = BufWriter::new(tempfile::tempfile_in(folder)?);
    for entry in entries {
        writer.write_all(&entry?)?;
    }
    let mut file = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.rewind()?;
    Ok(file)
}

/// Merges sorted runs.
pub(super) struct Sorted<const N: usize> {
    runs: Vec<BufReader<File>>,
    /// The next entry of each run.
    next: BinaryHeap<Reverse<([u8; N], usize)>>,
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
        match self.runs[place].read_exact(&mut entry) {
            Ok(()) => self.next.push(Reverse((entry, place))),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl<const N: usize> Iterator for Sorted<N> {
    type Item = io::Result<[u8; N]>;

    fn next(&mut self) -> Option<io::Result<[u8; N]>> {
        let Reverse((entry, place)) = self.next.pop()?;
        Some(self.read(place).map(|()| entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_sort_like_numbers() {
        let numbers = [i64::MIN, -2, -1, 0, 1, 2, i64::MAX];
        let written = numbers.map(|number| Writer::<8>::new().i64(number).entry());
        assert!(written.is_sorted());
        assert_eq!(written.map(|bytes| Reader(&bytes).i64()), numbers);
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
            let mut sorter = Sorter::<4>::with_buffer(&std::env::temp_dir(), buffer);
            let mut expected: Vec<[u8; 4]> =
                (0..entries).map(|_| random.u32(..1_000).to_be_bytes()).collect();
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
