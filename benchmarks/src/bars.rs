//! The bars: what the relay has to reach, and how each is judged by the figures.
//!
//! A bar that compares is judged by the medians of the runs, not by the best ones.

use crate::figures::{Figures, Of, Unit};

/// One line of the table.
pub struct Bar {
    pub number: u8,
    pub what: &'static str,
    pub checks: Vec<Check>,
}

/// How a check is computed from the figures of its part; nothing if they are not there.
type Value = Box<dyn Fn(&Figures, Of) -> Option<f64>>;

/// One thing that a bar asks for.
pub struct Check {
    /// The part that measures it.
    pub part: &'static str,
    pub what: &'static str,
    pub unit: Unit,
    pub target: Target,
    value: Value,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// 100 percent; what is less by no more than runs differ anyway counts as equal.
    AsFast,
    /// Nothing was asked for; the figure is stated.
    Stated,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Met,
    /// Below [`Target::AsFast`] by no more than runs differ.
    Equal,
    Missed,
    Stated,
}

/// How much two runs of the same differ without a reason, in percent.
pub const NOISE_PERCENT: f64 = 5.0;

impl Check {
    /// What the bar is judged by: of the medians of the runs. Nothing if the part has not measured it.
    pub fn value(&self, figures: &Figures) -> Option<f64> {
        (self.value)(figures, Of::Median)
    }

    /// The same of the best runs.
    pub fn best(&self, figures: &Figures) -> Option<f64> {
        (self.value)(figures, Of::Best)
    }

    pub fn judge(&self, value: f64) -> Verdict {
        let met = match self.target {
            Target::Stated => return Verdict::Stated,
            Target::AsFast if (100.0 - NOISE_PERCENT..100.0).contains(&value) => return Verdict::Equal,
            Target::AsFast => value >= 100.0,
            Target::AtLeast(least) => value >= least,
            Target::AtMost(most) => value <= most,
        };
        if met { Verdict::Met } else { Verdict::Missed }
    }
}

/// A check of the median of one figure.
fn median(part: &'static str, what: &'static str, unit: Unit, target: Target, figure: &'static str) -> Check {
    Check { part, what, unit, target, value: Box::new(move |figures, of| figures.pick(figure, of)) }
}

