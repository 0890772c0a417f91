//! What a part measures with: a drain by the relay or by Debezium, from an empty outbox to the verdict, and how its
//! figures are noted.

use super::debezium::{Connect, Debezium, Tuning};
use super::results::{Outcome, Unit};
use super::world::{Size, World};
use crate::BenchError;
use crate::checker::Verdict;
use crate::drain::{self, Drain};
use crate::load::Shape;
use crate::place::{Place, Route};
use crate::relay::Subject;
use crate::settings::Settings;
use crate::verify::{self, Committed};
use anyhow::ensure;

pub const MIB: f64 = (1 << 20) as f64;

/// One topic has this number of partitions. Many topics have one partition each.
pub const PARTITIONS: i32 = 12;

pub struct Run<'a> {
    pub world: &'a World,
    pub size: &'a Size,
    /// A new scratch outbox.
    pub place: &'a Place,
    pub outcome: &'a mut Outcome,
}

/// The reference rows, which the scenarios use unless stated otherwise.
pub fn reference(rows: u64) -> Shape {
    Shape { rows, keys: 10_000, payload_bytes: 246, topics: 1, hot_share: 0.0 }
}

/// Fails unless each committed row was delivered once and in order.
pub fn assert_exact(verdict: &Verdict) -> anyhow::Result<()> {
    ensure!(verdict.is_exact(), "the records differ from the committed rows: {verdict:?}");
    Ok(())
}

impl<'a> Run<'a> {
    pub async fn route(&self, shape: &Shape) -> Result<Route<'a>, BenchError> {
        self.place.route(shape, if shape.topics == 1 { PARTITIONS } else { 1 }).await
    }

    /// Fills the outbox and lets a relay with these settings drain it.
    pub async fn relay_drains(
        &self,
        shape: &Shape,
        change: impl FnOnce(Settings) -> Settings,
    ) -> anyhow::Result<Drain> {
        let route = self.route(shape).await?;
        self.place.fill(shape).await?;
        Run::relay_drains_to(route, change).await
    }

    /// Fills the outbox and lets a relay with the default settings drain it. Notes the rate and returns it.
    pub async fn relay_rate(&mut self, name: &str, shape: &Shape) -> anyhow::Result<f64> {
        let drain = self.relay_drains(shape, |settings| settings).await?;
        self.show_rate(name, &drain);
        Ok(drain.rows_per_second)
    }

    /// Lets a relay with these settings drain the outbox, whose unsent rows are those of the route. Deletes the topics.
    pub async fn relay_drains_to(
        route: Route<'_>,
        change: impl FnOnce(Settings) -> Settings,
    ) -> anyhow::Result<Drain> {
        let (drain, _, verdict) = drain::by_relay(&route, change).await?;
        assert_exact(&verdict)?;
        route.close().await?;
        Ok(drain)
    }

    /// Creates topics, lets Debezium publish to them while `measure` runs, and removes both.
    pub async fn with_debezium<T>(
        &self,
        connect: &mut Connect,
        shape: &Shape,
        tuning: Tuning,
        measure: impl AsyncFnOnce(&Route<'_>, &mut Debezium<'_>) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let route = self.route(shape).await?;
        let mut debezium = Debezium::attach(connect, &self.world.postgres, &route, tuning).await?;
        let measured = measure(&route, &mut debezium).await?;
        debezium.detach().await?;
        route.close().await?;
        Ok(measured)
    }

    /// Fills the outbox while Debezium is paused, and lets Debezium drain it.
    pub async fn debezium_drains(
        &self,
        connect: &mut Connect,
        shape: &Shape,
        tuning: Tuning,
    ) -> anyhow::Result<Drain> {
        let drain = self.with_debezium(connect, shape, tuning, async |route, debezium| {
            debezium.pause().await?;
            route.place.fill(shape).await?;
            debezium.resume().await?;
            let drain = drain::watch(route, debezium).await?;
            let committed = Committed(vec![shape.rows]);
            assert_exact(&verify::read(route, &committed, Debezium::EVENT_ID).await?)?;
            Ok(drain)
        });
        drain.await
    }

    pub fn note(&mut self, name: impl Into<String>, unit: Unit, value: f64) {
        self.outcome.figures.push(name, unit, value);
    }

    /// Adds a figure and prints it.
    pub fn show(&mut self, name: impl Into<String>, unit: Unit, value: f64) {
        let name = name.into();
        eprintln!("  {name} {}", unit.show(value));
        self.note(name, unit, value);
    }

    /// Adds the rate of a drain and prints it.
    pub fn show_rate(&mut self, name: &str, drain: &Drain) {
        self.show(format!("{name}: rate"), Unit::RowsPerSecond, drain.rows_per_second);
    }

    /// Adds the rate, CPU and memory of a drain, and the rate in percent of the CPU limit.
    pub fn note_drain(&mut self, name: &str, drain: &Drain) {
        self.show_rate(name, drain);
        let cores = std::thread::available_parallelism().map_or(1.0, |cores| usize::from(cores) as f64);
        for (figure, unit, value) in costs(drain, cores) {
            self.note(format!("{name}: {figure}"), unit, value);
        }
    }
}

