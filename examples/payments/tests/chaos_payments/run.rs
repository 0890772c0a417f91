//! A run: load, faults according to a seed's schedule, a quiet phase, and the checks.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::checks;
use crate::figures::figures;
use crate::journals;
use crate::quiet::wait_for_quiet;
use crate::schedule::{Kind, Schedule, Step};
use crate::support::wait::wait_until;
use crate::world::{TOPIC, World};

/// The processes have started when the first payments are complete.
const UP_WITHIN: Duration = Duration::from_secs(60);
const UP: &str = "SELECT count(*) > 20 FROM posting";
/// Far less than even a very busy machine achieves.
const PAYMENTS_PER_SECOND_MIN: f64 = 1.0;

/// The kinds of faults, the minimum duration (in whole rounds), the seed, and the deliberate mistakes.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub lasts: Duration,
    pub seed: u64,
    pub kinds: &'static [Kind],
    pub mistakes: &'static [&'static str],
}

/// The result of a run.
pub struct Outcome {
    seed: u64,
    lasted: Duration,
    faults: BTreeMap<Kind, usize>,
    figures: Vec<(&'static str, i64)>,
    /// Every broken promise, one sentence each.
    pub broken: Vec<String>,
}

impl Plan {
    /// Runs the plan and prints the progress. Logs and journals are kept.
    pub async fn run(self) -> Outcome {
        let wrong = if self.mistakes.is_empty() { "" } else { "-mistakes" };
        let folder =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("chaos-payments-{}{wrong}", self.seed));
        _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        println!(
            "chaos-payments: seed {}, at least {:?}; logs in {}",
            self.seed,
            self.lasts,
            folder.display()
        );
        let world = World::create(&folder, self.mistakes).await;
        world.start().await;
        let client = world.connect().await;
        wait_until("the first payments are complete", UP_WITHIN, async || {
            client.query_one(UP, &[]).await.unwrap().get(0)
        })
        .await;
        let begun = Instant::now();
        let (faults, mut broken) = self.let_faults_happen(&world).await;
        let lasted = begun.elapsed();
        println!("{:>7.1} s  the last fault is over", lasted.as_secs_f64());
        broken.extend(wait_for_quiet(&world).await);
        println!("{:>7.1} s  quiet", begun.elapsed().as_secs_f64());
        let client = world.connect().await;
        journals::load(&client, &world.journals).await;
        broken.extend(checks::broken(&client).await);
        let expected = (lasted.as_secs_f64() * PAYMENTS_PER_SECOND_MIN) as i64;
        broken.extend(checks::too_few_payments(&client, expected).await);
        let cluster = world.cluster.clone();
        let records = tokio::task::spawn_blocking(move || cluster.stored(TOPIC)).await.unwrap();
        let figures = figures(&client, records).await;
        Outcome { seed: self.seed, lasted, faults, figures, broken }
    }

    async fn let_faults_happen(self, world: &World) -> (BTreeMap<Kind, usize>, Vec<String>) {
        let begun = Instant::now();
        let mut schedule = Schedule::new(self.seed, self.kinds);
        let mut faults = BTreeMap::new();
        let mut broken = Vec::new();
        while begun.elapsed() < self.lasts && broken.is_empty() {
            for step in schedule.next_round() {
                say(begun, &step);
                carry_out(world, step).await;
                for fault in [Some(step.fault), step.second].into_iter().flatten() {
                    *faults.entry(fault.kind).or_default() += 1;
                }
                broken.extend(unexpectedly_ended(world).await);
            }
        }
        (faults, broken)
    }
}

/// The processes that ended unexpectedly. They are started again.
async fn unexpectedly_ended(world: &World) -> Vec<String> {
    let mut ended = Vec::new();
    for process in world.processes() {
        let mut process = process.lock().await;
        if process.has_ended() {
            ended.push(format!("{} ended unexpectedly:\n{}", process.name, process.said()));
            process.kill();
            process.start();
        }
    }
    ended
}

fn say(begun: Instant, step: &Step) {
    let second = step.second.map_or_else(String::new, |fault| format!(", and {}", fault.kind.name()));
    println!("{:>7.1} s  {}{second}", begun.elapsed().as_secs_f64(), step.fault.kind.name());
}

async fn carry_out(world: &World, step: Step) {
    tokio::time::sleep(step.pause).await;
    match step.second {
        None => world.strike(step.fault).await,
        Some(second) => {
            tokio::join!(world.strike(step.fault), world.strike(second));
        }
    }
}

impl Outcome {
    /// The summary line of a run.
    pub fn last_line(&self) -> String {
        let faults: usize = self.faults.values().sum();
        format!(
            "seed {}: {} payments under {faults} faults in {:.0} s, {} broken promises",
            self.seed,
            self.figures[0].1,
            self.lasted.as_secs_f64(),
            self.broken.len()
        )
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (kind, times) in &self.faults {
            writeln!(f, "  {:<40} {times:>8}", kind.name())?;
        }
        for (name, figure) in &self.figures {
            writeln!(f, "  {name:<40} {figure:>8}")?;
        }
        for broken in &self.broken {
            writeln!(f, "BROKEN: {broken}")?;
        }
        write!(f, "{}", self.last_line())
    }
}
