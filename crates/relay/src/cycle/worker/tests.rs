//! A worker with a scripted outbox and cluster.

use super::*;
use crate::fixture::{self, FakeCluster, FakeProducer, Row};
use crate::lanes::scout::SCOUT;
use crate::outbox::{SearchResult, Slice};
use crate::reason::{CLIENT_FAILED, CONFIGURATION};
use crate::{
    Claim, Coverage, Epoch, Event, Head, LANES, Limits, Marks, ReadEnd, ReadRequest, Search, ServerId,
    Settled, Settlement,
};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use tokio::task::LocalSet;
use tokio::time::{advance, timeout};

/// What a test scripts and counts.
#[derive(Default)]
struct World {
    claims: Cell<u32>,
    /// Whether `keep_alive` fails.
    loses_claims: Cell<bool>,
    /// How long a read takes.
    read_takes: Cell<Duration>,
    /// Whether each read reaches a limit.
    has_backlog: Cell<bool>,
    /// The id of the next row, if each read finds a new row of its first lane.
    arriving: Cell<Option<i64>>,
    /// When the claim was made, and each `keep_alive`.
    kept: RefCell<Vec<Instant>>,
}

impl World {
    fn row(&self, lane: Lane) -> Row {
        let Some(next) = self.arriving.get() else { return Row(1) };
        self.arriving.set(Some(next + LANES as i64));
        Row(next + lane.index() as i64)
    }
}

/// An outbox in which one row waits forever, or rows arrive.
struct OneRow(Rc<World>);

struct OneClaim {
    world: Rc<World>,
    lanes: Vec<Lane>,
}

impl Outbox for OneRow {
    type Event = Row;
    type Claim<'a> = OneClaim;

    async fn claim(&mut self, lanes: &[Lane], _: Option<&ReadRequest>) -> Result<OneClaim, PostgresFault> {
        self.0.claims.set(self.0.claims.get() + 1);
        // So that workers do not stay in step.
        sleep(Duration::from_millis(1 + u64::from(self.0.claims.get() * 7 % 5))).await;
        self.0.kept.borrow_mut().push(Instant::now());
        Ok(OneClaim { world: Rc::clone(&self.0), lanes: lanes.to_vec() })
    }
}

impl Claim for OneClaim {
    type Event = Row;

    fn lanes(&self) -> &[Lane] {
        &self.lanes
    }
    fn server(&self) -> ServerId {
        ServerId { connection: 1, started_us: 1, backend: 1 }
    }
    async fn read(&mut self, _: &ReadRequest) -> Result<(), PostgresFault> {
        Ok(())
    }
    async fn next_slice(&mut self, _: usize, _: usize, rows: &mut Vec<Row>) -> Result<Slice, PostgresFault> {
        sleep(self.world.read_takes.get()).await;
        rows.push(self.world.row(self.lanes[0]));
        let end = if self.world.has_backlog.get() { ReadEnd::Cut } else { ReadEnd::Complete };
        Ok(Slice { hold_version: 0, epoch: Epoch::from(0), end })
    }
    async fn head(&mut self, _: &ReadRequest) -> Result<Head<Row>, PostgresFault> {
        Ok(Head { hold_version: 0, epoch: Epoch::from(0), row: None, error: None })
    }
    async fn read_on(&mut self, _: &Search, rows: &mut Vec<Row>) -> Result<SearchResult, PostgresFault> {
        assert!(self.world.arriving.get().is_some(), "flows are off");
        let row = self.world.row(self.lanes[0]);
        let ids = vec![row.id()];
        rows.push(row);
        Ok(SearchResult { ids, ..SearchResult::default() })
    }
    async fn record_sent(&mut self, _: &[&Row]) -> Result<bool, PostgresFault> {
        assert!(self.world.arriving.get().is_some(), "flows are off");
        Ok(true)
    }
    async fn keep_alive(&mut self) -> Result<(), PostgresFault> {
        self.world.kept.borrow_mut().push(Instant::now());
        let lost = || PostgresFault {
            kind: FaultKind::Unavailable,
            doing: "testing",
            message: "the connection broke".to_owned(),
        };
        if self.world.loses_claims.get() { Err(lost()) } else { Ok(()) }
    }
    async fn settle(self, _: &Settlement<'_, Row>) -> Result<Settled, PostgresFault> {
        Ok(Settled::All)
    }
    async fn release(self) -> Result<(), PostgresFault> {
        Ok(())
    }
}

const PUBLISH_TIMEOUT: Duration = Duration::from_secs(600);
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(10);

