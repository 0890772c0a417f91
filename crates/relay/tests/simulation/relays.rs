//! The relays. Each is a process that is restarted whenever it ends.

use super::event::TOPICS;
use super::kafka::broker::Broker;
use super::kafka::cluster::SimCluster;
use super::plan::{Sabotage, TopicsBy};
use super::postgres::connection::SimConnection;
use super::postgres::server::{Server, TAKEOVER};
use super::postgres::wrong_marks::WrongMarks;
use super::process::Process;
use super::world::{World, add};
use pg_outbox::topic::TopicTemplate;
use relay::Limits;
use relay::OnRejected;
use relay::Relay;
use relay::cycle::worker;
use relay::health::stats::Stats;
use relay::holds::prober;
use relay::lanes::marks::Marks;
use relay::lanes::scout::Scout;
use relay::reaper;
use relay::reaper::Pace;
use relay::topic::TopicRules;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

/// How long Kafka may take to acknowledge a batch.
pub const PUBLISH_TIMEOUT: Duration = Duration::from_secs(10);
const REAPS_EVERY: Duration = Duration::from_millis(300);
/// Flows have few rows here.
const FLOW_RECORDS: usize = 2;

/// One relay, over all its lives.
pub struct Slot {
    number: usize,
    world: Rc<World>,
    server: Rc<Server>,
    broker: Rc<Broker>,
    life: RefCell<Option<Life>>,
    stop: Notify,
}

struct Life {
    process: Rc<Process>,
    relay: Rc<Relay<SimCluster>>,
}

impl Slot {
    pub fn new(number: usize, world: &Rc<World>, server: &Rc<Server>, broker: &Rc<Broker>) -> Rc<Slot> {
        let (world, server, broker) = (Rc::clone(world), Rc::clone(server), Rc::clone(broker));
        Rc::new(Slot { number, world, server, broker, life: RefCell::new(None), stop: Notify::new() })
    }

    /// The running process, if any.
    pub fn process(&self) -> Option<Rc<Process>> {
        self.life.borrow().as_ref().map(|life| Rc::clone(&life.process))
    }

    /// SIGTERM.
    pub fn stop(&self) {
        self.world.note("receives SIGTERM: relay", self.number);
        self.stop.notify_one();
    }

    /// SIGHUP, with other limits. They never exceed those of the schedule.
    pub fn reload(&self) {
        let life = self.life.borrow();
        let Some(life) = life.as_ref() else { return };
        let plan = &self.world.plan;
        let some = |most: usize| self.world.below(most as u64) as usize + 1;
        let limits = Limits {
            batch_rows: some(plan.batch_rows),
            batch_bytes: some(plan.batch_bytes),
            flow_window: self.world.plan.flow_window,
            poll_interval: self.world.up_to(1_000) + Duration::from_millis(1),
            publish_timeout: PUBLISH_TIMEOUT / some(2) as u32,
            ..life.relay.settings.limits()
        };
        self.world.note("has new limits: relay", (self.number, limits.batch_rows, limits.batch_bytes));
        life.relay.settings.set_limits(limits);
    }

    /// Checks that the memory of a relay is bounded.
    pub fn check_memory(&self) {
        let life = self.life.borrow();
        let Some(life) = life.as_ref() else { return };
        let acknowledged = life.relay.memory.acknowledged.borrow();
        let (rows, plan) = (acknowledged.len(), &self.world.plan);
        // A batch for each lane, and a row for each held topic that was probed. If a row was acknowledged just before a
        // pause began or ended, the relay does not know whether it is settled until no row waits any more.
        let batches = (1 + 2 * plan.pauses as usize) * plan.lanes as usize;
        // A failover that loses settlements puts rows back before rows that were acknowledged since. A transaction that commits
        // late adds rows there, and so does an operator who puts rows back.
        let before = (self.world.count.settlements_lost.get() + self.world.count.late.get()) as usize;
        if rows > plan.batch_rows * batches + plan.topics + before {
            self.world.violate(|| format!("relay {} keeps {rows} acknowledged rows in memory", self.number));
        }
    }

    /// Runs the relay, and restarts it some time after it has ended.
    pub async fn keep_running(self: Rc<Self>) {
        loop {
            let (mut working, mut background) = self.start();
            tokio::select! {
                biased;
                () = self.end(&mut working) => {}
                panicked = a_panic(&mut background) => self.world.violate(|| panicked),
            }
            working.shutdown().await;
            background.shutdown().await;
            self.life.replace(None);
            self.world.pass(500).await;
        }
    }