/// The figures of a drain in addition to its rate.
fn costs(drain: &Drain, cores: f64) -> Vec<(String, Unit, f64)> {
    let mut costs = Vec::new();
    for (at, usage) in drain.usage.iter().enumerate() {
        // The subject comes first.
        let party = match usage.party.as_str() {
            "postgres" => "PostgreSQL",
            "kafka" => "Kafka",
            "relay" => "the relay",
            other => other,
        };
        if let Some(cost) = usage.cpu_us_per_row {
            costs.push((format!("CPU of {party}"), Unit::MicrosecondsPerRow, cost));
        }
        if at == 0 {
            let memory = usage.memory_peak_bytes as f64 / MIB;
            costs.push((format!("memory of {party}"), Unit::Mebibytes, memory));
        }
    }
    let busy = drain.machine_busy.map(|busy| ("cores in use".to_owned(), Unit::Percent, busy * 100.0));
    let share = drain.cpu_limit(cores).map(|limit| drain.rows_per_second / limit * 100.0);
    costs.extend(busy);
    costs.extend(share.map(|share| ("of the CPU limit".to_owned(), Unit::Percent, share)));
    costs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::Usage;

    fn drained(costs: &[(&str, f64)]) -> Drain {
        let usage = |(party, cost): &(&str, f64)| Usage {
            party: (*party).to_owned(),
            cpu_seconds: 1.0,
            cpu_us_per_row: Some(*cost),
            cores: 1.0,
            memory_peak_bytes: 48 << 20,
        };
        Drain { rows_per_second: 120_000.0, usage: costs.iter().map(usage).collect(), ..Drain::default() }
    }

    #[test]
    fn the_limit_is_the_number_of_cores_divided_by_the_cost_of_a_row() {
        let drain = drained(&[("relay", 2.5), ("postgres", 8.5), ("kafka", 1.5)]);
        // 2 cores at 12.5 us per row are 160,000 rows/s.
        assert_eq!(drain.cpu_limit(2.0), Some(160_000.0));
        assert_eq!(drained(&[("relay", 2.5)]).cpu_limit(2.0), None);
    }

    #[test]
    fn the_figures_of_a_drain_have_the_names_that_the_scenarios_use() {
        let drain = drained(&[("relay", 2.5), ("postgres", 8.5), ("kafka", 1.5)]);
        let costs = costs(&drain, 2.0);
        let names: Vec<&str> = costs.iter().map(|(name, ..)| name.as_str()).collect();
        let wanted = [
            "CPU of the relay",
            "memory of the relay",
            "CPU of PostgreSQL",
            "CPU of Kafka",
            "of the CPU limit",
        ];
        assert_eq!(names, wanted);
        assert_eq!((costs[1].1, costs[1].2), (Unit::Mebibytes, 48.0));
        assert_eq!(costs[4].2, 75.0);
    }
}