fn relay() -> Rc<Relay<Rc<FakeCluster>>> {
    let limits =
        Limits { publish_timeout: PUBLISH_TIMEOUT, takeover_timeout: TAKEOVER_TIMEOUT, ..fixture::limits() };
    let template = "events.{aggregate_type}".parse().unwrap();
    let marks = Rc::new(RefCell::new(Marks::new()));
    let cluster = FakeCluster {
        opens: Cell::new(None),
        is_silent: true,
        judges: (Some(&CLIENT_FAILED), Duration::ZERO),
        ..FakeCluster::default()
    };
    let relay = Relay::new(Rc::new(cluster), template, limits, marks, Arc::new(Stats::new()));
    relay.kafka.gate.open();
    relay.lanes.board.add([Lane::new(0).unwrap()]);
    Rc::new(relay)
}

/// Runs a worker for this long.
async fn work_for(time: Duration, relay: &Rc<Relay<Rc<FakeCluster>>>, world: &Rc<World>) {
    let random = fastrand::Rng::with_seed(1);
    let working = work(Rc::clone(relay), 1, OneRow(Rc::clone(world)), random);
    assert!(timeout(time, working).await.is_err(), "the worker ended");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_claimed_before_a_session_is_open() {
    let world = Rc::new(World::default());
    let relay = relay();
    work_for(Duration::from_secs(60), &relay, &world).await;
    assert_eq!(world.claims.get(), 0);
    relay.kafka.publisher.opens.set(Some(Ok(())));
    work_for(Duration::from_secs(1), &relay, &world).await;
    assert_eq!(world.claims.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_cannot_be_opened_closes_the_gate_and_claims_nothing() {
    let world = Rc::new(World::default());
    let relay = relay();
    relay.kafka.publisher.opens.set(Some(Err(&CONFIGURATION)));
    work_for(Duration::from_secs(60), &relay, &world).await;
    assert_eq!(world.claims.get(), 0);
    assert_eq!(relay.kafka.gate.reason().unwrap().reason, "configuration");
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_runs_out_of_time_reports_the_last_error_of_the_kafka_client() {
    let world = Rc::new(World::default());
    let relay = relay();
    relay.kafka.publisher.opens.set(Some(Ok(())));
    work_for(PUBLISH_TIMEOUT + Duration::from_secs(60), &relay, &world).await;
    let failure = relay.kafka.gate.reason().unwrap();
    assert_eq!(failure.reason, "unknown", "{failure}");
    assert_eq!(
        failure.error,
        "Kafka did not acknowledge all records within the publish_timeout of 600s. Last error of the Kafka client: \
         no broker for 600s"
    );
}

/// `publish_timeout` is the time that Kafka has. PostgreSQL may read a batch from cold storage.
#[tokio::test(start_paused = true)]
async fn a_slow_read_takes_nothing_from_the_time_that_kafka_has() {
    let world = Rc::new(World::default());
    let relay = relay();
    relay.kafka.publisher.opens.set(Some(Ok(())));
    world.read_takes.set(PUBLISH_TIMEOUT - Duration::from_secs(60));
    work_for(PUBLISH_TIMEOUT + Duration::from_secs(60), &relay, &world).await;
    assert!(relay.kafka.gate.is_open(), "{:?}", relay.kafka.gate.reason());
}

/// A relay that was frozen finds the rows in its buffers, although the server has ended the claim meanwhile.
#[tokio::test(start_paused = true)]
async fn no_row_is_sent_if_the_claim_was_lost_before() {
    const NONE: Duration = Duration::ZERO;
    for (read_takes, lookup_takes, freezes_for) in [
        (TAKEOVER_TIMEOUT, NONE, NONE),
        (NONE, TAKEOVER_TIMEOUT, NONE),
        (NONE, TAKEOVER_TIMEOUT / 5, 2 * TAKEOVER_TIMEOUT),
    ] {
        let world = Rc::new(World::default());
        let relay = relay();
        relay.kafka.publisher.opens.set(Some(Ok(())));
        world.read_takes.set(read_takes);
        relay.kafka.publisher.lookup_takes.set(lookup_takes);
        world.loses_claims.set(true);
        // All that is due during a freeze is found after it, in any order.
        let freezing = async {
            sleep(Duration::from_secs(1)).await;
            advance(freezes_for).await;
        };
        tokio::join!(work_for(PUBLISH_TIMEOUT / 2, &relay, &world), freezing);
        assert!(world.claims.get() > 0);
        let waits = world.claims.get() == 1 && relay.stats.workers_busy.get() > 0;
        assert!(!waits, "a row was sent and waits: {read_takes:?} {lookup_takes:?} {freezes_for:?}");
    }
}

/// A claim waits for Kafka several times: for lookups and for reports. The server counts from the last statement.
#[tokio::test(start_paused = true)]
async fn a_claim_is_kept_alive_at_equal_intervals_however_often_it_waits() {
    let world = Rc::new(World::default());
    let relay = relay();
    relay.kafka.publisher.opens.set(Some(Ok(())));
    let lanes = relay.lanes.board.take().await.unwrap();
    let working = work(Rc::clone(&relay), 1, OneRow(Rc::clone(&world)), fastrand::Rng::with_seed(1));
    let minute = async {
        sleep(Duration::from_secs(1)).await;
        relay.lanes.board.give_back(&lanes, &[]);
        relay.lanes.board.add(lanes);
        sleep(Duration::from_secs(60)).await;
    };
    tokio::select! {
        () = working => unreachable!("the relay does not stop"),
        () = minute => {}
    }
    let kept = world.kept.borrow();
    let longest = kept.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    assert!(longest <= TAKEOVER_TIMEOUT / 3 + Duration::from_millis(2), "{longest:?} without a statement");
    assert_eq!((world.claims.get(), kept.len()), (1, 1 + 17));
}

/// Otherwise a row that was not acknowledged would be delayed by one worker after the other.
#[tokio::test(start_paused = true)]
async fn sessions_that_kafka_last_answered_before_it_stopped_answering_another_are_replaced() {
    let world = Rc::new(World::default());
    let relay = relay();
    relay.kafka.publisher.opens.set(Some(Ok(())));
    let idle = Session::new(FakeProducer::silent(), Rc::default());
    work_for(PUBLISH_TIMEOUT - Duration::from_secs(1), &relay, &world).await;
    let backoff = Backoff::new(RETRY_FIRST, RETRY_MOST, fastrand::Rng::with_seed(1));
    let worker = Worker { relay: &relay, number: 2, reloads: 0, backoff };
    assert!(!worker.is_outdated(&idle), "the other session may still be answered");
    relay.lanes.board.give_back(&[Lane::new(0).unwrap()], &[]);
    relay.lanes.board.add([Lane::new(0).unwrap()]);
    work_for(PUBLISH_TIMEOUT + Duration::from_secs(10), &relay, &world).await;
    assert!(worker.is_outdated(&idle));
    assert!(!worker.is_outdated(&Session::new(FakeProducer::silent(), Rc::default())));
}

/// The row is as large as a refused one, so it is judged at once, and judging fails.
#[tokio::test(start_paused = true)]
async fn rows_that_cannot_be_judged_are_claimed_again_with_backoff() {
    let world = Rc::new(World::default());
    let relay = relay();
    relay.kafka.publisher.opens.set(Some(Ok(())));
    relay.memory.streaks.refused("events.order", uuid::Uuid::from_u128(9), Some(1));
    work_for(Duration::from_secs(60), &relay, &world).await;
    let claims = world.claims.get();
    println!("{claims} claims within a minute");
    assert!(claims > 20, "it is retried: {claims}");
    assert!(claims < 200, "about once a second: {claims}");
}

/// Without the claim, Postgres sends nothing more, and Kafka sends nothing before publish_timeout.
#[tokio::test(start_paused = true)]
async fn a_worker_that_lost_its_claim_feeds_the_watchdog_while_it_waits_for_kafka() {
    let world = Rc::new(World::default());
    let relay = relay();
    relay.kafka.publisher.opens.set(Some(Ok(())));
    world.loses_claims.set(true);
    // Separate tasks, so that the worker must wake up by itself and not because the scout does.
    let tasks = LocalSet::new();
    let worker = work(Rc::clone(&relay), 1, OneRow(Rc::clone(&world)), fastrand::Rng::with_seed(1));
    tasks.spawn_local(worker);
    let stats = Arc::clone(&relay.stats);
    tasks.spawn_local(async move {
        loop {
            stats.progress.scouted();
            sleep(Duration::from_secs(1)).await;
        }
    });
    let feeding = async {
        let begun = Instant::now();
        while begun.elapsed() < PUBLISH_TIMEOUT {
            let fed = timeout(TAKEOVER_TIMEOUT, relay.stats.progress.by_all()).await;
            assert!(fed.is_ok(), "no step after {:?}", begun.elapsed());
        }
    };
    tasks.run_until(feeding).await;
    assert_eq!(world.claims.get(), 1, "it waited for the reports of one batch all the time");
}

/// Other workers may have all lanes for as long as there is work.
#[tokio::test(start_paused = true)]
async fn an_outage_ends_for_a_worker_that_stays_idle() {
    let world = Rc::new(World::default());
    let relay = relay();
    relay.kafka.publisher.opens.set(Some(Ok(())));
    let lanes = relay.lanes.board.take().await.unwrap();
    relay.health.postgres_failed(1, Instant::now(), &fault(FaultKind::Unavailable));
    work_for(IDLE_AFTER * 10, &relay, &world).await;
    assert!(relay.health.postgres.lasts().is_some(), "no other worker shows that Postgres works");
    let settling = async {
        loop {
            sleep(Duration::from_secs(1)).await;
            relay.health.settled_at.set(Some(Instant::now()));
        }
    };
    tokio::select! {
        () = work_for(IDLE_AFTER * 2, &relay, &world) => {}
        () = settling => {}
    }
    assert_eq!(relay.health.postgres.lasts(), None);
    assert_eq!((world.claims.get(), lanes.len()), (0, 1), "another worker had the only lane with work");
}

/// Another session may keep a row locked that was acknowledged earlier. Each cycle then settles it again, while Kafka
/// acknowledges nothing.
#[tokio::test(start_paused = true)]
async fn rows_of_earlier_cycles_do_not_show_that_kafka_works() {
    let relay = relay();
    let failure = || Some(KafkaFailure::unknown("overdue"));
    after_cycle(&relay, &Cycle { sent: 2, recovered: 1, failure: failure(), ..Cycle::default() }, 0);
    assert!(relay.kafka.gate.is_open(), "one row was acknowledged now");
    after_cycle(&relay, &Cycle { sent: 1, recovered: 1, failure: failure(), ..Cycle::default() }, 0);
    assert!(!relay.kafka.gate.is_open());
}

/// For example, an old block has the id of the rejected row, so the new one is not recorded.
#[tokio::test(start_paused = true)]
async fn a_lane_of_which_no_row_could_be_recorded_waits_and_the_others_do_not() {
    let relay = relay();
    let backoff = Backoff::new(RETRY_FIRST, RETRY_MOST, fastrand::Rng::with_seed(1));
    let mut worker = Worker { relay: &relay, number: 1, reloads: 0, backoff };
    let lanes: Vec<Lane> = Lane::all().take(2).collect();
    relay.lanes.board.add(lanes.clone());
    assert_eq!(relay.lanes.board.take().await, Some(lanes.clone()));
    let read = Coverage { last_read: Some(7), first_open: Some(7), ..Coverage::unread(lanes[0]) };
    let coverage = vec![read, Coverage { cut: false, ..Coverage::unread(lanes[1]) }];
    let cycle = Cycle { coverage, rows: 1, locked_out: true, rejected: vec![lanes[0]], ..Cycle::default() };
    assert!(!worker.settled(&lanes, &cycle, Duration::ZERO), "other lanes may have work");
    let scanned = relay.lanes.board.lanes_to_scan();
    assert_eq!(lanes.iter().filter(|lane| scanned.contains(lane)).count(), 1, "{scanned:?}");
    advance(LOCKED_ASIDE).await;
    assert_eq!(relay.lanes.board.lanes_to_scan().len(), LANES);
}

/// Other lanes have traffic. The lock has stopped the worker that is busy with them, or another one that is idle now.
#[tokio::test(start_paused = true)]
async fn rows_that_stay_locked_are_reported_although_other_rows_are_recorded() {
    for idle_one in [false, true] {
        let (relay, world) = (relay(), Rc::new(World::default()));
        relay.kafka.publisher.opens.set(Some(Ok(())));
        let lanes = relay.lanes.board.take().await.unwrap();
        let backoff = Backoff::new(RETRY_FIRST, RETRY_MOST, fastrand::Rng::with_seed(1));
        let mut worker = Worker { relay: &relay, number: 2, reloads: 0, backoff };
        relay.memory.acknowledged.borrow_mut().keep([Row(1)].iter(), 1);
        if idle_one {
            relay.health.locks_failed(1, &"locked");
        }
        let mut settling = async |locks: bool| {
            for locked_out in [locks, false].into_iter().cycle() {
                worker.settled(&lanes, &Cycle { locked_out, ..Cycle::default() }, Duration::ZERO);
                sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::select! {
            () = settling(!idle_one) => unreachable!("it does not end"),
            () = work_for(IDLE_AFTER * 3, &relay, &world) => {}
        }
        assert!(relay.health.locks.lasts().is_some_and(|lasts| lasts > IDLE_AFTER * 2), "idle: {idle_one}");
        relay.memory.acknowledged.borrow_mut().settled([Row(1)].iter());
        tokio::select! {
            () = settling(false) => unreachable!("it does not end"),
            () = work_for(IDLE_AFTER * 3, &relay, &world) => {}
        }
        assert_eq!(relay.health.locks.lasts(), None);
    }
}

/// The hold of the row was deleted during its probe.
#[tokio::test(start_paused = true)]
async fn a_row_that_a_probe_has_in_flight_delays_only_its_lane() {
    let relay = relay();
    let backoff = Backoff::new(RETRY_FIRST, RETRY_MOST, fastrand::Rng::with_seed(1));
    let worker = Worker { relay: &relay, number: 1, reloads: 0, backoff };
    let probed = Row(1).lane();
    let other = Lane::all().find(|lane| *lane != probed).unwrap();
    relay.lanes.board.add([probed, other]);
    let mut lanes = relay.lanes.board.take().await.unwrap();
    lanes.extend(relay.lanes.board.take_rest());
    let before = relay.lanes.narrowing.before(&lanes);
    relay.memory.begin_probing(&Row(1));
    let waits = worker.not_settled(&lanes, &before, Instant::now(), &fault(FaultKind::Probed));
    assert!(!waits && relay.health.locks.lasts().is_none(), "no other session has locked a row");
    let mut next = relay.lanes.board.take().await.unwrap();
    next.extend(relay.lanes.board.take_rest());
    assert!(next.contains(&other) && !next.contains(&probed), "{next:?}");
    relay.lanes.board.give_back(&next, &[]);
    sleep(PROBED_ASIDE).await;
    relay.lanes.board.add([probed]);
    assert_eq!(relay.lanes.board.take().await.unwrap(), [probed]);
}

/// If each worker began a flow of its lanes after a backlog, all would keep them for as long as rows arrive.
#[tokio::test(start_paused = true)]
async fn after_a_backlog_one_worker_has_all_lanes_again() {
    let flow_window = Duration::from_millis(250);
    let limits = Limits { flow_window, batch_rows: 10_000, batch_bytes: 1_000_000, ..fixture::limits() };
    for workers in 2..=5 {
        let cluster = Rc::new(FakeCluster { answers: true, ..FakeCluster::default() });
        let marks = Rc::new(RefCell::new(Marks::new()));
        let template = "events.{aggregate_type}".parse().unwrap();
        let relay = Rc::new(Relay::new(cluster, template, limits, marks, Arc::new(Stats::new())));
        relay.kafka.gate.open();
        let arriving = Cell::new(Some(1_000 * LANES as i64));
        let world = Rc::new(World { arriving, has_backlog: Cell::new(true), ..World::default() });
        let scout = async |times: u32| {
            for _ in 0..times {
                relay.lanes.board.add(relay.lanes.board.lanes_to_scan());
                let highest = relay.lanes.marks.borrow().highest_read;
                relay.lanes.marks.borrow_mut().list_writers(highest, Vec::new());
                sleep(Duration::from_millis(1)).await;
            }
        };
        let working = LocalSet::new();
        for number in 1..=workers {
            let random = fastrand::Rng::with_seed(1);
            working.spawn_local(work(Rc::clone(&relay), number, OneRow(Rc::clone(&world)), random));
        }
        let judging = async {
            scout(100).await;
            world.has_backlog.set(false);
            scout(1_000).await;
            let before = world.claims.get();
            scout(1_000).await;
            assert!(world.claims.get() - before <= 4, "more than one flow at once, of {workers} workers");
        };
        working.run_until(judging).await;
    }
}

fn fault(kind: FaultKind) -> PostgresFault {
    PostgresFault { kind, doing: "testing", message: "gone".to_owned() }
}

/// A worker may wait for Kafka during a short outage of Postgres, and notice only afterwards that its claim is lost.
#[tokio::test(start_paused = true)]
async fn a_claim_that_an_outage_ended_does_not_begin_another_outage() {
    let relay = relay();
    let fault = fault(FaultKind::Unavailable);
    let backoff = Backoff::new(RETRY_FIRST, RETRY_MOST, fastrand::Rng::with_seed(1));
    let worker = Worker { relay: &relay, number: 1, reloads: 0, backoff };
    let before = relay.lanes.narrowing.before(&[]);
    let begun = Instant::now();
    sleep(Duration::from_secs(1)).await;
    relay.health.postgres_failed(SCOUT, Instant::now(), &fault);
    relay.health.postgres_worked(SCOUT);
    assert!(worker.not_settled(&[], &before, begun, &fault), "the worker waits before its next claim");
    assert_eq!(relay.health.postgres.lasts(), None, "the claim began before the outage ended");
    worker.not_settled(&[], &before, Instant::now(), &fault);
    assert!(relay.health.postgres.lasts().is_some(), "the next claim failed as well");
}
