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
    pub name: &'static str,
    pub checks: &'static [Check],
}

/// One measurement of a scenario.
pub struct Check {
    /// The part that measures it.
    pub part: &'static str,
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

const fn of(
    part: &'static str,
    name: &'static str,
    unit: Unit,
    target: Target,
    figure: &'static str,
) -> Check {
    Check { part, name, unit, target, value: Value::Figure(figure) }
}

const fn ratio(
    part: &'static str,
    name: &'static str,
    target: Target,
    figure: &'static str,
    to: &'static str,
) -> Check {
    Check { part, name, unit: Percent, target, value: Value::Ratio(figure, to) }
}

/// The same as a factor.
const fn times(
    part: &'static str,
    name: &'static str,
    target: Target,
    figure: &'static str,
    to: &'static str,
) -> Check {
    Check { unit: Times, ..ratio(part, name, target, figure, to) }
}

const fn shape(name: &'static str, figures: &'static str) -> Check {
    let (unit, target) = (Percent, AtLeast(70.0));
    Check { part: "shapes", name, unit, target, value: Value::Shape(figures) }
}

/// All scenarios. Their numbers are their positions, from 1.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "drain of a backlog, `on_sent = \"mark\"`",
        checks: &[
            of("drain", "rate", RowsPerSecond, Stated, "mark: rate"),
            times("drain", "rate, relative to tuned Debezium", AtLeast(1.4), "mark: rate", "Debezium: rate"),
            of("drain", "rate, relative to the CPU limit", Percent, AtLeast(85.0), "mark: of the CPU limit"),
        ],
    },
    Scenario {
        name: "drain of a backlog, `on_sent = \"delete\"`",
        checks: &[
            of("drain", "rate", RowsPerSecond, Stated, "delete: rate"),
            times(
                "drain",
                "rate, relative to tuned Debezium",
                AtLeast(2.2),
                "delete: rate",
                "Debezium: rate",
            ),
            of("drain", "rate, relative to the CPU limit", Percent, Stated, "delete: of the CPU limit"),
        ],
    },
    Scenario {
        name: "CPU per row in these drains",
        checks: &[
            of("drain", "relay, mark", MicrosecondsPerRow, AtMost(3.0), "mark: CPU of the relay"),
            of("drain", "PostgreSQL, mark", MicrosecondsPerRow, AtMost(9.0), "mark: CPU of PostgreSQL"),
            of("drain", "relay, delete", MicrosecondsPerRow, AtMost(3.0), "delete: CPU of the relay"),
            of("drain", "PostgreSQL, delete", MicrosecondsPerRow, AtMost(5.0), "delete: CPU of PostgreSQL"),
        ],
    },
    Scenario {
        name: "peak memory during a drain",
        checks: &[
            of("drain", "rows of 246 bytes", Mebibytes, AtMost(64.0), "mark: memory of the relay"),
            of("memory", "1,000,000 rows of 1 KiB", Mebibytes, AtMost(128.0), "1 KiB: memory"),
            of("memory", "500 rows of 1 MiB", Mebibytes, AtMost(256.0), "1 MiB: memory"),
        ],
    },
    Scenario {
        name: "steady rates",
        checks: &[
            of("steady", "1,000 rows/s: p50", Milliseconds, AtMost(3.0), "1,000 rows/s, relay: p50"),
            of("steady", "1,000 rows/s: p99", Milliseconds, AtMost(10.0), "1,000 rows/s, relay: p99"),
            of("steady", "1,000 rows/s: p99.9", Milliseconds, AtMost(35.0), "1,000 rows/s, relay: p99.9"),
            times(
                "steady",
                "1,000 rows/s: p50, relative to Debezium",
                AtMost(1.0),
                "1,000 rows/s, relay: p50",
                "1,000 rows/s, Debezium: p50",
            ),
            times(
                "steady",
                "1,000 rows/s: p99, relative to Debezium",
                AtMost(1.0),
                "1,000 rows/s, relay: p99",
                "1,000 rows/s, Debezium: p99",
            ),
            times(
                "steady",
                "1,000 rows/s: CPU of PostgreSQL, relative to Debezium",
                AtMost(1.15),
                "1,000 rows/s, relay: CPU of PostgreSQL",
                "1,000 rows/s, Debezium: CPU of PostgreSQL",
            ),
            times(
                "steady",
                "1,000 rows/s: own CPU, relative to Debezium",
                AtMost(0.2),
                "1,000 rows/s, relay: its CPU",
                "1,000 rows/s, Debezium: its CPU",
            ),
            times(
                "steady",
                "5,000 rows/s: p99, relative to Debezium",
                AtMost(1.0),
                "5,000 rows/s, relay: p99",
                "5,000 rows/s, Debezium: p99",
            ),
            times(
                "steady",
                "20,000 rows/s: p99, relative to Debezium",
                AtMost(1.0),
                "20,000 rows/s, relay: p99",
                "20,000 rows/s, Debezium: p99",
            ),
            Check {
                part: "steady",
                name: "100 rows/s: CPU of PostgreSQL, in addition to the writers",
                unit: MicrosecondsPerRow,
                target: AtMost(600.0),
                value: Value::Difference(
                    "100 rows/s, relay: CPU of PostgreSQL",
                    "100 rows/s, writers alone: CPU of PostgreSQL",
                ),
            },
            of(
                "steady",
                "first row after a silence: p50",
                Milliseconds,
                AtMost(15.0),
                "after a silence, relay: p50",
            ),
            of("steady", "idle relay, CPU of one core", CorePercent, AtMost(1.0), "idle, relay: its CPU"),
            of(
                "steady",
                "idle PostgreSQL, CPU of one core",
                CorePercent,
                AtMost(1.0),
                "idle, relay: CPU of PostgreSQL",
            ),
        ],
    },
    Scenario {
        name: "writers at full speed",
        checks: &[
            ratio("flow", "delivered, relative to written", AsFast, "relay: delivered", "relay: written"),
            ratio(
                "flow",
                "delivered, relative to Debezium",
                AsFast,
                "relay: delivered",
                "Debezium: delivered",
            ),
            of("flow", "rows waiting halfway", Rows, Stated, "relay: waiting in the middle"),
            of("flow", "rows waiting at the end", Rows, Stated, "relay: waiting at the end"),
            ratio(
                "flow",
                "writers' rate, relative to writers alone",
                Stated,
                "relay: written",
                "alone: written",
            ),
            ratio(
                "flow",
                "writers' rate with Debezium, relative to writers alone",
                Stated,
                "Debezium: written",
                "alone: written",
            ),
        ],
    },
    Scenario {
        name: "drain while a snapshot is held open",
        checks: &[
            ratio(
                "held-snapshot",
                "rate, relative to no held snapshot",
                AtLeast(75.0),
                "held: rate",
                "free: rate",
            ),
            ratio(
                "held-snapshot",
                "rate of the last third, relative to the first",
                AsFast,
                "held: last third",
                "held: first third",
            ),
        ],
    },
    Scenario {
        name: "one hot key",
        checks: &[
            of("hot-key", "rate, all rows of one key", RowsPerSecond, AtLeast(60_000.0), "100%: rate"),
            of("hot-key", "rate, half of the rows of one key", RowsPerSecond, AtLeast(60_000.0), "50%: rate"),
            of("hot-key", "rows out of order", Rows, AtMost(0.0), "out of order"),
        ],
    },
    Scenario {
        name: "rows of a held topic before the others",
        checks: &[ratio(
            "held-topic",
            "rate of the others, relative to no held topic",
            AtLeast(80.0),
            "behind: rate",
            "free: rate",
        )],
    },
    Scenario {
        name: "sent rows retained in the table, with the reaper running",
        checks: &[ratio(
            "retained",
            "rate, relative to no retained rows",
            AsFast,
            "retained: rate",
            "none: rate",
        )],
    },
    Scenario {
        name: "backlog of 30 min without Kafka at 2,000 rows/s, with active writers",
        checks: &[
            ratio(
                "outage",
                "rate, relative to no writers",
                AtLeast(80.0),
                "with writers: rate",
                "without writers: rate",
            ),
            of("outage", "time until the backlog is gone", Seconds, Stated, "with writers: time"),
            of("outage", "rows out of order", Rows, AtMost(0.0), "out of order"),
        ],
    },
    Scenario {
        name: "several relays on one table",
        checks: &[
            ratio("replicas", "rate of 2 relays, relative to 1", AsFast, "2 relays: rate", "1 relay: rate"),
            ratio("replicas", "rate of 4 relays, relative to 1", AsFast, "4 relays: rate", "1 relay: rate"),
            of("replicas", "time until a second relay publishes", Seconds, AtMost(1.0), "joins: first row"),
            of(
                "replicas",
                "largest share of 2 relays",
                SharePercent,
                AtMost(75.0),
                "2 relays: largest share",
            ),
            of(
                "replicas",
                "largest share of 4 relays",
                SharePercent,
                AtMost(37.5),
                "4 relays: largest share",
            ),
        ],
    },
    Scenario {
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
        name: "network round trips of 5 ms to PostgreSQL and 10 ms to Kafka",
        checks: &[
            of("network", "rate, default settings", RowsPerSecond, Stated, "default: rate"),
            of("network", "rate, documented settings", RowsPerSecond, AtLeast(60_000.0), "tuned: rate"),
            of(
                "network",
                "rate, documented settings, twice the round trips",
                RowsPerSecond,
                Stated,
                "tuned, twice as far: rate",
            ),
        ],
    },
    Scenario {
        name: "one hour at 1,000 rows/s",
        checks: &[
            of("soak", "p50", Milliseconds, Stated, "p50"),
            of("soak", "p99", Milliseconds, Stated, "p99"),
            of("soak", "p99.9", Milliseconds, Stated, "p99.9"),
            of("soak", "memory of the relay after an hour", Mebibytes, Stated, "memory at the end"),
            times(
                "soak",
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

    fn check(target: Target) -> Check {
        of("part", "name", Percent, target, "figure")
    }

    #[test]
    fn a_target_is_met_at_its_limit_and_missed_past_it() {
        assert_eq!(check(AtLeast(1.4)).judge(1.4), Verdict::Met);
        assert_eq!(check(AtLeast(1.4)).judge(1.399), Verdict::Missed);
        assert_eq!(check(AtMost(3.0)).judge(3.0), Verdict::Met);
        assert_eq!(check(AtMost(3.0)).judge(3.01), Verdict::Missed);
        assert_eq!(check(Stated).judge(f64::MAX), Verdict::Stated);
    }

    #[test]
    fn as_fast_counts_a_difference_within_the_noise_as_equal() {
        assert_eq!(check(AsFast).judge(100.0), Verdict::Met);
        assert_eq!(check(AsFast).judge(95.0), Verdict::Equal);
        assert_eq!(check(AsFast).judge(94.9), Verdict::Missed);
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
