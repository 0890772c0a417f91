//! A drain by the relay or by Debezium, from an empty outbox to the verdict. Most parts consist of such drains.

use crate::debezium::connect::Connect;
use crate::debezium::{self, Debezium, Tuning};
use crate::figures::{Figures, Unit};
use anyhow::bail;
use outbox_bench::checking::verify::{self, Committed, Verdict};
use outbox_bench::measurements::drain::{self, Drain};
use outbox_bench::place::{Place, Route};
use outbox_bench::processes::relay::Relay;
use outbox_bench::processes::usage::Usage;
use outbox_bench::settings::Settings;
use outbox_bench::{BenchError, Shape};
use outbox_relay::kafka::record::EVENT_ID;

/// Creates the topics of a measurement: one topic with 12 partitions, or many with one partition each.
pub async fn make_route(place: &Place, shape: &Shape) -> anyhow::Result<Route> {
    Ok(place.route(shape, if shape.topics == 1 { 12 } else { 1 }).await?)
}

pub const MIB: f64 = (1 << 20) as f64;

/// The reference rows, which the scenarios use unless stated otherwise.
pub fn reference(rows: u64) -> Shape {
    Shape { rows, keys: 10_000, payload_bytes: 246, topics: 1, hot_share: 0.0 }
}

/// Fills the outbox and lets a relay with these settings drain it.
pub async fn relay_drains(
    place: &Place,
    shape: &Shape,
    change: impl FnOnce(Settings) -> Settings,
) -> anyhow::Result<Drain> {
    let route = make_route(place, shape).await?;
    place.fill(shape).await?;
    let drain = relay_drains_existing(place, &route, shape, change).await?;
    place.close(route).await?;
    Ok(drain)
}

/// Lets a relay with these settings drain an outbox whose unsent rows have the given shape.
pub async fn relay_drains_existing(
    place: &Place,
    route: &Route,
    shape: &Shape,
    change: impl FnOnce(Settings) -> Settings,
) -> anyhow::Result<Drain> {
    let mut relay = Relay::start_with(place, route, change).await?;
    let drain = drain::watch(place, route, &mut relay, shape.rows).await?;
    relay.stop().await?;
    check_all(place, route, &Committed(vec![shape.rows]), shape, EVENT_ID).await?;
    Ok(drain)
}

/// Fills the outbox while Debezium is paused, and lets Debezium drain it.
pub async fn debezium_drains(
    connect: &mut Connect,
    postgres: &str,
    place: &Place,
    shape: &Shape,
    tuning: Tuning,
) -> anyhow::Result<Drain> {
    let route = make_route(place, shape).await?;
    let mut debezium = Debezium::attach(connect, postgres, place, &route, tuning).await?;
    debezium.pause().await?;
    place.fill(shape).await?;
    debezium.resume().await?;
    let drain = drain::watch(place, &route, &mut debezium, shape.rows).await?;
    check_all(place, &route, &Committed(vec![shape.rows]), shape, debezium::EVENT_ID).await?;
    debezium.detach().await?;
    place.close(route).await?;
    Ok(drain)
}

/// The number of records in the topics.
pub async fn arrived(place: &Place, route: &Route) -> Result<u64, BenchError> {
    Ok(place.topics().ends(&route.topics, route.partitions).await?)
}

/// Consumes everything, and fails unless each committed row was delivered once and in order.
pub async fn check_all(
    place: &Place,
    route: &Route,
    committed: &Committed,
    shape: &Shape,
    header: &'static str,
) -> anyhow::Result<Verdict> {
    let verdict = verify::read_as(&place.config().kafka, route, shape, committed, header).await?;
    if !verdict.is_exact() {
        bail!("the records differ from the committed rows: {verdict:?}");
    }
    Ok(verdict)
}

