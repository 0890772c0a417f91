//! One schedule: relays, writers and faults in a seeded world, then the judgement.

use super::kafka::{Broker, SimCluster};
use super::postgres::{Postgres, SimConnection, SimEvent};
use super::world::{Faults, Sabotage, World};
use outbox_relay::relay::batch::OnRejected;
use outbox_relay::relay::marks::Marks;
use outbox_relay::relay::scout::Scout;
use outbox_relay::relay::stats::Stats;
use outbox_relay::relay::{Limits, Relay, prober, worker};
use pg_outbox::topic::TopicTemplate;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

/// What a schedule is made of.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub relays: usize,
    pub writers: usize,
    pub events_per_writer: usize,
    pub keys: u64,
    pub faults: Faults,
    /// Crashes, freezes, restarts and outages while the writers write.
    pub disasters: u32,
    pub poison: u32,
    /// The second topic comes only after a while.
    pub late_topic: bool,
    /// The rule that the world breaks.
    pub sabotage: Option<Sabotage>,
}

/// What was written, per topic and key in the order of the commits.
type Ledger = Rc<RefCell<BTreeMap<(String, String), Vec<Uuid>>>>;

/// What came of a schedule.
#[derive(Debug, Default)]
pub struct Outcome {
    pub written: usize,
    pub duplicates: usize,
    pub dead: usize,
}

/// Runs one schedule. An error says which promise broke, with the history.
pub fn run(seed: u64, plan: &Plan) -> Result<Outcome, String> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, schedule(seed, plan))
}

async fn schedule(seed: u64, plan: &Plan) -> Result<Outcome, String> {
    let world = World::new(seed, plan.relays, plan.sabotage);
    let broker = Broker::new(Rc::clone(&world));
    let postgres = Postgres::new(Rc::clone(&world), Rc::clone(&broker));
    let ledger = Ledger::default();
    broker.create_topic("a");
    if !plan.late_topic {
        broker.create_topic("b");
    }
    let mut relays: Vec<JoinSet<()>> =
        (0..plan.relays).map(|number| start_relay(number, &world, &broker, &postgres)).collect();
    let mut writers = start_writers(plan, &world, &broker, &postgres, &ledger);
    world.faults.set(plan.faults);
    if plan.late_topic {
        let (world, broker) = (Rc::clone(&world), Rc::clone(&broker));
        writers.spawn_local(async move {
            world.pass(1_500).await;
            broker.create_topic("b");
        });
    }
    for _ in 0..plan.disasters {
        world.pass(3_000).await;
        disaster(plan, &world, &broker, &postgres, &mut relays).await;
    }
    while writers.join_next().await.is_some() {}
    world.faults.set(Faults::default());
    broker.set_up(true);
    broker.create_topic("b");
    let begun = Instant::now();
    while !postgres.is_settled() && begun.elapsed() < Duration::from_secs(600) {
        sleep(Duration::from_millis(100)).await;
    }
    for relay in &mut relays {
        relay.shutdown().await;
    }
    // What is still under way of abandoned producers may arrive now.
    sleep(Duration::from_secs(120)).await;
    judge(&broker, &postgres, &ledger)
        .map_err(|broken| format!("seed {seed}: {broken}\nplan {plan:?}\n{}", world.history(400)))
}

fn start_relay(
    number: usize,
    world: &Rc<World>,
    broker: &Rc<Broker>,
    postgres: &Rc<Postgres>,
) -> JoinSet<()> {
    let limits = Limits {
        batch_rows: 8,
        batch_bytes: 600,
        publish_timeout: Duration::from_secs(45),
        takeover_timeout: super::postgres::TAKEOVER,
        poll_interval: Duration::from_millis(50),
        on_rejected: OnRejected::DeadLetter,
        rejections_before_hold: 10,
    };
    let cluster = SimCluster { broker: Rc::clone(broker), relay: number };
    let template = TopicTemplate::parse("{aggregate_type}").unwrap();
    let marks = Rc::new(RefCell::new(Marks::new()));
    let relay = Rc::new(Relay::new(cluster, template, limits, marks, Arc::new(Stats::new())));
    let connection = || SimConnection::new(Rc::clone(postgres), number);
    let mut tasks = JoinSet::new();
    for worker in 1..=2 {
        tasks.spawn_local(worker::work(Rc::clone(&relay), worker, connection(), world.fork()));
    }
    tasks.spawn_local(Scout::new(Rc::clone(&relay), connection(), world.fork()).scout());
    tasks.spawn_local(prober::keep_gate(Rc::clone(&relay), world.fork()));
    tasks.spawn_local(prober::keep_holds(relay, connection(), connection()));
    tasks
}

