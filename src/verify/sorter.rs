//! Sorts any number of entries of a fixed size in bounded memory, with sorted runs in temporary files.
//!
//! The files have no name, so nothing is left when the process ends, however it ends.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// The memory for entries that are not in a file yet.
const BUFFER_BYTES: usize = 32 * 1024 * 1024;
/// More runs are merged into one, because each needs a file descriptor and a buffer.
const RUNS_MAX: usize = 128;

/// Collects entries.
pub(crate) struct Sorter<const N: usize> {
    folder: PathBuf,
    buffer: Vec<[u8; N]>,
    buffer_max: usize,
    runs: Vec<File>,
}

impl<const N: usize> Sorter<N> {
    /// Writes runs into this folder.
    pub(crate) fn new(folder: &Path) -> Sorter<N> {
        Sorter::with_buffer(folder, BUFFER_BYTES / N)
    }

    fn with_buffer(folder: &Path, buffer_max: usize) -> Sorter<N> {
        Sorter { folder: folder.to_owned(), buffer: Vec::new(), buffer_max, runs: Vec::new() }
    }

    pub(crate) fn push(&mut self, entry: [u8; N]) -> io::Result<()> {
        if self.buffer.len() >= self.buffer_max {
            self.write_run()?;
        }
        self.buffer.push(entry);
        Ok(())
    }

    fn write_run(&mut self) -> io::Result<()> {
        self.buffer.sort_unstable();
        let entries = self.buffer.drain(..).map(Ok);
        self.runs.push(write(&self.folder, entries)?);
        if self.runs.len() >= RUNS_MAX {
            let all: Sorted<N> = Sorted::new(std::mem::take(&mut self.runs), Vec::new())?;
            self.runs.push(write(&self.folder, all)?);
        }
        Ok(())
    }

    /// All entries in order.
    pub(crate) fn sorted(mut self) -> io::Result<Sorted<N>> {
        self.buffer.sort_unstable();
        Sorted::new(self.runs, self.buffer)
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
pub(crate) struct Sorted<const N: usize> {
    runs: Vec<Run<N>>,
    /// The next entry of each run.
    next: BinaryHeap<Reverse<([u8; N], usize)>>,
}

enum Run<const N: usize> {
    File(BufReader<File>),
    Memory(std::vec::IntoIter<[u8; N]>),
}

impl<const N: usize> Run<N> {
    fn next(&mut self) -> io::Result<Option<[u8; N]>> {
        match self {
            Run::Memory(entries) => Ok(entries.next()),
            Run::File(file) => {
                let mut entry = [0; N];
                match file.read_exact(&mut entry) {
                    Ok(()) => Ok(Some(entry)),
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
                    Err(error) => Err(error),
                }
            }
        }
    }
}

impl<const N: usize> Sorted<N> {
    fn new(files: Vec<File>, buffer: Vec<[u8; N]>) -> io::Result<Sorted<N>> {
        let mut runs: Vec<Run<N>> = files.into_iter().map(|file| Run::File(BufReader::new(file))).collect();
        runs.push(Run::Memory(buffer.into_iter()));
        let mut next = BinaryHeap::new();
        for (place, run) in runs.iter_mut().enumerate() {
            next.extend(run.next()?.map(|entry| Reverse((entry, place))));
        }
        Ok(Sorted { runs, next })
    }
}

impl<const N: usize> Iterator for Sorted<N> {
    type Item = io::Result<[u8; N]>;

    fn next(&mut self) -> Option<io::Result<[u8; N]>> {
        let Reverse((entry, place)) = self.next.pop()?;
        match self.runs[place].next() {
            Ok(following) => self.next.extend(following.map(|entry| Reverse((entry, place)))),
            Err(error) => return Some(Err(error)),
        }
        Some(Ok(entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