/// Adds the rate and prints it.
pub fn note_rate(figures: &mut Figures, name: &str, drain: &Drain) {
    let name = format!("{name}: rate");
    eprintln!("  {name} {}", Unit::RowsPerSecond.show(drain.rows_per_second));
    figures.push(name, Unit::RowsPerSecond, drain.rows_per_second);
}

/// Adds the rate, CPU and memory of a drain, and the rate in percent of the CPU limit.
pub fn note(figures: &mut Figures, name: &str, drain: &Drain) {
    note_rate(figures, name, drain);
    for (at, usage) in drain.usage.iter().enumerate() {
        // The subject comes first.
        let party = match usage.party.as_str() {
            "postgres" => "PostgreSQL",
            "kafka" => "Kafka",
            "relay" => "the relay",
            other => other,
        };
        if let Some(cost) = usage.cpu_us_per_row {
            figures.push(format!("{name}: CPU of {party}"), Unit::MicrosecondsPerRow, cost);
        }
        if at == 0 {
            let memory = usage.memory_peak_bytes as f64 / MIB;
            figures.push(format!("{name}: memory of {party}"), Unit::Mebibytes, memory);
        }
    }
    if let Some(busy) = drain.machine_busy {
        figures.push(format!("{name}: cores in use"), Unit::Percent, busy * 100.0);
    }
    if let Some(share) = share_of_cpu_limit(drain, cores()) {
        figures.push(format!("{name}: of the CPU limit"), Unit::Percent, share);
    }
}

fn cores() -> f64 {
    std::thread::available_parallelism().map_or(1.0, |cores| usize::from(cores) as f64)
}

/// The limit is the rate at which all cores would do nothing but the work of the subject, PostgreSQL and Kafka for each
/// row. None if the processes of one of them could not be seen.
fn share_of_cpu_limit(drain: &Drain, cores: f64) -> Option<f64> {
    if drain.usage.len() < 3 {
        return None;
    }
    let costs: Option<Vec<f64>> = drain.usage.iter().map(|usage: &Usage| usage.cpu_us_per_row).collect();
    let limit = cores * 1e6 / costs?.iter().sum::<f64>();
    Some(drain.rows_per_second / limit * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(party: &str, cost: f64) -> Usage {
        Usage {
            party: party.into(),
            cpu_seconds: 1.0,
            cpu_us_per_row: Some(cost),
            cores: 1.0,
            memory_peak_bytes: 48 << 20,
        }
    }

    fn drained(usage: Vec<Usage>) -> Drain {
        Drain {
            rows: 1_000,
            seconds: 0.01,
            rows_per_second: 120_000.0,
            first_third_rows_per_second: 0.0,
            last_third_rows_per_second: 0.0,
            machine_busy: None,
            usage,
        }
    }

    #[test]
    fn the_limit_is_the_number_of_cores_divided_by_the_cost_of_a_row() {
        let drain = drained(vec![usage("relay", 2.5), usage("postgres", 8.5), usage("kafka", 1.5)]);
        // 2 cores at 12.5 us per row are 160,000 rows/s.
        assert_eq!(share_of_cpu_limit(&drain, 2.0), Some(75.0));
        assert_eq!(share_of_cpu_limit(&drained(vec![usage("relay", 2.5)]), 2.0), None);
    }

    #[test]
    fn the_figures_of_a_drain_have_the_names_that_the_scenarios_use() {
        let mut figures = Figures::default();
        note(
            &mut figures,
            "mark",
            &drained(vec![usage("relay", 2.5), usage("postgres", 8.5), usage("kafka", 1.5)]),
        );
        let names: Vec<&str> = figures.0.keys().map(String::as_str).collect();
        let wanted = [
            "mark: CPU of Kafka",
            "mark: CPU of PostgreSQL",
            "mark: CPU of the relay",
            "mark: memory of the relay",
            "mark: of the CPU limit",
            "mark: rate",
        ];
        assert_eq!(names, wanted);
        assert_eq!(figures.pick("mark: memory of the relay", crate::figures::Of::Best), Some(48.0));
    }
}