/// A check of one figure as a multiple of another one, or as a percentage of it.
fn ratio(
    part: &'static str,
    what: &'static str,
    unit: Unit,
    target: Target,
    [figure, of]: [&'static str; 2],
) -> Check {
    let scale = if unit == Unit::Percent { 100.0 } else { 1.0 };
    let value =
        move |figures: &Figures, pick| Some(figures.pick(figure, pick)? / figures.pick(of, pick)? * scale);
    Check { part, what, unit, target, value: Box::new(value) }
}

/// All of them, in order.
pub fn bars() -> Vec<Bar> {
    use Target::{AsFast, AtLeast, AtMost, Stated};
    use Unit::{
        CorePercent, Mebibytes, MicrosecondsPerRow, Milliseconds, Percent, Rows, RowsPerSecond, Seconds,
        SharePercent, Times,
    };
    let bar = |number, what, checks| Bar { number, what, checks };
    vec![
        bar(
            1,
            "drain of a backlog, `on_sent = \"mark\"`",
            vec![
                median("drain", "rate", RowsPerSecond, Stated, "mark: rate"),
                ratio(
                    "drain",
                    "rate, relative to tuned Debezium",
                    Times,
                    AtLeast(1.4),
                    ["mark: rate", "Debezium: rate"],
                ),
                median(
                    "drain",
                    "rate, relative to the CPU limit",
                    Percent,
                    AtLeast(85.0),
                    "mark: of the CPU limit",
                ),
            ],
        ),
        bar(
            2,
            "drain of a backlog, `on_sent = \"delete\"`",
            vec![
                median("drain", "rate", RowsPerSecond, Stated, "delete: rate"),
                ratio(
                    "drain",
                    "rate, relative to tuned Debezium",
                    Times,
                    AtLeast(2.2),
                    ["delete: rate", "Debezium: rate"],
                ),
                median(
                    "drain",
                    "rate, relative to the CPU limit",
                    Percent,
                    Stated,
                    "delete: of the CPU limit",
                ),
            ],
        ),
        bar(
            3,
            "CPU per row in these drains",
            vec![
                median("drain", "relay, mark", MicrosecondsPerRow, AtMost(3.0), "mark: CPU of the relay"),
                median(
                    "drain",
                    "PostgreSQL, mark",
                    MicrosecondsPerRow,
                    AtMost(9.0),
                    "mark: CPU of PostgreSQL",
                ),
                median("drain", "relay, delete", MicrosecondsPerRow, AtMost(3.0), "delete: CPU of the relay"),
                median(
                    "drain",
                    "PostgreSQL, delete",
                    MicrosecondsPerRow,
                    AtMost(5.0),
                    "delete: CPU of PostgreSQL",
                ),
            ],
        ),
        bar(
            4,
            "peak memory during a drain",
            vec![
                median("drain", "rows of 246 bytes", Mebibytes, AtMost(64.0), "mark: memory of the relay"),
                median("memory", "1,000,000 rows of 1 KiB", Mebibytes, AtMost(128.0), "1 KiB: memory"),
                median("memory", "500 rows of 1 MiB", Mebibytes, AtMost(256.0), "1 MiB: memory"),
            ],
        ),
        bar(
            5,
            "latency from commit to consumer",
            vec![
                median("steady", "1,000 rows/s, p50", Milliseconds, AtMost(3.0), "1,000 rows/s: p50"),
                median("steady", "1,000 rows/s, p99", Milliseconds, AtMost(10.0), "1,000 rows/s: p99"),
                median("steady", "1,000 rows/s, p99.9", Milliseconds, AtMost(35.0), "1,000 rows/s: p99.9"),
                median("steady", "100 rows/s, p99", Milliseconds, Stated, "100 rows/s: p99"),
                median("steady", "5,000 rows/s, p99", Milliseconds, Stated, "5,000 rows/s: p99"),
                median("steady", "Debezium, 1,000 rows/s, p50", Milliseconds, Stated, "Debezium: p50"),
                median("steady", "Debezium, 1,000 rows/s, p99", Milliseconds, Stated, "Debezium: p99"),
                median(
                    "steady",
                    "idle relay, CPU of one core",
                    CorePercent,
                    AtMost(2.5),
                    "idle: CPU of the relay",
                ),
                median(
                    "steady",
                    "idle PostgreSQL, CPU of one core",
                    CorePercent,
                    AtMost(1.5),
                    "idle: CPU of PostgreSQL",
                ),
            ],
        ),
        bar(
            6,
            "writers at full speed",
            vec![
                ratio(
                    "flow",
                    "delivered, relative to written",
                    Percent,
                    AsFast,
                    ["relay: delivered", "relay: written"],
                ),
                ratio(
                    "flow",
                    "delivered, relative to Debezium",
                    Percent,
                    AsFast,
                    ["relay: delivered", "Debezium: delivered"],
                ),
                median("flow", "rows waiting halfway", Rows, Stated, "relay: waiting in the middle"),
                median("flow", "rows waiting at the end", Rows, Stated, "relay: waiting at the end"),
                ratio(
                    "flow",
                    "writers' rate, relative to writers alone",
                    Percent,
                    Stated,
                    ["relay: written", "alone: written"],
                ),
                ratio(
                    "flow",
                    "writers' rate with Debezium, relative to writers alone",
                    Percent,
                    Stated,
                    ["Debezium: written", "alone: written"],
                ),
            ],
        ),
        bar(
            7,
            "drain while a snapshot is held open",
            vec![
                ratio(
                    "held-snapshot",
                    "rate, relative to no held snapshot",
                    Percent,
                    AtLeast(75.0),
                    ["held: rate", "free: rate"],
                ),
                ratio(
                    "held-snapshot",
                    "rate of the last third, relative to the first",
                    Percent,
                    AsFast,
                    ["held: last third", "held: first third"],
                ),
            ],
        ),
        bar(
            8,
            "one hot key",
            vec![
                median(
                    "hot-key",
                    "rate, all rows of one key",
                    RowsPerSecond,
                    AtLeast(60_000.0),
                    "100 %: rate",
                ),
                median(
                    "hot-key",
                    "rate, half of the rows of one key",
                    RowsPerSecond,
                    AtLeast(60_000.0),
                    "50 %: rate",
                ),
                median("hot-key", "rows out of order", Rows, AtMost(0.0), "out of order"),
            ],
        ),
        bar(
            9,
            "rows of a held topic before the others",
            vec![ratio(
                "held-topic",
                "rate of the others, relative to no held topic",
                Percent,
                AtLeast(80.0),
                ["behind: rate", "free: rate"],
            )],
        ),
        bar(
            10,
            "sent rows retained in the table, with the reaper running",
            vec![ratio(
                "retained",
                "rate, relative to no retained rows",
                Percent,
                AsFast,
                ["retained: rate", "none: rate"],
            )],
        ),
        bar(
            11,
            "backlog of 30 min without Kafka at 2,000 rows/s, with active writers",
            vec![
                ratio(
                    "outage",
                    "rate, relative to no writers",
                    Percent,
                    AtLeast(80.0),
                    ["with writers: rate", "without writers: rate"],
                ),
                median("outage", "time until the backlog is gone", Seconds, Stated, "with writers: time"),
                median("outage", "rows out of order", Rows, AtMost(0.0), "out of order"),
            ],
        ),
        bar(
            12,
            "several relays on one table",
            vec![
                ratio(
                    "replicas",
                    "rate of 2 relays, relative to 1",
                    Percent,
                    AsFast,
                    ["2 relays: rate", "1 relay: rate"],
                ),
                ratio(
                    "replicas",
                    "rate of 4 relays, relative to 1",
                    Percent,
                    AsFast,
                    ["4 relays: rate", "1 relay: rate"],
                ),
                median(
                    "replicas",
                    "time until a second relay publishes",
                    Seconds,
                    AtMost(1.0),
                    "joins: first row",
                ),
                median(
                    "replicas",
                    "largest share of 2 relays",
                    SharePercent,
                    AtMost(75.0),
                    "2 relays: largest share",
                ),
                median(
                    "replicas",
                    "largest share of 4 relays",
                    SharePercent,
                    AtMost(37.5),
                    "4 relays: largest share",
                ),
            ],
        ),
        bar(
            13,
            "other row shapes, relative to the reference in rows/s or MiB/s",
            vec![
                shape("1,000 topics", "1,000 topics: rate", "1,000 topics: bytes"),
                shape("10,000,000 keys", "10,000,000 keys: rate", "10,000,000 keys: bytes"),
                shape("payload of 10 B", "10 B: rate", "10 B: bytes"),
                shape("payload of 1 KiB", "1 KiB: rate", "1 KiB: bytes"),
                shape("payload of 100 KiB", "100 KiB: rate", "100 KiB: bytes"),
            ],
        ),
        bar(
            14,
            "network round trips of 5 ms to PostgreSQL and 10 ms to Kafka",
            vec![
                median("network", "rate, default settings", RowsPerSecond, Stated, "default: rate"),
                median(
                    "network",
                    "rate, documented settings",
                    RowsPerSecond,
                    AtLeast(60_000.0),
                    "tuned: rate",
                ),
                median(
                    "network",
                    "rate, documented settings, twice the round trips",
                    RowsPerSecond,
                    Stated,
                    "tuned, twice as far: rate",
                ),
            ],
        ),
    ]
}

/// The better of the two ratios: small rows are limited by their number, large ones by their bytes.
fn shape(what: &'static str, rows: &'static str, bytes: &'static str) -> Check {
    let value = move |figures: &Figures, of| {
        let by_rows = figures.pick(rows, of)? / figures.pick("reference: rate", of)?;
        let by_bytes = figures.pick(bytes, of)? / figures.pick("reference: bytes", of)?;
        Some(by_rows.max(by_bytes) * 100.0)
    };
    let (unit, target) = (Unit::Percent, Target::AtLeast(70.0));
    Check { part: "shapes", what, unit, target, value: Box::new(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(target: Target) -> Check {
        median("part", "what", Unit::Percent, target, "figure")
    }

    #[test]
    fn a_bar_is_met_at_its_target_and_missed_beside_it() {
        assert_eq!(check(Target::AtLeast(1.4)).judge(1.4), Verdict::Met);
        assert_eq!(check(Target::AtLeast(1.4)).judge(1.399), Verdict::Missed);
        assert_eq!(check(Target::AtMost(3.0)).judge(3.0), Verdict::Met);
        assert_eq!(check(Target::AtMost(3.0)).judge(3.01), Verdict::Missed);
        assert_eq!(check(Target::Stated).judge(f64::MAX), Verdict::Stated);
    }

    #[test]
    fn as_fast_allows_for_noise_and_says_so() {
        assert_eq!(check(Target::AsFast).judge(100.0), Verdict::Met);
        assert_eq!(check(Target::AsFast).judge(95.0), Verdict::Equal);
        assert_eq!(check(Target::AsFast).judge(94.9), Verdict::Missed);
    }

    #[test]
    fn a_comparison_is_one_of_medians() {
        let mut figures = Figures::default();
        for (relay, debezium) in [(140.0, 100.0), (150.0, 50.0), (1_000.0, 110.0)] {
            figures.push("mark: rate", Unit::RowsPerSecond, relay);
            figures.push("Debezium: rate", Unit::RowsPerSecond, debezium);
        }
        let bars = bars();
        let check = &bars[0].checks[1];
        assert_eq!(check.value(&figures), Some(1.5));
        assert_eq!(check.best(&figures), Some(1_000.0 / 110.0));
        assert_eq!(check.judge(1.5), Verdict::Met);
        assert_eq!(check.value(&Figures::default()), None, "what was not measured has no value");
    }

    #[test]
    fn a_shape_is_judged_by_rows_or_by_bytes() {
        let mut figures = Figures::default();
        figures.push("reference: rate", Unit::RowsPerSecond, 100.0);
        figures.push("reference: bytes", Unit::MebibytesPerSecond, 10.0);
        figures.push("100 KiB: rate", Unit::RowsPerSecond, 1.0);
        figures.push("100 KiB: bytes", Unit::MebibytesPerSecond, 40.0);
        assert_eq!(shape("", "100 KiB: rate", "100 KiB: bytes").value(&figures), Some(400.0));
    }

    #[test]
    fn there_are_fourteen_bars_in_order() {
        let numbers: Vec<u8> = bars().iter().map(|bar| bar.number).collect();
        assert_eq!(numbers, (1..=14).collect::<Vec<u8>>());
    }
}
