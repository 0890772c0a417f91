//! The parsers of foreign text, run on the seeds of the fuzz targets and on random mutations of them. The short run is
//! always the same. `FUZZ_INPUTS` and `SEED` select a longer or a different one. See `fuzz/README.md` for long
//! searches.

use fastrand::Rng;
use std::fs;
use std::path::Path;

#[path = "../../../fuzz/entry.rs"]
mod entry;

const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds");
const INPUTS: u64 = 2_000;
const SEED: u64 = 4711;

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let mut files: Vec<_> =
        fs::read_dir(Path::new(SEEDS).join(target)).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

/// Applies one to four changes: deletes, inserts, changes or duplicates bytes, or appends the end of another seed.
fn mutated(seeds: &[Vec<u8>], random: &mut Rng) -> Vec<u8> {
    let mut data = random.choice(seeds).unwrap().clone();
    for _ in 0..random.usize(1..=4) {
        let at = random.usize(0..=data.len());
        let to = (at + random.usize(0..16)).min(data.len());
        match random.u8(0..5) {
            0 => _ = data.drain(at..to),
            1 => data.insert(at, *random.choice(b"\0\n\"'={}[]%@/:?&\\ .-_\x7f\xff").unwrap()),
            2 if at < data.len() => data[at] = random.u8(..),
            3 => data.extend_from_within(at..to),
            _ => {
                let other = random.choice(seeds).unwrap();
                data.truncate(at);
                data.extend_from_slice(&other[random.usize(0..=other.len())..]);
            }
        }
    }
    data
}

/// Prints the input if the target panics.
struct Input(Vec<u8>);

impl Drop for Input {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("input: {:?}", String::from_utf8_lossy(&self.0));
        }
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

fn run(target: &str, entry: fn(&[u8])) {
    let seeds = seeds(target);
    let mut random = Rng::with_seed(number("SEED", SEED));
    let mutations = (0..number("FUZZ_INPUTS", INPUTS)).map(|_| mutated(&seeds, &mut random));
    for data in seeds.iter().cloned().chain(mutations) {
        let input = Input(data);
        entry(&input.0);
    }
}

#[test]
fn configuration_files_never_cause_a_panic_or_show_a_secret() {
    run("configuration", entry::configuration);
}

#[test]
fn connection_strings_never_cause_a_panic_or_show_their_password() {
    run("connection", entry::connection);
}

#[test]
fn topic_templates_are_refused_or_expand_correctly() {
    run("topic", entry::topic);
}

#[test]
fn table_names_are_refused_or_keep_their_meaning_when_quoted() {
    run("table", entry::table);
}

#[test]
fn headers_of_a_row_never_replace_the_relays_own() {
    run("headers", entry::headers);
}

#[test]
fn every_error_code_has_one_reason_and_unlisted_codes_are_unknown() {
    run("kafka_error", entry::kafka_error);
    for number in i16::MIN..=i16::MAX {
        entry::kafka_error(&number.to_le_bytes());
    }
}
