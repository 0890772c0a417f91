//! A run: load, faults according to a seed's schedule, a quiet phase, and the checker's report.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::application::{self, KINDS, topic};
use crate::checker::Checker;
use crate::faults::Struck;
use crate::reading;
use crate::report::Report;
use crate::schedule::Schedule;
use crate::times;
use crate::world::{RELAYS, TAKEOVER_TIMEOUT, World};
use crate::writers::Writers;

/// The time without faults at the beginning, in which there must be no duplicates.
const QUIET: Duration = Duration::from_secs(3);
/// How long a run waits for relays that do not resume before it ends.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// The longest time without a settled row at the end while unsent rows are left.
const STALLED: Duration = Duration::from_secs(60);
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Short, because claims are short.
const CLAIM_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// The duration, the load and the seed of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub lasts: Duration,
    pub seed: u64,
    pub events_a_second: u32,
}

impl Plan {
    /// Runs the plan and prints the progress. Everything that is broken is in the report. The relays' logs are in the
    /// folder that is printed.
    pub async fn run(self) -> Report {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("chaos-{}", self.seed));
        _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        println!(
            "chaos: seed {}, {:.1} minutes, {RELAYS} relays, {} events per second; logs in {}",
            self.seed,
            self.lasts.as_secs_f64() / 60.0,
            self.events_a_second,
            folder.display()
        );
        let world = World::create(&folder).await;
        world.start_relays().await;
        let writers = Writers::start(&world.url, self.seed, self.events_a_second);
        let mut broken = Vec::new();
        let struck = self.let_faults_happen(&world, &mut broken).await;
        let written = writers.stop().await;
        broken.extend(wait_until_drained(&world).await);
        broken.extend(
            world.stop_relays().await.iter().map(|relay| format!("relay {relay} did not end after SIGTERM")),
        );
        judge(&world, struck, written, broken).await
    }

    async fn let_faults_happen(self, world: &World, broken: &mut Vec<String>) -> Vec<Struck> {
        let begun = Instant::now();
        let say = |what: &str| println!("{:>7.1} s  {what}", begun.elapsed().as_secs_f64());
        tokio::time::sleep(QUIET).await;
        let mut schedule = Schedule::new(self.seed, RELAYS, TAKEOVER_TIMEOUT);
        let mut struck = Vec::new();
        while begun.elapsed() < self.lasts {
            let mut faults = world.carry_out(&schedule.next_step(), &say).await;
            broken.extend(wait_until_all_work(world, &mut faults).await);
            say("  all relays are working again");
            struck.extend(faults);
            let relays = world.ended_relays().await;
            broken.extend(relays.iter().map(|relay| format!("relay {relay} ended unexpectedly")));
            if !broken.is_empty() {
                break;
            }
        }
        say("the last fault is over");
        struck
    }
}

/// Waits until rows have been settled since each of these faults ended, and until every relay has been seen with a
/// claim, so that the next fault strikes working relays. Returns what did not happen.
async fn wait_until_all_work(world: &World, faults: &mut [Struck]) -> Option<String> {
    let begun = Instant::now();
    let client = world.connect().await;
    let mut idle = world.relay_names().await;
    while !idle.is_empty() {
        if begun.elapsed() > IDLE_MAX {
            return Some(format!("{idle:?} claimed nothing for {IDLE_MAX:?} after: {faults:#?}"));
        }
        let claiming = world.claiming(&client).await;
        idle.retain(|name| !claiming.contains(name));
        tokio::time::sleep(CLAIM_CHECK_INTERVAL).await;
    }
    for fault in faults {
        fault.all_worked = fault.ended.elapsed().ok();
        while times::first_settled(&client, fault).await.unwrap().is_none() {
            if begun.elapsed() > IDLE_MAX {
                return Some(format!("no row was settled for {IDLE_MAX:?} after: {}", fault.fault));
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }
    None
}

/// Waits until no row is unsent, as long as rows are being settled. Returns what is left.
async fn wait_until_drained(world: &World) -> Option<String> {
    let client = world.connect().await;
    let mut least = i64::MAX;
    let mut progress = Instant::now();
    while progress.elapsed() < STALLED {
        let sql = "SELECT count(*) FROM outbox WHERE sent_at IS NULL";
        let unsent: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
        if unsent == 0 {
            return None;
        }
        if unsent < least {
            (least, progress) = (unsent, Instant::now());
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
    Some(format!("{least} rows were never sent, and no progress is made"))
}

async fn judge(
    world: &World,
    struck: Vec<Struck>,
    written: crate::writers::Written,
    broken: Vec<String>,
) -> Report {
    let client = world.connect().await;
    let mut faults = Vec::new();
    for fault in struck {
        let times = times::measure(&client, &fault).await;
        faults.push((fault, times));
    }
    let ledger = application::ledger(&client).await;
    let known = |id| ledger.iter().any(|event| event.event_id == id);
    let unknown: Vec<bool> = written
        .unknown
        .iter()
        .map(|events| {
            // Either all events of a transaction, or none.
            let known: Vec<bool> = events.iter().map(|id| known(*id)).collect();
            assert!(known.iter().all(|one| *one == known[0]), "half a transaction: {known:?}");
            known[0]
        })
        .collect();
    let unknown_events: usize = written
        .unknown
        .iter()
        .zip(&unknown)
        .filter(|(_, known)| **known)
        .map(|(events, _)| events.len())
        .sum();
    assert_eq!(
        ledger.len(),
        written.committed + unknown_events,
        "the ledger must match what the writers committed"
    );
    let mut checker = Checker::new(ledger);
    let topics: Vec<(String, i32)> = KINDS.iter().map(|kind| (topic(kind.name), kind.partitions)).collect();
    reading::read_all(&world.cluster.bootstrap, &topics, &mut checker);
    application::dead_letters(&client).await.iter().for_each(|letter| checker.dead_letter(letter));
    let unknown_committed = unknown.iter().filter(|known| **known).count();
    Report { verdict: checker.finish(), written, unknown_committed, faults, broken }
}