    /// Waits until the process is dead or has stopped as requested.
    async fn end(&self, working: &mut JoinSet<()>) {
        let (process, relay) = {
            let life = self.life.borrow();
            let life = life.as_ref().unwrap();
            (Rc::clone(&life.process), Rc::clone(&life.relay))
        };
        tokio::select! {
            biased;
            () = process.died.notified() => return,
            panicked = a_panic(working) => return self.world.violate(|| panicked),
            () = self.stop.notified() => relay.lanes.board.stop(),
        }
        tokio::select! {
            biased;
            () = process.died.notified() => {}
            () = async { while working.join_next().await.is_some() {} } => {
                self.world.note("has ended: relay", self.number);
            }
        }
    }

    fn start(&self) -> (JoinSet<()>, JoinSet<()>) {
        let (world, plan) = (&self.world, &self.world.plan);
        let process = Process::new(world, self.number);
        let limits = Limits {
            batch_rows: plan.batch_rows,
            batch_bytes: plan.batch_bytes,
            publish_timeout: PUBLISH_TIMEOUT,
            takeover_timeout: TAKEOVER,
            flow_window: self.world.plan.flow_window,
            flow_gap: plan.flow_gap,
            flow_records: FLOW_RECORDS,
            poll_interval: Duration::from_millis(if plan.relays < 3 { 40 } else { 250 }),
            // Longer than that of a relay, so that batches have several rows.
            look_every: Duration::from_millis(40),
            on_rejected: if plan.blocks_keys { OnRejected::BlockKey } else { OnRejected::DeadLetter },
            rejections_before_hold: if self.world.breaks(Sabotage::NeverHeld) {
                u32::MAX
            } else {
                plan.rejections_before_hold
            },
        };
        let publisher = SimCluster { broker: Rc::clone(&self.broker), process: Rc::clone(&process) };
        let topics = match plan.topics_by {
            TopicsBy::AggregateType => "{aggregate_type}".parse().unwrap(),
            TopicsBy::EventType => "{event_type}".parse().unwrap(),
            TopicsBy::Column => TopicRules {
                template: TopicTemplate::parse(TOPICS[0]).unwrap(),
                column: true,
                allow: Some("b, c*".parse().unwrap()),
            },
        };
        let marks = Rc::new(RefCell::new(Marks::with_gaps_max(self.world.plan.gaps_max)));
        let stats = Arc::new(Stats::new());
        let relay = Rc::new(Relay::new(publisher, topics, limits, marks, Arc::clone(&stats)));
        let wrong_marks = Rc::new(WrongMarks::new());
        let connection = || SimConnection::new(&self.server, &process, &wrong_marks);
        let (mut working, mut background) = (JoinSet::new(), JoinSet::new());
        for number in 1..=plan.workers {
            let work = worker::work(Rc::clone(&relay), number, connection(), world.fork());
            working.spawn_local(process.task(work));
        }
        let scout = Scout::new(Rc::clone(&relay), connection(), world.fork());
        working.spawn_local(process.task(scout.scout()));
        background.spawn_local(process.task(prober::keep_gate(Rc::clone(&relay), world.fork())));
        background.spawn_local(process.task(prober::watch_holds(Rc::clone(&relay), connection())));
        working.spawn_local(process.task(prober::keep_holds(Rc::clone(&relay), connection(), connection())));
        if plan.retention.is_some() {
            // The model has its own retention.
            let pace = Pace {
                interval: REAPS_EVERY,
                retention: Duration::ZERO,
                inbox_retention: Duration::ZERO,
                idempotency_retention: Duration::ZERO,
                batch_rows: 0,
            };
            let paces = watch::channel(pace).1;
            background.spawn_local(process.task(reaper::keep_reaping(connection(), paces, stats)));
        }
        world.note("starts: relay", self.number);
        add(&world.count.starts, 1);
        self.life.replace(Some(Life { process, relay }));
        (working, background)
    }
}

/// Waits until a task panics, which would end the process.
async fn a_panic(tasks: &mut JoinSet<()>) -> String {
    loop {
        match tasks.join_next().await {
            Some(Err(error)) if error.is_panic() => return format!("a task of a relay panicked: {error}"),
            Some(_) => {}
            None => std::future::pending().await,
        }
    }
}
