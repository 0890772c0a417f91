//! One schedule: relays, writers, operators and faults in a seeded world, and the judgment.

use super::disasters::Scene;
use super::kafka::broker::Broker;
use super::plan::Plan;
use super::postgres::server::Server;
use super::promises::{Outcome, Promises};
use super::relays::Slot;
use super::users::Users;
use super::world::World;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

/// The time after the last fault within which everything must be settled. A row that was put back may have to wait for
/// a sweep, and the sweep may be late if the relay was frozen during the previous one.
const PROGRESS_WITHIN: Duration = Duration::from_secs(330);
/// After this time, no more requests of abandoned producers arrive.
const LATE: Duration = Duration::from_secs(31);

/// The result of a schedule.
pub struct Verdict {
    /// The outcome, or the promise that was broken.
    pub outcome: Result<Outcome, String>,
    /// Equal for two runs of the same seed.
    pub fingerprint: u64,
    pub history: String,
}

/// Runs one schedule.
pub fn run(seed: u64, plan: &Plan, with_history: bool) -> Verdict {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let world = World::new(seed, *plan, with_history);
        let outcome = schedule(&world).await;
        let outcome = world.violation().map_or(Ok(outcome), Err);
        Verdict { outcome, fingerprint: world.fingerprint(), history: world.history(400) }
    })
}

async fn schedule(world: &Rc<World>) -> Outcome {
    let promises = Promises::new(world);
    let server = Server::new(world, &promises);
    let broker = Broker::new(world, &promises);
    // The last topic may be created later.
    let topics = world.plan.topics as u8;
    for topic in 0..topics {
        if topic == 0 || topic + 1 < topics || world.happens(500) {
            broker.create_topic(topic);
        }
    }
    let relays: Vec<Rc<Slot>> =
        (0..world.plan.relays).map(|number| Slot::new(number, world, &server, &broker)).collect();
    let mut running = JoinSet::new();
    for relay in &relays {
        running.spawn_local(Rc::clone(relay).keep_running());
    }
    let scene = Scene { world, server: &server, broker: &broker, relays: &relays };
    tokio::select! {
        biased;
        () = until_violated(world) => {}
        () = live(&scene) => {
            running.shutdown().await;
            sleep(LATE).await;
        }
    }
    let waiting = server.rows(|row| row.sent_at.is_none() && server.is_blocked(&row.event));
    for row in waiting.iter().filter(|row| !server.is_behind_block(&row.event)) {
        promises.hidden(&row.event);
    }
    promises.judge(|identity| waiting.iter().any(|row| row.event.identity == identity))
}

async fn until_violated(world: &World) {
    while world.violation().is_none() {
        world.progress.notified().await;
    }
}

/// Writers write and faults happen. Then faults stop, and everything is settled.
async fn live(scene: &Scene<'_>) {
    let (world, plan) = (scene.world, &scene.world.plan);
    let users = Users::new(world, scene.broker, scene.server);
    let mut acting = users.start();
    world.set_stormy(true);
    if !plan.calm_at_first.is_zero() {
        sleep(plan.calm_at_first).await;
    }
    for _ in 0..plan.disasters {
        world.pass(plan.writing.as_millis() as u64).await;
        scene.strike(plan.kinds[world.below(plan.kinds.len() as u64) as usize]).await;
    }
    while acting.join_next().await.is_some() {}
    users.resume_all();
    world.set_stormy(false);
    scene.broker.repair();
    let begun = Instant::now();
    let deadline = begun + PROGRESS_WITHIN;
    while !scene.server.is_settled() {
        let changed = world.progress.notified();
        if timeout_at(deadline, changed).await.is_err() {
            let open = scene.server.rows(|row| row.sent_at.is_none());
            world.violate(|| format!("no progress: {open:?}"));
        }
        for relay in scene.relays {
            relay.check_memory();
        }
    }
    world.count.settled_after.set(begun.elapsed());
    // Settled rows must not change any more.
    sleep(Duration::from_secs(1)).await;
}
