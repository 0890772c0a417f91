//! The report of a run: the findings, the cost of each kind of fault, and a summary line.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use crate::checker::Verdict;
use crate::faults::Struck;
use crate::schedule::Kind;
use crate::times::{Times, median};
use crate::world::TAKEOVER_TIMEOUT;
use crate::writers::Written;

/// How long publishing may take to resume after everything that the relays need is available again. The limits allow
/// for a busy machine. The limits of the fault tests are tighter, and the table shows the measured times.
const RESUME_TIMEOUT: Duration = Duration::from_secs(15);
/// A held topic is probed at least every 10 s.
const TOPIC_RESUME_TIMEOUT: Duration = Duration::from_secs(25);
/// The time until every relay works. If Kafka does not answer a relay, it first waits for `publish_timeout`.
const ALL_WORKING_TIMEOUT: Duration = Duration::from_secs(30);
/// The other relays may have to judge a poison row first.
const TAKEN_OVER_TIMEOUT: Duration = TAKEOVER_TIMEOUT.saturating_add(Duration::from_secs(10));

/// The results of a run.
pub struct Report {
    pub verdict: Verdict,
    pub written: Written,
    /// The number of transactions in the ledger whose COMMIT was not answered.
    pub unknown_committed: usize,
    pub faults: Vec<(Struck, Times)>,
    /// Problems other than events: a relay that ended, or rows that were not sent.
    pub broken: Vec<String>,
}

impl Report {
    /// Every broken promise, one sentence each.
    pub fn broken_promises(&self) -> Vec<String> {
        let mut broken = self.broken.clone();
        if !self.verdict.is_sound() {
            broken.push("events were lost, invented, altered, reordered or dead-lettered wrongly".to_owned());
        }
        for (struck, times) in &self.faults {
            let within = if struck.fault.topic().is_some() { TOPIC_RESUME_TIMEOUT } else { RESUME_TIMEOUT };
            if struck.alone && times.resumed.is_none_or(|time| time > within) {
                broken.push(format!("no row was settled within {within:?} after: {}", struck.fault));
            }
            if struck.alone && struck.all_worked.is_none_or(|time| time > ALL_WORKING_TIMEOUT) {
                broken.push(format!(
                    "a relay did not work within {ALL_WORKING_TIMEOUT:?} after: {}",
                    struck.fault
                ));
            }
            if times.taken_over.is_some_and(|time| time > TAKEN_OVER_TIMEOUT) {
                broken.push(format!("not taken over within {TAKEN_OVER_TIMEOUT:?}: {}", struck.fault));
            }
        }
        if let Some(first) = self.faults.iter().map(|(struck, _)| milliseconds(struck)).min() {
            let before = self.verdict.duplicates_ms.iter().filter(|duplicate| **duplicate < first).count();
            if before > 0 {
                broken.push(format!("{before} duplicates before the first fault"));
            }
        }
        broken
    }

    /// The summary line of a run.
    pub fn last_line(&self) -> String {
        let worst = self.faults.iter().filter_map(|(_, times)| times.taken_over).max();
        format!(
            "lost {}, phantom {}, reordered {}, duplicates {} in {} faults, worst takeover {} s",
            self.verdict.lost.count,
            self.verdict.phantom.count,
            self.verdict.reordered.count,
            self.verdict.duplicates_ms.len(),
            self.faults.len(),
            worst.map_or("-".to_owned(), |worst| format!("{:.1}", worst.as_secs_f64()))
        )
    }

    /// Each duplicate is attributed to the last fault that began before it was appended.
    fn duplicates(&self) -> BTreeMap<Kind, usize> {
        let mut begun: Vec<(i64, Kind)> =
            self.faults.iter().map(|(struck, _)| (milliseconds(struck), struck.fault.kind)).collect();
        begun.sort();
        let mut counts = BTreeMap::new();
        for duplicate in &self.verdict.duplicates_ms {
            let after = begun.partition_point(|(moment, _)| moment <= duplicate);
            if let Some((_, kind)) = after.checked_sub(1).and_then(|last| begun.get(last)) {
                *counts.entry(*kind).or_default() += 1;
            }
        }
        counts
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let written = &self.written;
        writeln!(f, "{}", self.verdict)?;
        writeln!(
            f,
            "  Writers: {} events whose COMMIT was answered, {} transactions rolled back, {} ended by a fault,\n  \
             {} long ones with waiting writers, {} without an answer to COMMIT, of which {} were committed.\n",
            written.committed,
            written.rolled_back,
            written.failed,
            written.long,
            written.unknown.len(),
            self.unknown_committed
        )?;
        let duplicates = self.duplicates();
        writeln!(f, "{}", line("fault", ["count", "alone", "duplicates"], TIMES))?;
        writeln!(f, "{}", line("", [""; 3], ["median   worst"; 3]))?;
        for kind in Kind::ALL {
            let faults: Vec<&(Struck, Times)> =
                self.faults.iter().filter(|(struck, _)| struck.fault.kind == kind).collect();
            if !faults.is_empty() {
                let duplicates = duplicates.get(&kind).copied().unwrap_or_default();
                writeln!(f, "{}", row(kind.name(), &faults, duplicates))?;
            }
        }
        let all: Vec<&(Struck, Times)> = self.faults.iter().collect();
        write!(f, "{}", row("all", &all, self.verdict.duplicates_ms.len()))
    }
}

const TIMES: [&str; 3] = ["resumed, s", "all working, s", "taken over, s"];

fn line(name: &str, counts: [&str; 3], times: [&str; 3]) -> String {
    let [times_struck, alone, duplicates] = counts;
    let [resumed, all_worked, taken_over] = times;
    format!(
        "  {name:<30} {times_struck:>5} {alone:>5} {duplicates:>10} {resumed:>16} {all_worked:>16} {taken_over:>16}"
    )
}

/// The cost of these faults. Times are measured only for faults that occurred alone.
fn row(name: &str, faults: &[&(Struck, Times)], duplicates: usize) -> String {
    let alone: Vec<_> = faults.iter().filter(|(struck, _)| struck.alone).collect();
    let resumed: Vec<Duration> = alone.iter().filter_map(|(_, times)| times.resumed).collect();
    let all_worked: Vec<Duration> = alone.iter().filter_map(|(struck, _)| struck.all_worked).collect();
    let taken_over: Vec<Duration> = alone.iter().filter_map(|(_, times)| times.taken_over).collect();
    let counts = [faults.len(), alone.len(), duplicates].map(|count| count.to_string());
    let times = [resumed, all_worked, taken_over].map(|times| median_and_worst(&times));
    line(name, counts.each_ref().map(String::as_str), times.each_ref().map(String::as_str))
}

fn median_and_worst(times: &[Duration]) -> String {
    match (median(times), times.iter().max()) {
        (Some(median), Some(worst)) => format!("{:>6.2} {:>7.2}", median.as_secs_f64(), worst.as_secs_f64()),
        _ => "-       -".to_owned(),
    }
}

fn milliseconds(struck: &Struck) -> i64 {
    struck.began.duration_since(UNIX_EPOCH).expect("a time after 1970").as_millis() as i64
}
