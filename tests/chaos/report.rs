//! The report of a run: what was found, what each kind of fault cost, and the one line at the end.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use crate::checker::Verdict;
use crate::faults::Struck;
use crate::schedule::Kind;
use crate::times::{Times, median};
use crate::world::TAKEOVER_TIMEOUT;
use crate::writers::Written;

/// How long rows may take to flow again after what the relays need is back. The limits are those of a machine that has
/// much else to do, which the table's figures tell; the fault tests have closer ones.
const RESUMED_WITHIN: Duration = Duration::from_secs(15);
/// A topic that was held is probed every 10 s at the least.
const TOPIC_RESUMED_WITHIN: Duration = Duration::from_secs(25);
/// How long until every relay works: one that Kafka is silent to has to wait for `publish_timeout` first.
const ALL_WORK_WITHIN: Duration = Duration::from_secs(30);
/// Others may have to judge a poisonous row first.
const TAKEN_OVER_WITHIN: Duration = TAKEOVER_TIMEOUT.saturating_add(Duration::from_secs(10));

/// What a run has shown.
pub struct Report {
    pub verdict: Verdict,
    pub written: Written,
    /// Of the transactions whose COMMIT was not answered, those that the ledger knows.
    pub unknown_committed: usize,
    pub faults: Vec<(Struck, Times)>,
    /// What went wrong beside the events: a relay that ended, rows that were not sent.
    pub broken: Vec<String>,
}

impl Report {
    /// Everything by which a promise is broken, a sentence each.
    pub fn broken_promises(&self) -> Vec<String> {
        let mut broken = self.broken.clone();
        if !self.verdict.is_sound() {
            broken.push(
                "events were lost, invented, altered, reordered or dead-lettered without guilt".to_owned(),
            );
        }
        for (struck, times) in &self.faults {
            let within = if struck.fault.topic().is_some() { TOPIC_RESUMED_WITHIN } else { RESUMED_WITHIN };
            if struck.alone && times.resumed.is_none_or(|time| time > within) {
                broken.push(format!("no row within {within:?} after: {}", struck.fault));
            }
            if struck.alone && struck.all_worked.is_none_or(|time| time > ALL_WORK_WITHIN) {
                broken.push(format!(
                    "some relay did not work within {ALL_WORK_WITHIN:?} after: {}",
                    struck.fault
                ));
            }
            if times.taken_over.is_some_and(|time| time > TAKEN_OVER_WITHIN) {
                broken.push(format!("not taken over within {TAKEN_OVER_WITHIN:?}: {}", struck.fault));
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

    /// The last line of a run.
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

    /// Each duplicate counts for the last fault that began before it was appended.
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
            "  The writers: {} events whose COMMIT was answered, {} transactions rolled back, {} ended by a fault,\n  \
             {} long ones with others behind them, {} without an answer to COMMIT, of which {} had happened.\n",
            written.committed,
            written.rolled_back,
            written.failed,
            written.long,
            written.unknown.len(),
            self.unknown_committed
        )?;
        let duplicates = self.duplicates();
        writeln!(f, "{}", line("fault", ["times", "alone", "duplicates"], TIMES))?;
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

const TIMES: [&str; 3] = ["resumed, s", "all at work, s", "taken over, s"];

fn line(name: &str, counts: [&str; 3], times: [&str; 3]) -> String {
    let [times_struck, alone, duplicates] = counts;
    let [resumed, all_worked, taken_over] = times;
    format!(
        "  {name:<30} {times_struck:>5} {alone:>5} {duplicates:>10} {resumed:>16} {all_worked:>16} {taken_over:>16}"
    )
}

/// What these faults cost; only those without company are measured.
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
    struck.began.duration_since(UNIX_EPOCH).expect("it is after 1970").as_millis() as i64
}
