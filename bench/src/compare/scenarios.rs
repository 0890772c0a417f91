//! What `make bench` measures, and the targets for the results.
//!
//! The medians of the runs are compared with the targets, not the best runs.

use super::results::Unit::{
    CorePercent, Mebibytes, MicrosecondsPerRow, Milliseconds, Percent, Rows, RowsPerSecond, Seconds,
    SharePercent, Times,
};
use super::results::{Figures, Of, Unit};
use Target::{AsFast, AtLeast, AtMost, Stated};

/// What is measured, and the figures that have a target.
pub struct Scenario {
    /// The part that measures it.
    part: &'static str,
    pub name: &'static str,
    pub checks: &'static [Check],
}

pub struct Check {
    /// The part that measures it, if another one does.
    part: Option<&'static str>,
    pub name: &'static str,
    pub unit: Unit,
    pub target: Target,
    value: Value,
}

/// How a check is computed from the figures of its part.
#[derive(Clone, Copy)]
enum Value {
    Figure(&'static str),
    /// The ratio of two figures, as a factor or as a percentage.
    Ratio(&'static str, &'static str),
    /// The relay's figure at this rate relative to Debezium's.
    Rival(&'static str, &'static str),
    /// What the first figure has in addition to the second.
    Difference(&'static str, &'static str),
    /// The higher of the ratios to the reference in rows/s and in MiB/s, in percent, because small rows are limited by
    /// their number and large rows by their bytes.
    Shape(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// At least 100 percent. A value that is lower by at most [`NOISE_PERCENT`] counts as equal.
    AsFast,
    /// No target: the figure is only reported.
    Stated,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Met,
    /// Below [`Target::AsFast`], but within the noise.
    Equal,
    Missed,
    Stated,
}

/// How much two runs of the same program differ, in percent.
const NOISE_PERCENT: f64 = 5.0;

impl Scenario {
    pub fn part_of(&self, check: &Check) -> &'static str {
        check.part.unwrap_or(self.part)
    }
}

impl Check {
    /// The value from the medians of the runs, which is compared with the target, or from the best runs. None if the part
    /// has not measured it.
    pub fn value(&self, figures: &Figures, of: Of) -> Option<f64> {
        let pick = |name: &str| figures.pick(name, of);
        match self.value {
            Value::Figure(name) => pick(name),
            Value::Ratio(name, to) => {
                Some(pick(name)? / pick(to)? * if self.unit == Percent { 100.0 } else { 1.0 })
            }
            Value::Rival(rate, name) => {
                Some(pick(&format!("{rate}, relay: {name}"))? / pick(&format!("{rate}, Debezium: {name}"))?)
            }
            Value::Difference(name, less) => Some(pick(name)? - pick(less)?),
            Value::Shape(name) => {
                let ratio =
                    |what| Some(pick(&format!("{name}: {what}"))? / pick(&format!("reference: {what}"))?);
                Some(f64::max(ratio("rate")?, ratio("bytes")?) * 100.0)
            }
        }
    }

