//! Scenario 12: two and four relays share one table.

use super::subjects::{check_all, make_route, note_rate, reference};
use crate::database;
use crate::figures::Unit;
use crate::results::Outcome;
use crate::size::Size;
use crate::world::World;
use anyhow::ensure;
use outbox_bench::BenchError;
use outbox_bench::checking::verify::Committed;
use outbox_bench::measurements::drain;
use outbox_bench::place::{Place, Route};
use outbox_bench::processes::relay::Relay;
use outbox_bench::processes::usage::Party;
use outbox_bench::subject::Subject;
use outbox_relay::kafka::record::EVENT_ID;
use std::time::{Duration, Instant};

const PUBLISHED: &str = "outbox_relay_published_total";
/// A backlog large enough that the second relay can join before it is gone.
const JOINED_ROWS_LEAST: u64 = 300_000;
const JOINS_WITHIN: Duration = Duration::from_secs(30);
/// How long a relay's share is measured after it has joined.
const SHARE_OVER: Duration = Duration::from_secs(2);

pub async fn measure(world: &World, size: &Size, outcome: &mut Outcome) -> anyhow::Result<()> {
    let shape = reference(size.rows(2_000_000));
    let place = Place::create(world.settings()).await?;
    let client = database::connect(&world.postgres).await?;
    for _ in 0..size.runs {
        for (name, relays) in [("1 relay", 1), ("2 relays", 2), ("4 relays", 4)] {
            let route = make_route(&place, &shape).await?;
            place.fill(&shape).await?;
            // All relays start at the same moment, because a relay finds no work while another one holds all lanes.
            client.batch_execute(&place.table().render("BEGIN; SELECT FROM {lane} FOR UPDATE")).await?;
            let mut relays = Relays::start(&place, &route, relays).await?;
            client.batch_execute("ROLLBACK").await?;
            let drain = drain::watch(&place, &route, &mut relays, shape.rows).await?;
            let (most, all) = relays.published().await?;
            relays.stop().await?;
            check_all(&place, &route, &Committed(vec![shape.rows]), &shape, EVENT_ID).await?;
            place.close(route).await?;
            note_rate(&mut outcome.figures, name, &drain);
            outcome.figures.push(format!("{name}: largest share"), Unit::SharePercent, most / all * 100.0);
        }
        join(&place, size, outcome).await?;
    }
    place.remove().await?;
    Ok(())
}

/// A second relay joins while the first one drains a backlog.
async fn join(place: &Place, size: &Size, outcome: &mut Outcome) -> anyhow::Result<()> {
    let shape = reference(size.rows(2_000_000).max(JOINED_ROWS_LEAST));
    let route = make_route(place, &shape).await?;
    place.fill(&shape).await?;
    let first = Relay::start(place, &route).await?;
    wait_for_rows(&first).await?;
    let second = Relay::start(place, &route).await?;
    let relays = Instant::now();
    wait_for_rows(&second).await?;
    outcome.figures.push("joins: first row", Unit::Seconds, relays.elapsed().as_secs_f64());
    let before = [published(&first).await?, published(&second).await?];
    tokio::time::sleep(size.time(SHARE_OVER)).await;
    let after = [published(&first).await?, published(&second).await?];
    let moved = [after[0] - before[0], after[1] - before[1]];
    ensure!(moved[0] + moved[1] > 0.0, "the backlog was gone before the second relay could take its share");
    outcome.figures.push(
        "joins: its share from then on",
        Unit::Percent,
        moved[1] / (moved[0] + moved[1]) * 100.0,
    );
    let mut relays = Relays { relays: vec![first, second] };
    drain::watch(place, &route, &mut relays, shape.rows).await?;
    relays.stop().await?;
    check_all(place, &route, &Committed(vec![shape.rows]), &shape, EVENT_ID).await?;
    place.close(route).await?;
    Ok(())
}

async fn wait_for_rows(relay: &Relay) -> anyhow::Result<()> {
    let begun = Instant::now();
    while published(relay).await? == 0.0 {
        ensure!(begun.elapsed() < JOINS_WITHIN, "a relay has published nothing for {JOINS_WITHIN:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

async fn published(relay: &Relay) -> Result<f64, BenchError> {
    Ok(relay.metrics().await?.value(PUBLISHED))
}

/// Several relays as one measured subject.
struct Relays {
    relays: Vec<Relay>,
}

impl Relays {
    async fn start(place: &Place, route: &Route, relays: usize) -> Result<Self, BenchError> {
        let mut started = Vec::new();
        for _ in 0..relays {
            started.push(Relay::start(place, route).await?);
        }
        Ok(Self { relays: started })
    }

    /// The rows of the relay that has published the most, and of all relays.
    async fn published(&self) -> Result<(f64, f64), BenchError> {
        let (mut most, mut all) = (0.0_f64, 0.0);
        for relay in &self.relays {
            let rows = published(relay).await?;
            most = most.max(rows);
            all += rows;
        }
        Ok((most, all))
    }

    async fn stop(self) -> Result<(), BenchError> {
        for relay in self.relays {
            relay.stop().await?;
        }
        Ok(())
    }
}

impl Subject for Relays {
    fn party(&self) -> Party {
        let processes = self.relays.iter().map(Relay::pid).collect();
        Party { processes, ..Party::started("relay", 0) }
    }

    fn check(&mut self) -> Result<(), BenchError> {
        self.relays.iter_mut().try_for_each(Subject::check)
    }

    async fn has_settled(&mut self, rows: u64) -> Result<bool, BenchError> {
        let (_, all) = self.published().await?;
        Ok(all as u64 >= rows)
    }
}
