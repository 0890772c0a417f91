//! Scenario 14: a slow network. The relay reaches PostgreSQL and Kafka through delaying proxies, and nothing else does.

use super::subjects::{make_route, note_rate, reference, relay_drains_existing};
use crate::delay::Proxy;
use crate::figures::Of;
use crate::results::Outcome;
use crate::size::Size;
use crate::world::World;
use anyhow::Context;
use outbox_bench::place::Place;
use outbox_bench::settings::Settings;
use std::time::Duration;

/// One way.
const TO_POSTGRES: Duration = Duration::from_micros(2_500);
const TO_KAFKA: Duration = Duration::from_millis(5);

/// Settings to try for a slow network: the number of workers and the batch size. The best is documented.
const TUNINGS: [(u32, u32); 5] = [(6, 5_000), (8, 5_000), (12, 5_000), (8, 10_000), (16, 10_000)];

pub async fn measure(world: &World, size: &Size, outcome: &mut Outcome) -> anyhow::Result<()> {
    let place = Place::create(world.settings()).await?;
    drain_from(&place, world, size, outcome, 1, "default", |settings| settings).await?;
    let mut best = (0.0, TUNINGS[0]);
    for (workers, batch_rows) in TUNINGS {
        let name = format!("{workers} workers, batches of {batch_rows}");
        drain_from(&place, world, size, outcome, 1, &name, tuned(workers, batch_rows)).await?;
        let rate = outcome.figures.pick(&format!("{name}: rate"), Of::Median).unwrap_or(0.0);
        if rate > best.0 {
            best = (rate, (workers, batch_rows));
        }
    }
    let (workers, batch_rows) = best.1;
    for _ in 0..size.runs {
        drain_from(&place, world, size, outcome, 1, "tuned", tuned(workers, batch_rows)).await?;
        drain_from(&place, world, size, outcome, 2, "tuned, twice as far", tuned(workers, batch_rows))
            .await?;
    }
    outcome.notes.push(format!(
        "Documented settings: `[relay] workers = {workers}`, `batch_size = {batch_rows}`. Round trips are 5 ms to \
         PostgreSQL and 10 ms to Kafka. *Twice as far* means 10 ms and 20 ms. The proxy uses the same cores."
    ));
    place.remove().await?;
    Ok(())
}

fn tuned(workers: u32, batch_rows: u32) -> impl Fn(Settings) -> Settings {
    move |settings| {
        settings.with("relay", "workers", workers.to_string()).with(
            "relay",
            "batch_size",
            batch_rows.to_string(),
        )
    }
}

/// Drains with `far` times the delay.
async fn drain_from(
    place: &Place,
    world: &World,
    size: &Size,
    outcome: &mut Outcome,
    far: u32,
    name: &str,
    change: impl Fn(Settings) -> Settings,
) -> anyhow::Result<()> {
    let shape = reference(size.rows(500_000));
    let route = make_route(place, &shape).await?;
    place.fill(&shape).await?;
    let (url, address) = (&world.postgres, host_and_port(&world.postgres)?);
    let postgres = Proxy::start("127.0.0.1:0", address, TO_POSTGRES * far)?;
    let kafka = Proxy::start(&world.kafka_proxy, &world.kafka_behind, TO_KAFKA * far)?;
    let url = url.replace(address, &postgres.address.to_string());
    let drain = relay_drains_existing(place, &route, &shape, |settings| {
        change(settings).with("postgres", "url", url).with(
            "kafka",
            "bootstrap_servers",
            kafka.address.to_string(),
        )
    })
    .await?;
    place.close(route).await?;
    note_rate(&mut outcome.figures, name, &drain);
    Ok(())
}

/// The host and port of a URL such as `postgres://user@host:port/database`.
fn host_and_port(url: &str) -> anyhow::Result<&str> {
    let rest = url.split('@').nth(1).and_then(|rest| rest.split('/').next());
    rest.with_context(|| "the database's URL does not have the form that scripts/services uses".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_and_port_are_taken_from_the_url() {
        assert_eq!(host_and_port("postgres://postgres@127.0.0.1:25432/postgres").unwrap(), "127.0.0.1:25432");
        assert!(host_and_port("postgres").is_err());
    }
}