    pub fn judge(&self, value: f64) -> Verdict {
        let met = match self.target {
            Stated => return Verdict::Stated,
            AsFast if (100.0 - NOISE_PERCENT..100.0).contains(&value) => return Verdict::Equal,
            AsFast => value >= 100.0,
            AtLeast(least) => value >= least,
            AtMost(most) => value <= most,
        };
        if met { Verdict::Met } else { Verdict::Missed }
    }
}

const fn check(name: &'static str, unit: Unit, target: Target, value: Value) -> Check {
    Check { part: None, name, unit, target, value }
}

const fn of(name: &'static str, unit: Unit, target: Target, figure: &'static str) -> Check {
    check(name, unit, target, Value::Figure(figure))
}

const fn of_memory(name: &'static str, most: f64, figure: &'static str) -> Check {
    Check { part: Some("memory"), ..of(name, Mebibytes, AtMost(most), figure) }
}

const fn ratio(name: &'static str, target: Target, figure: &'static str, to: &'static str) -> Check {
    check(name, Percent, target, Value::Ratio(figure, to))
}

/// The same as a factor.
const fn times(name: &'static str, target: Target, figure: &'static str, to: &'static str) -> Check {
    check(name, Times, target, Value::Ratio(figure, to))
}

const fn rival(name: &'static str, most: f64, rate: &'static str, figure: &'static str) -> Check {
    check(name, Times, AtMost(most), Value::Rival(rate, figure))
}

const fn shape(name: &'static str, figures: &'static str) -> Check {
    check(name, Percent, AtLeast(70.0), Value::Shape(figures))
}

/// All scenarios. Their numbers are their positions, from 1.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        part: "drain",
        name: "drain of a backlog, `on_sent = \"mark\"`",
        checks: &[
            of("rate", RowsPerSecond, Stated, "mark: rate"),
            times("rate, relative to tuned Debezium", AtLeast(1.4), "mark: rate", "Debezium: rate"),
            of("rate, relative to the CPU limit", Percent, AtLeast(85.0), "mark: of the CPU limit"),
        ],
    },
    Scenario {
        part: "drain",
        name: "drain of a backlog, `on_sent = \"delete\"`",
        checks: &[
            of("rate", RowsPerSecond, Stated, "delete: rate"),
            times("rate, relative to tuned Debezium", AtLeast(2.2), "delete: rate", "Debezium: rate"),
            of("rate, relative to the CPU limit", Percent, Stated, "delete: of the CPU limit"),
        ],
    },
    Scenario {
        part: "drain",
        name: "CPU per row in these drains",
        checks: &[
            of("relay, mark", MicrosecondsPerRow, AtMost(3.0), "mark: CPU of the relay"),
            of("PostgreSQL, mark", MicrosecondsPerRow, AtMost(9.0), "mark: CPU of PostgreSQL"),
            of("relay, delete", MicrosecondsPerRow, AtMost(3.0), "delete: CPU of the relay"),
            of("PostgreSQL, delete", MicrosecondsPerRow, AtMost(5.0), "delete: CPU of PostgreSQL"),
        ],
    },
    Scenario {
        part: "drain",
        name: "peak memory during a drain",
        checks: &[
            of("rows of 246 bytes", Mebibytes, AtMost(64.0), "mark: memory of the relay"),
            of_memory("1,000,000 rows of 1 KiB", 128.0, "1 KiB: memory"),
            of_memory("500 rows of 1 MiB", 256.0, "1 MiB: memory"),
        ],
    },
    Scenario {
        part: "steady",
        name: "steady rates",
        checks: &[
            of("1,000 rows/s: p50", Milliseconds, AtMost(3.0), "1,000 rows/s, relay: p50"),
            of("1,000 rows/s: p99", Milliseconds, AtMost(10.0), "1,000 rows/s, relay: p99"),
            of("1,000 rows/s: p99.9", Milliseconds, AtMost(35.0), "1,000 rows/s, relay: p99.9"),
            rival("1,000 rows/s: p50, relative to Debezium", 1.0, "1,000 rows/s", "p50"),
            rival("1,000 rows/s: p99, relative to Debezium", 1.0, "1,000 rows/s", "p99"),
            rival(
                "1,000 rows/s: CPU of PostgreSQL, relative to Debezium",
                1.15,
                "1,000 rows/s",
                "CPU of PostgreSQL",
            ),
            rival("1,000 rows/s: own CPU, relative to Debezium", 0.2, "1,000 rows/s", "its CPU"),
            rival("5,000 rows/s: p99, relative to Debezium", 1.0, "5,000 rows/s", "p99"),
            rival("20,000 rows/s: p99, relative to Debezium", 1.0, "20,000 rows/s", "p99"),
            check(
                "100 rows/s: CPU of PostgreSQL, in addition to the writers",
                MicrosecondsPerRow,
                AtMost(600.0),
                Value::Difference(
                    "100 rows/s, relay: CPU of PostgreSQL",
                    "100 rows/s, writers alone: CPU of PostgreSQL",
                ),
            ),
            of("first row after a silence: p50", Milliseconds, AtMost(15.0), "after a silence, relay: p50"),
            of("idle relay, CPU of one core", CorePercent, AtMost(1.0), "idle, relay: its CPU"),
            of(
                "idle PostgreSQL, CPU of one core",
                CorePercent,
                AtMost(1.0),
                "idle, relay: CPU of PostgreSQL",
            ),
        ],
    },
    Scenario {
        part: "flow",
        name: "writers at full speed",
        checks: &[
            ratio("delivered, relative to written", AsFast, "relay: delivered", "relay: written"),
            ratio("delivered, relative to Debezium", AsFast, "relay: delivered", "Debezium: delivered"),
            of("rows waiting halfway", Rows, Stated, "relay: waiting in the middle"),
            of("rows waiting at the end", Rows, Stated, "relay: waiting at the end"),
            ratio("writers' rate, relative to writers alone", Stated, "relay: written", "alone: written"),
            ratio(
                "writers' rate with Debezium, relative to writers alone",
                Stated,
                "Debezium: written",
                "alone: written",
            ),
        ],
    },
    Scenario {
        part: "held-snapshot",
        name: "drain while a snapshot is held open",
        checks: &[
            ratio("rate, relative to no held snapshot", AtLeast(75.0), "held: rate", "free: rate"),
            ratio(
                "rate of the last third, relative to the first",
                AsFast,
                "held: last third",
                "held: first third",
            ),
        ],
    },
    Scenario {
        part: "hot-key",
        name: "one hot key",
        checks: &[
            of("rate, all rows of one key", RowsPerSecond, AtLeast(60_000.0), "100%: rate"),
            of("rate, half of the rows of one key", RowsPerSecond, AtLeast(60_000.0), "50%: rate"),
            of("rows out of order", Rows, AtMost(0.0), "out of order"),
        ],
    },
    Scenario {
        part: "held-topic",
        name: "rows of a held topic before the others",
        checks: &[ratio(
            "rate of the others, relative to no held topic",
            AtLeast(80.0),
            "behind: rate",
            "free: rate",
        )],
    },
    Scenario {
        part: "retained",
        name: "sent rows retained in the table, with the reaper running",
        checks: &[ratio("rate, relative to no retained rows", AsFast, "retained: rate", "none: rate")],
    },
    Scenario {
        part: "outage",
        name: "backlog of 30 min without Kafka at 2,000 rows/s, with active writers",
        checks: &[
            ratio(
                "rate, relative to no writers",
                AtLeast(80.0),
                "with writers: rate",
                "without writers: rate",
            ),
            of("time until the backlog is gone", Seconds, Stated, "with writers: time"),
            of("rows out of order", Rows, AtMost(0.0), "out of order"),
        ],
    },
    Scenario {
        part: "replicas",
        name: "several relays on one table",
        checks: &[
            ratio("rate of 2 relays, relative to 1", AsFast, "2 relays: rate", "1 relay: rate"),
            ratio("rate of 4 relays, relative to 1", AsFast, "4 relays: rate", "1 relay: rate"),
            of("time until a second relay publishes", Seconds, AtMost(1.0), "joins: first row"),
            of("largest share of 2 relays", SharePercent, AtMost(75.0), "2 relays: largest share"),
            of("largest share of 4 relays", SharePercent, AtMost(37.5), "4 relays: largest share"),
        ],
    },
    Scenario {
        part: "shapes",
        name: "other row shapes, relative to the reference in rows/s or MiB/s",
        checks: &[
            shape("1,000 topics", "1,000 topics"),
            shape("10,000,000 keys", "10,000,000 keys"),
            shape("payload of 10 B", "10 B"),
            shape("payload of 1 KiB", "1 KiB"),
            shape("payload of 100 KiB", "100 KiB"),
        ],
    },
    Scenario {
        part: "network",
        name: "network round trips of 5 ms to PostgreSQL and 10 ms to Kafka",
        checks: &[
            of("rate, default settings", RowsPerSecond, Stated, "default: rate"),
            of("rate, documented settings", RowsPerSecond, AtLeast(60_000.0), "tuned: rate"),
            of(
                "rate, documented settings, twice the round trips",
                RowsPerSecond,
                Stated,
                "tuned, twice as far: rate",
            ),
        ],
    },
    Scenario {
        part: "soak",
        name: "one hour at 1,000 rows/s",
        checks: &[
            of("p50", Milliseconds, Stated, "p50"),
            of("p99", Milliseconds, Stated, "p99"),
            of("p99.9", Milliseconds, Stated, "p99.9"),
            of("memory of the relay after an hour", Mebibytes, Stated, "memory at the end"),
            times(
                "p99 of the last ten minutes, relative to the first ten",
                Stated,
                "p99 of the last ten minutes",
                "p99 of the first ten minutes",
            ),
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(target: Target, value: f64) -> Verdict {
        of("name", Percent, target, "figure").judge(value)
    }

    #[test]
    fn a_target_is_met_at_its_limit_and_missed_past_it() {
        assert_eq!(judge(AtLeast(1.4), 1.4), Verdict::Met);
        assert_eq!(judge(AtLeast(1.4), 1.399), Verdict::Missed);
        assert_eq!(judge(AtMost(3.0), 3.0), Verdict::Met);
        assert_eq!(judge(AtMost(3.0), 3.01), Verdict::Missed);
        assert_eq!(judge(Stated, f64::MAX), Verdict::Stated);
    }

    #[test]
    fn as_fast_counts_a_difference_within_the_noise_as_equal() {
        assert_eq!(judge(AsFast, 100.0), Verdict::Met);
        assert_eq!(judge(AsFast, 95.0), Verdict::Equal);
        assert_eq!(judge(AsFast, 94.9), Verdict::Missed);
    }

    #[test]
    fn a_ratio_compares_medians() {
        let mut figures = Figures::default();
        for (relay, debezium) in [(140.0, 100.0), (150.0, 50.0), (1_000.0, 110.0)] {
            figures.push("mark: rate", RowsPerSecond, relay);
            figures.push("Debezium: rate", RowsPerSecond, debezium);
        }
        let check = &SCENARIOS[0].checks[1];
        assert_eq!(check.value(&figures, Of::Median), Some(1.5));
        assert_eq!(check.value(&figures, Of::Best), Some(1_000.0 / 110.0));
        assert_eq!(check.judge(1.5), Verdict::Met);
        assert_eq!(check.value(&Figures::default(), Of::Median), None, "a missing figure has no value");
    }

    #[test]
    fn a_shape_is_judged_by_rows_or_by_bytes() {
        let mut figures = Figures::default();
        figures.push("reference: rate", RowsPerSecond, 100.0);
        figures.push("reference: bytes", Unit::MebibytesPerSecond, 10.0);
        figures.push("100 KiB: rate", RowsPerSecond, 1.0);
        figures.push("100 KiB: bytes", Unit::MebibytesPerSecond, 40.0);
        assert_eq!(shape("", "100 KiB").value(&figures, Of::Median), Some(400.0));
    }

    #[test]
    fn there_are_fifteen_scenarios() {
        assert_eq!(SCENARIOS.len(), 15);
    }
}
