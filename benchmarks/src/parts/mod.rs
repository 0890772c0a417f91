//! The parts that can be measured, each on its own. A file a part.

mod drain;
mod subjects;

use crate::database;
use crate::results::Outcome;
use crate::size::Size;
use crate::world::World;
use clap::ValueEnum;
use std::fmt;

/// What can be chosen with `--only`, in the order in which it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    Drain,
}

impl Part {
    /// Those, or all if there are none.
    pub fn chosen(only: &[Part]) -> Vec<Part> {
        let all = Part::value_variants().iter().copied();
        all.filter(|part| only.is_empty() || only.contains(part)).collect()
    }

    pub fn name(self) -> &'static str {
        match self {
            Part::Drain => "drain",
        }
    }

    /// Bars and contents, for whoever waits.
    pub fn about(self) -> &'static str {
        match self {
            Part::Drain => "bars 1 to 3: a backlog, marked, deleted, and by Debezium",
        }
    }

    /// Measures it, from servers on which nothing of an earlier part is left.
    pub async fn measure(self, world: &World, size: &Size, outcome: &mut Outcome) -> anyhow::Result<()> {
        database::clean(world).await?;
        match self {
            Part::Drain => drain::measure(world, size, outcome).await,
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
    use crate::bars::bars;

    #[test]
    fn each_bar_is_measured_by_a_part_that_exists() {
        for bar in bars() {
            for check in bar.checks {
                let known = Part::value_variants().iter().any(|part| part.name() == check.part);
                assert!(known, "bar {}: there is no part {}", bar.number, check.part);
            }
        }
    }

    #[test]
    fn parts_are_called_by_their_names() {
        for part in Part::value_variants() {
            assert_eq!(Part::from_str(part.name(), false), Ok(*part));
        }
        assert_eq!(Part::chosen(&[Part::Drain]), [Part::Drain]);
        assert_eq!(Part::chosen(&[]).len(), Part::value_variants().len());
    }
}
