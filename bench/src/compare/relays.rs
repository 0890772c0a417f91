//! Scenario 12: two and four relays share one table.

use super::results::Unit;
use super::run::{Run, assert_exact, reference};
use crate::BenchError;
use crate::drain;
use crate::place::Route;
use crate::relay::{Relay, Subject};
use crate::usage::Party;
use crate::verify::{self, Committed};
use anyhow::ensure;
use std::time::{Duration, Instant};

const PUBLISHED: &str = "outbox_relay_published_total";
/// A backlog large enough that the second relay can join before it is gone.
const JOINED_ROWS_LEAST: u64 = 300_000;
const JOINS_WITHIN: Duration = Duration::from_secs(30);
/// How long a relay's share is measured after it has joined.
const SHARE_OVER: Duration = Duration::from_secs(2);

pub async fn measure(run: &mut Run<'_>) -> anyhow::Result<()> {
    let shape = reference(run.size.rows(2_000_000));
    let place = run.place;
    let client = place.database.get().await?;
    for _ in 0..run.size.runs {
        for (name, relays) in [("1 relay", 1), ("2 relays", 2), ("4 relays", 4)] {
            let route = run.route(&shape).await?;
            place.fill(&shape).await?;
            // All relays start at the same moment, because a relay finds no work while another one holds all lanes.
            client.batch_execute(&place.table().render("BEGIN; SELECT FROM {lane} FOR UPDATE")).await?;
            let mut relays = Relays::start(&route, relays).await?;
            client.batch_execute("ROLLBACK").await?;
            let drain = drain::watch(&route, &mut relays).await?;
            let (most, all) = relays.published().await?;
            relays.stop_and_check(route).await?;
            run.show_rate(name, &drain);
            run.note(format!("{name}: largest share"), Unit::SharePercent, most / all * 100.0);
        }
        join(run).await?;
    }
    Ok(())
}

/// A second relay joins while the first one drains a backlog.
async fn join(run: &mut Run<'_>) -> anyhow::Result<()> {
    let shape = reference(run.size.rows(2_000_000).max(JOINED_ROWS_LEAST));
    let (place, route) = (run.place, run.route(&shape).await?);
    place.fill(&shape).await?;
    let first = Relay::start(&route).await?;
    wait_for_rows(&first).await?;
    let second = Relay::start(&route).await?;
    let ready = Instant::now();
    wait_for_rows(&second).await?;
    run.note("joins: first row", Unit::Seconds, ready.elapsed().as_secs_f64());
    let before = [published(&first).await?, published(&second).await?];
    tokio::time::sleep(run.size.time(SHARE_OVER)).await;
    let after = [published(&first).await?, published(&second).await?];
    let moved = [after[0] - before[0], after[1] - before[1]];
    let all = moved[0] + moved[1];
    ensure!(all > 0.0, "the backlog was gone before the second relay could take its share");
    run.note("joins: its share from then on", Unit::Percent, moved[1] / all * 100.0);
    let mut relays = Relays(vec![first, second]);
    drain::watch(&route, &mut relays).await?;
    relays.stop_and_check(route).await
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
struct Relays(Vec<Relay>);

impl Relays {
    async fn start(route: &Route<'_>, relays: usize) -> Result<Self, BenchError> {
        let mut started = Vec::new();
        for _ in 0..relays {
            started.push(Relay::start(route).await?);
        }
        Ok(Self(started))
    }

    /// The rows of the relay that has published the most, and of all relays.
    async fn published(&self) -> Result<(f64, f64), BenchError> {
        let (mut most, mut all) = (0.0_f64, 0.0);
        for relay in &self.0 {
            let rows = published(relay).await?;
            most = most.max(rows);
            all += rows;
        }
        Ok((most, all))
    }

    /// Stops all of them, checks every record, and deletes the topics.
    async fn stop_and_check(self, route: Route<'_>) -> anyhow::Result<()> {
        for relay in self.0 {
            relay.stop().await?;
        }
        let committed = Committed(vec![route.shape.rows]);
        assert_exact(&verify::read(&route, &committed, Self::EVENT_ID).await?)?;
        Ok(route.close().await?)
    }
}

impl Subject for Relays {
    const EVENT_ID: &'static str = Relay::EVENT_ID;

    fn party(&self) -> Party {
        let processes = self.0.iter().map(Relay::pid).collect();
        Party { processes, ..Party::started("relay", 0) }
    }

    fn check(&mut self) -> Result<(), BenchError> {
        self.0.iter_mut().try_for_each(Subject::check)
    }

    async fn has_settled(&mut self, rows: u64) -> Result<bool, BenchError> {
        let (_, all) = self.published().await?;
        Ok(all as u64 >= rows)
    }
}
