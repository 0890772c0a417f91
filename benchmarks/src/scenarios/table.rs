//! The table of scenarios, measurements and targets.

use super::{Check, Scenario, Target, difference, median, ratio, shape};
use crate::figures::Unit::{
    CorePercent, Mebibytes, MicrosecondsPerRow, Milliseconds, Percent, Rows, RowsPerSecond, Seconds,
    SharePercent, Times,
};
use Target::{AsFast, AtLeast, AtMost, Stated};

/// All scenarios, in the order of their numbers.
pub fn scenarios() -> Vec<Scenario> {
    let groups = [
        drains(),
        drain_costs(),
        active_writers(),
        obstacles(),
        large_tables(),
        replicas(),
        shapes_and_network(),
    ];
    groups.into_iter().flatten().collect()
}

fn scenario(number: u8, name: &'static str, checks: Vec<Check>) -> Scenario {
    Scenario { number, name, checks }
}

/// Scenarios 1 and 2: the rate of a drain.
fn drains() -> Vec<Scenario> {
    vec![
        scenario(
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
        scenario(
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
    ]
}

/// Scenarios 3 and 4: CPU time and memory of a drain.
fn drain_costs() -> Vec<Scenario> {
    vec![
        scenario(
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
        scenario(
            4,
            "peak memory during a drain",
            vec![
                median("drain", "rows of 246 bytes", Mebibytes, AtMost(64.0), "mark: memory of the relay"),
                median("memory", "1,000,000 rows of 1 KiB", Mebibytes, AtMost(128.0), "1 KiB: memory"),
                median("memory", "500 rows of 1 MiB", Mebibytes, AtMost(256.0), "1 MiB: memory"),
            ],
        ),
    ]
}

/// Scenarios 5 and 6: rows arrive while they are measured.
fn active_writers() -> Vec<Scenario> {
    vec![
        scenario(5, "steady rates", steady_rates()),
        scenario(
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
    ]
}

/// Scenario 5. Targets that compare with Debezium are ratios of the medians of the same part.
fn steady_rates() -> Vec<Check> {
    let of_relay = |name, unit, target, figure| median("steady", name, unit, target, figure);
    let relative = |name, most, figures| ratio("steady", name, Times, AtMost(most), figures);
    vec![
        of_relay("1,000 rows/s: p50", Milliseconds, AtMost(3.0), "1,000 rows/s, relay: p50"),
        of_relay("1,000 rows/s: p99", Milliseconds, AtMost(10.0), "1,000 rows/s, relay: p99"),
        of_relay("1,000 rows/s: p99.9", Milliseconds, AtMost(35.0), "1,000 rows/s, relay: p99.9"),
        relative(
            "1,000 rows/s: p50, relative to Debezium",
            1.0,
            ["1,000 rows/s, relay: p50", "1,000 rows/s, Debezium: p50"],
        ),
        relative(
            "1,000 rows/s: p99, relative to Debezium",
            1.0,
            ["1,000 rows/s, relay: p99", "1,000 rows/s, Debezium: p99"],
        ),
        relative(
            "1,000 rows/s: CPU of PostgreSQL, relative to Debezium",
            1.15,
            ["1,000 rows/s, relay: CPU of PostgreSQL", "1,000 rows/s, Debezium: CPU of PostgreSQL"],
        ),
        relative(
            "1,000 rows/s: own CPU, relative to Debezium",
            0.2,
            ["1,000 rows/s, relay: its CPU", "1,000 rows/s, Debezium: its CPU"],
        ),
        relative(
            "5,000 rows/s: p99, relative to Debezium",
            1.0,
            ["5,000 rows/s, relay: p99", "5,000 rows/s, Debezium: p99"],
        ),
        relative(
            "20,000 rows/s: p99, relative to Debezium",
            1.0,
            ["20,000 rows/s, relay: p99", "20,000 rows/s, Debezium: p99"],
        ),
        difference(
            "steady",
            "100 rows/s: CPU of PostgreSQL, in addition to the writers",
            AtMost(600.0),
            ["100 rows/s, relay: CPU of PostgreSQL", "100 rows/s, writers alone: CPU of PostgreSQL"],
        ),
        of_relay("first row after a silence: p50", Milliseconds, AtMost(15.0), "after a silence, relay: p50"),
        of_relay("idle relay, CPU of one core", CorePercent, AtMost(1.0), "idle, relay: its CPU"),
        of_relay(
            "idle PostgreSQL, CPU of one core",
            CorePercent,
            AtMost(1.0),
            "idle, relay: CPU of PostgreSQL",
        ),
    ]
}

/// Scenarios 7 to 9: a drain under adverse conditions.
fn obstacles() -> Vec<Scenario> {
    vec![
        scenario(
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
        scenario(
            8,
            "one hot key",
            vec![
                median(
                    "hot-key",
                    "rate, all rows of one key",
                    RowsPerSecond,
                    AtLeast(60_000.0),
                    "100%: rate",
                ),
                median(
                    "hot-key",
                    "rate, half of the rows of one key",
                    RowsPerSecond,
                    AtLeast(60_000.0),
                    "50%: rate",
                ),
                median("hot-key", "rows out of order", Rows, AtMost(0.0), "out of order"),
            ],
        ),
        scenario(
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
    ]
}

/// Scenarios 10 and 11: many sent rows, and a large backlog.
fn large_tables() -> Vec<Scenario> {
    vec![
        scenario(
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
        scenario(
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
    ]
}

/// Scenario 12: several relays.
fn replicas() -> Vec<Scenario> {
    vec![scenario(
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
    )]
}

/// Scenarios 13 and 14: other rows, and a slow network.
fn shapes_and_network() -> Vec<Scenario> {
    vec![
        scenario(
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
        scenario(
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
        scenario(
            15,
            "one hour at 1,000 rows/s",
            vec![
                median("soak", "p50", Milliseconds, Stated, "p50"),
                median("soak", "p99", Milliseconds, Stated, "p99"),
                median("soak", "p99.9", Milliseconds, Stated, "p99.9"),
                median("soak", "memory of the relay after an hour", Mebibytes, Stated, "memory at the end"),
                ratio(
                    "soak",
                    "p99 of the last ten minutes, relative to the first ten",
                    Times,
                    Stated,
                    ["p99 of the last ten minutes", "p99 of the first ten minutes"],
                ),
            ],
        ),
    ]
}