async fn disaster(
    plan: &Plan,
    world: &Rc<World>,
    broker: &Rc<Broker>,
    postgres: &Rc<Postgres>,
    relays: &mut [JoinSet<()>],
) {
    let victim = world.below(plan.relays as u64) as usize;
    match world.below(5) {
        0 => {
            world.note(|| format!("relay {victim} is killed"));
            relays[victim].shutdown().await;
            world.pass(2_000).await;
            relays[victim] = start_relay(victim, world, broker, postgres);
        }
        1 => world.freeze(victim, Duration::from_millis(world.below(30_000))),
        2 => postgres.restart(),
        3 => {
            broker.set_up(false);
            world.pass(60_000).await;
            broker.set_up(true);
        }
        _ => broker.create_topic("b"),
    }
}

fn start_writers(
    plan: &Plan,
    world: &Rc<World>,
    broker: &Rc<Broker>,
    postgres: &Rc<Postgres>,
    ledger: &Ledger,
) -> JoinSet<()> {
    let turns: Rc<RefCell<HashMap<u64, Rc<Mutex<()>>>>> = Rc::default();
    let mut writers = JoinSet::new();
    for number in 0..plan.writers {
        let (plan, world, broker) = (*plan, Rc::clone(world), Rc::clone(broker));
        let (postgres, ledger, turns) = (Rc::clone(postgres), Rc::clone(ledger), Rc::clone(&turns));
        writers.spawn_local(async move {
            for event in 0..plan.events_per_writer {
                let name = format!("writer {number}.{event}");
                let key = world.below(plan.keys);
                let turn = Rc::clone(turns.borrow_mut().entry(key).or_default());
                // Writers of one key take turns before they insert the event.
                let _turn = turn.lock().await;
                write(&plan, &world, &broker, &postgres, &ledger, &name, key).await;
            }
        });
    }
    writers
}

#[allow(clippy::too_many_arguments)]
async fn write(
    plan: &Plan,
    world: &World,
    broker: &Broker,
    postgres: &Postgres,
    ledger: &Ledger,
    name: &str,
    key: u64,
) {
    let topic = if world.happens(333) { "b" } else { "a" };
    let mut holder = name.to_owned();
    let mut events = Vec::new();
    for _ in 0..=world.below(3) {
        let id = postgres.begin_insert(&holder);
        let event_id = Uuid::from_u128(u128::from(world.below(u64::MAX)));
        events.push(SimEvent { id, event_id, aggregate_type: topic.to_owned(), key: format!("key {key}") });
        world.pass(20).await;
    }
    if world.happens(100) {
        world.pass(5_000).await; // a long transaction
    }
    if world.happens(100) {
        let prepared = format!("-1/{}", events[0].id);
        postgres.prepare(&holder, &prepared);
        holder = prepared;
        world.pass(3_000).await;
    }
    if world.happens(150) {
        return postgres.end_insert(&holder, Vec::new());
    }
    for event in &events {
        if world.happens(plan.poison) {
            broker.poison(event.event_id);
        }
        let place = (topic.to_owned(), event.key.clone());
        ledger.borrow_mut().entry(place).or_default().push(event.event_id);
    }
    postgres.end_insert(&holder, events);
}

/// Reads Kafka from the beginning and compares it with the ledger.
fn judge(broker: &Broker, postgres: &Postgres, ledger: &Ledger) -> Result<Outcome, String> {
    if let Some(violation) = postgres.violations().first() {
        return Err(violation.clone());
    }
    if !postgres.is_settled() {
        return Err(format!("no progress: ids {:?} are still unsent", postgres.open()));
    }
    let dead: HashSet<Uuid> = postgres.dead().into_iter().collect();
    let mut received: HashMap<(String, String), Vec<Uuid>> = HashMap::new();
    let mut seen = HashSet::new();
    let log = broker.log();
    for stored in &log {
        if seen.insert(stored.event_id) {
            received.entry((stored.topic.clone(), stored.key.clone())).or_default().push(stored.event_id);
        }
    }
    let mut written = 0;
    for (place, events) in ledger.borrow().iter() {
        written += events.len();
        let expected: Vec<Uuid> = events.iter().copied().filter(|event| !dead.contains(event)).collect();
        let got = received.remove(place).unwrap_or_default();
        if got != expected {
            return Err(format!("{place:?}: written {expected:?}, received {got:?}"));
        }
    }
    match received.into_iter().next() {
        Some(phantom) => Err(format!("nobody committed {phantom:?}")),
        None => Ok(Outcome { written, duplicates: log.len() - seen.len(), dead: dead.len() }),
    }
}
