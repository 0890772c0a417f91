//! The parts of the benchmark. Each has its own file and can be measured separately.

pub mod debezium;
mod drain;
mod flow;
mod held_snapshot;
mod held_topic;
mod hot_key;
mod memory;
mod network;
mod outage;
mod replicas;
mod retained;
mod shapes;
pub mod soak;
pub mod steady;
mod subjects;

use crate::database;
use crate::results::Outcome;
use crate::size::Size;
use crate::world::World;
use clap::ValueEnum;
use std::fmt;

/// A part that can be chosen with `--only`. They are measured in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    Debezium,
    Drain,
    Memory,
    Steady,
    Soak,
    Flow,
    HeldSnapshot,
    HotKey,
    HeldTopic,
    Retained,
    Outage,
    Replicas,
    Shapes,
    Network,
}

impl Part {
    /// The chosen parts, or all if none were chosen.
    pub fn chosen(only: &[Part]) -> Vec<Part> {
        let all = Part::value_variants().iter().copied();
        all.filter(|part| only.is_empty() || only.contains(part)).collect()
    }

    /// Whether a run of this size yields less than a full result. One run of the soak is a full one.
    pub fn is_reduced(self, size: &Size) -> bool {
        if self == Part::Soak { size.is_scaled() } else { size.is_reduced() }
    }

    pub fn name(self) -> &'static str {
        match self {
            Part::Debezium => "debezium",
            Part::Drain => "drain",
            Part::Memory => "memory",
            Part::Steady => "steady",
            Part::Soak => "soak",
            Part::Flow => "flow",
            Part::HeldSnapshot => "held-snapshot",
            Part::HotKey => "hot-key",
            Part::HeldTopic => "held-topic",
            Part::Retained => "retained",
            Part::Outage => "outage",
            Part::Replicas => "replicas",
            Part::Shapes => "shapes",
            Part::Network => "network",
        }
    }

    /// The scenarios and their contents, for the terminal.
    pub fn about(self) -> &'static str {
        match self {
            Part::Debezium => "the fastest settings of Debezium",
            Part::Drain => "scenarios 1 to 3: drain a backlog with mark, with delete, and with Debezium",
            Part::Memory => "scenario 4: memory during drains of larger rows",
            Part::Steady => "scenario 5: latency and cost at steady rates, and the cost of idling",
            Part::Soak => "scenario 15: one hour at 1,000 rows/s with the reaper and autovacuum",
            Part::Flow => "scenario 6: writers at full speed alone, with the relay, and with Debezium",
            Part::HeldSnapshot => "scenario 7: drain a backlog while a snapshot is held open",
            Part::HotKey => "scenario 8: one key has all rows, or half of the rows",
            Part::HeldTopic => "scenario 9: rows of a missing topic before the others",
            Part::Retained => "scenario 10: sent rows in the table, and the reaper",
            Part::Outage => "scenario 11: half an hour without Kafka",
            Part::Replicas => "scenario 12: several relays on one table",
            Part::Shapes => "scenario 13: many topics, many keys, small and large payloads",
            Part::Network => "scenario 14: long round trips to PostgreSQL and Kafka",
        }
    }

    /// Measures the part. Removes everything that earlier parts have left on the servers first.
    pub async fn measure(self, world: &World, size: &Size, outcome: &mut Outcome) -> anyhow::Result<()> {
        database::clean(world).await?;
        match self {
            Part::Debezium => Box::pin(debezium::measure(world, size, outcome)).await,
            Part::Drain => Box::pin(drain::measure(world, size, outcome)).await,
            Part::Memory => Box::pin(memory::measure(world, size, outcome)).await,
            Part::Steady => Box::pin(steady::measure(world, size, outcome)).await,
            Part::Soak => Box::pin(soak::measure(world, size, outcome)).await,
            Part::Flow => Box::pin(flow::measure(world, size, outcome)).await,
            Part::HeldSnapshot => Box::pin(held_snapshot::measure(world, size, outcome)).await,
            Part::HotKey => Box::pin(hot_key::measure(world, size, outcome)).await,
            Part::HeldTopic => Box::pin(held_topic::measure(world, size, outcome)).await,
            Part::Retained => Box::pin(retained::measure(world, size, outcome)).await,
            Part::Outage => Box::pin(outage::measure(world, size, outcome)).await,
            Part::Replicas => Box::pin(replicas::measure(world, size, outcome)).await,
            Part::Shapes => Box::pin(shapes::measure(world, size, outcome)).await,
            Part::Network => Box::pin(network::measure(world, size, outcome)).await,
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::scenarios;

    #[test]
    fn each_scenario_is_measured_by_an_existing_part() {
        for scenario in scenarios() {
            for check in scenario.checks {
                let known = Part::value_variants().iter().any(|part| part.name() == check.part);
                assert!(known, "scenario {}: there is no part {}", scenario.number, check.part);
            }
        }
    }

    #[test]
    fn parts_are_chosen_by_their_names() {
        for part in Part::value_variants() {
            assert_eq!(Part::from_str(part.name(), false), Ok(*part));
        }
        assert_eq!(Part::chosen(&[Part::Drain]), [Part::Drain]);
        assert_eq!(Part::chosen(&[]).len(), Part::value_variants().len());
    }
}
