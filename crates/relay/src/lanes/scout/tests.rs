//! A scout with a scripted outbox.

use super::*;
use crate::fixture::{self, FakeCluster};
use crate::holds::prober::keep_gate;
use crate::reason::LEADER_MOVING;
use crate::{Limits, Marks, ServerId, Stats};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use tokio::time::advance;

const SERVER: ServerId = ServerId { connection: 1, started_us: 1, backend: 1 };

/// An empty outbox on a server that may be unavailable or refuse statements.
#[derive(Clone, Default)]
struct Server {
    fails: Rc<Cell<Option<FaultKind>>>,
    asked: Rc<Cell<u32>>,
    scans: Rc<Cell<u32>>,
    looks: Rc<Cell<u32>>,
    /// How long a look takes.
    look_takes: Rc<Cell<Duration>>,
    /// How long a sweep takes for each of its lanes, and how many lanes the last one had.
    sweep_takes: Rc<Cell<Duration>>,
    swept: Rc<Cell<usize>>,
    /// The lane whose rows up to this id are held. The next row is not.
    held: Rc<Cell<Option<(Lane, i64)>>>,
    /// A row that the next look finds.
    inserted: Rc<RefCell<Option<(i64, Lane)>>>,
}

impl Server {
    fn answer<T>(&self, answer: T) -> Result<T, PostgresFault> {
        self.asked.set(self.asked.get() + 1);
        match self.fails.get() {
            Some(kind) => Err(PostgresFault { kind, doing: "testing", message: "gone".to_owned() }),
            None => Ok(answer),
        }
    }
}

impl ScoutQueries for Server {
    async fn scan(
        &mut self,
        lanes: &[Lane],
        marks: &MarksSnapshot,
        rows_max: usize,
    ) -> Result<Scan, PostgresFault> {
        if lanes.len() <= SWEEP_LANES && marks.lows.iter().all(|low| *low == LOWEST) {
            self.swept.set(lanes.len());
            sleep(self.sweep_takes.get() * lanes.len() as u32).await;
        }
        self.scans.set(self.scans.get() + 1);
        let mut scan = Scan {
            server: SERVER,
            epoch: marks.epoch,
            first_unsent: Vec::new(),
            hidden_to: Vec::new(),
            newest_hidden: None,
        };
        if let Some((lane, to)) = self.held.get()
            && let Some(place) = lanes.iter().position(|its| *its == lane)
        {
            let low = marks.lows[place].max(0);
            let read = (to + 1 - low).min(rows_max as i64);
            sleep(Duration::from_micros(1) * read as u32).await;
            let of_lane = if low + read > to { &mut scan.first_unsent } else { &mut scan.hidden_to };
            of_lane.push((lane, low + read));
            scan.newest_hidden = (!scan.hidden_to.is_empty()).then_some(to);
        }
        self.answer(scan)
    }
    async fn writers(&mut self) -> Result<(ServerId, Vec<Writer>), PostgresFault> {
        // This transaction never ends, so the scout keeps asking.
        let writer = Writer { name: "3/1".to_owned(), xid: None };
        self.answer((SERVER, if self.held.get().is_some() { Vec::new() } else { vec![writer] }))
    }
    async fn look(&mut self, look: &Look) -> Result<Looked, PostgresFault> {
        self.looks.set(self.looks.get() + 1);
        sleep(self.look_takes.get()).await;
        let new = self.inserted.borrow_mut().take_if(|(id, _)| look.above.is_some_and(|above| *id > above));
        let rows = new.map(|(id, lane)| (id, Some(lane))).into_iter().collect();
        self.answer(Looked { server: SERVER, hold_version: 1, epoch: Epoch::NONE, rows })
    }
}

/// A relay that has read a row, and can reach Kafka.
fn relay(limits: Limits) -> Relay<Rc<FakeCluster>> {
    let template = "events.{aggregate_type}".parse().unwrap();
    let marks = Rc::new(RefCell::new(Marks::new()));
    marks.borrow_mut().note_server(SERVER);
    let generation = marks.borrow().generation;
    marks.borrow_mut().note_ids(generation, [7]);
    let relay = Relay::new(Rc::default(), template, limits, marks, Arc::new(Stats::new()));
    relay.kafka.gate.open();
    relay
}

/// A relay of which workers have every lane, so the scout asks Postgres only for the fence and sweeps.
async fn busy() -> Rc<Relay<Rc<FakeCluster>>> {
    let relay = relay(fixture::limits());
    relay.lanes.board.add(Lane::all());
    while !relay.lanes.board.all_taken() {
        relay.lanes.board.take().await.unwrap();
    }
    Rc::new(relay)
}

async fn scout_during(
    relay: &Rc<Relay<Rc<FakeCluster>>>,
    server: &Server,
    watching: impl Future<Output = ()>,
) {
    let scout = Scout::new(Rc::clone(relay), server.clone(), fastrand::Rng::with_seed(1));
    tokio::select! {
        () = scout.scout() => unreachable!("the scout ended"),
        () = watching => {}
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_does_not_end_while_there_is_nothing_to_ask_postgres() {
    let (relay, server) = (busy().await, Server::default());
    let watching = async {
        sleep(Duration::from_secs(1)).await;
        assert_eq!(relay.health.postgres.lasts(), None);
        server.fails.set(Some(FaultKind::Unavailable));
        let begun = Instant::now();
        sleep(Duration::from_secs(60)).await;
        let asked = server.asked.get();
        sleep(Duration::from_secs(60)).await;
        assert!(server.asked.get() > asked, "the scout still tries");
        let lasts = relay.health.postgres.lasts().unwrap();
        assert!(lasts + Duration::from_secs(1) > begun.elapsed(), "it ended in between: {lasts:?}");
        server.fails.set(None);
        sleep(Duration::from_secs(10)).await;
        assert_eq!(relay.health.postgres.lasts(), None);
    };
    scout_during(&relay, &server, watching).await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_scout_ends_when_its_fence_works_again() {
    let (relay, server) = (busy().await, Server::default());
    let watching = async {
        sleep(SWEEP_EVERY / 2).await;
        server.fails.set(Some(FaultKind::Unavailable));
        sleep(FENCE_EVERY * 2).await;
        assert!(relay.health.postgres.lasts().is_some());
        server.fails.set(None);
        sleep(SWEEP_EVERY / 4).await;
        assert_eq!(relay.health.postgres.lasts(), None, "before the next sweep");
    };
    scout_during(&relay, &server, watching).await;
}

/// The scout does nothing else during a sweep. While vacuum is held back, a sweep walks the entries of all sent rows.
#[tokio::test(start_paused = true)]
async fn slow_sweeps_cover_fewer_lanes() {
    let (relay, server) = (busy().await, Server::default());
    let watching = async {
        sleep(SWEEP_EVERY * 2).await;
        assert_eq!(server.swept.get(), SWEEP_LANES);
        server.sweep_takes.set(SWEEP_SLOW);
        sleep(Duration::from_secs(300)).await;
        assert_eq!(server.swept.get(), 2);
        server.sweep_takes.set(Duration::ZERO);
        sleep(Duration::from_secs(300)).await;
        assert_eq!(server.swept.get(), SWEEP_LANES);
    };
    scout_during(&relay, &server, watching).await;
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_a_scan_finds_empty_has_no_unreadable_row() {
    let (relay, server) = (Rc::new(relay(fixture::limits())), Server::default());
    let fault = PostgresFault { kind: FaultKind::Data, doing: "testing", message: String::new() };
    relay.lanes.narrowing.read_failed(&all()[..2], 1, &fault);
    assert!(!relay.lanes.narrowing.allows_all());
    scout_during(&relay, &server, sleep(SCAN_EVERY * 2)).await;
    assert!(relay.lanes.narrowing.allows_all());
}

#[tokio::test(start_paused = true)]
async fn looks_are_rare_while_they_are_slow_and_only_then() {
    let (relay, server) = (Rc::new(relay(fixture::limits())), Server::default());
    let looks_in_ten_seconds = async || {
        let before = server.looks.get();
        sleep(Duration::from_secs(10)).await;
        server.looks.get() - before
    };
    let watching = async {
        let usual = looks_in_ten_seconds().await;
        server.look_takes.set(Duration::from_secs(1));
        assert!((1..=10).contains(&looks_in_ten_seconds().await));
        server.look_takes.set(Duration::ZERO);
        sleep(Duration::from_secs(2)).await;
        let again = looks_in_ten_seconds().await;
        assert!(again * 2 > usual, "{again} after {usual}");
    };
    scout_during(&relay, &server, watching).await;
}

#[tokio::test(start_paused = true)]
async fn after_one_slow_look_the_next_one_is_not_delayed() {
    let relay = Rc::new(relay(Limits { poll_interval: Duration::from_millis(20), ..fixture::limits() }));
    let server = Server::default();
    let idle_worker = relay.lanes.board.take();
    let watching = async {
        sleep(Duration::from_secs(1)).await;
        for _ in 0..5 {
            let before = server.looks.get();
            server.look_takes.set(Duration::from_millis(46));
            while server.looks.get() == before {
                sleep(Duration::from_millis(1)).await;
            }
            server.look_takes.set(Duration::ZERO);
            sleep(Duration::from_millis(46 + 100)).await;
            assert!(server.looks.get() > before + 1);
            sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::select! {
        _ = idle_worker => unreachable!("there is no work"),
        () = scout_during(&relay, &server, watching) => {}
    }
}

#[tokio::test(start_paused = true)]
async fn with_a_long_poll_interval_it_is_slow_only_while_nothing_arrives() {
    let (relay, server) = (Rc::new(relay(limits(Duration::from_secs(1)))), Server::default());
    let during = async |count: &Cell<u32>, time| {
        let before = count.get();
        sleep(time).await;
        count.get() - before
    };
    let watching = async {
        sleep(ARRIVING_FOR + Duration::from_secs(2)).await;
        let looks = during(&server.looks, Duration::from_secs(2)).await;
        assert!(looks <= 3, "nothing arrives: {looks} looks");
        relay.lanes.board.lost.set(true);
        // It scans for one second after its next look.
        let scans = during(&server.scans, Duration::from_secs(3)).await;
        assert!(scans >= 20, "another relay publishes what arrives: {scans} scans");
        // A flow has found rows, without a look.
        relay.lanes.board.arrived_at.set(Some(Instant::now()));
        relay.lanes.board.doubt();
        sleep(POLL_LAST).await;
        let looks = during(&server.looks, Duration::from_secs(1)).await;
        assert!(looks >= 50, "rows arrive: {looks} looks");
        sleep(ARRIVING_FOR).await;
        relay.settings.set_limits(limits(Duration::from_secs(60)));
        sleep(Duration::from_secs(30)).await;
        relay.settings.set_limits(limits(OFTEN));
        relay.lanes.board.doubt(); // as the supervisor does
        let looks = during(&server.looks, Duration::from_secs(1)).await;
        assert!(looks >= 50, "reloaded: {looks} looks");
    };
    let idle_worker = relay.lanes.board.take();
    let watching = async {
        tokio::select! {
            _ = idle_worker => unreachable!("there is no work"),
            () = watching => {}
        }
    };
    scout_during(&relay, &server, watching).await;
}

#[tokio::test(start_paused = true)]
async fn a_scout_without_work_looks_and_rarely_scans() {
    for (poll_interval, looks, scans) in [(20, 480..=520, 15..=25), (100, 75..=85, 15..=25)] {
        let limits = Limits { poll_interval: Duration::from_millis(poll_interval), ..fixture::limits() };
        let (relay, server) = (Rc::new(relay(limits)), Server::default());
        // An idle worker.
        let idle = async { relay.lanes.board.take().await };
        let watching = async {
            tokio::select! {
                _ = idle => unreachable!("there is no work"),
                () = async {
                    sleep(Duration::from_secs(10)).await; // after that, nothing has arrived for long
                    server.looks.set(0);
                    server.scans.set(0);
                    sleep(Duration::from_secs(10)).await;
                } => {}
            }
        };
        scout_during(&relay, &server, watching).await;
        // Sweeps are scans, too.
        let sweeps = 5;
        let (looked, scanned) = (server.looks.get(), server.scans.get() - sweeps);
        assert!(scans.contains(&scanned), "{scanned} scans with poll_interval {poll_interval} ms");
        assert!(looks.contains(&looked), "{looked} looks with poll_interval {poll_interval} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn a_look_hands_the_lane_of_a_new_row_to_a_worker_without_a_scan() {
    let limits = Limits { poll_interval: Duration::from_millis(20), ..fixture::limits() };
    let (relay, server) = (Rc::new(relay(limits)), Server::default());
    relay.memory.nothing_held_at.set(Some(1));
    let lane = Lane::all().nth(9).unwrap();
    let watching = async {
        let taken = async { relay.lanes.board.take().await };
        let inserting = async {
            while server.looks.get() == 0 {
                sleep(Duration::from_millis(1)).await;
            }
            let scans = server.scans.get();
            server.inserted.replace(Some((8, lane)));
            scans
        };
        let (taken, scans) = tokio::join!(taken, inserting);
        assert_eq!((taken, server.scans.get()), (Some(vec![lane]), scans));
        // A worker has the lane, and another row arrives there.
        server.inserted.replace(Some((9, lane)));
        sleep(Duration::from_millis(50)).await;
        relay.lanes.board.give_back(&[lane], &[]);
        assert_eq!(relay.lanes.board.take().await, Some(vec![lane]), "again");
    };
    scout_during(&relay, &server, watching).await;
}

/// A flow of another worker saw the row, which is in a lane that no worker has.
#[tokio::test(start_paused = true)]
async fn a_look_hands_over_the_lane_of_a_row_that_only_a_flow_without_that_lane_has_seen() {
    let limits = Limits { poll_interval: Duration::from_millis(20), ..fixture::limits() };
    let (relay, server) = (Rc::new(relay(limits)), Server::default());
    relay.memory.nothing_held_at.set(Some(1));
    let lane = Lane::all().nth(9).unwrap();
    let watching = async {
        while server.looks.get() == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        let generation = relay.lanes.marks.borrow().generation;
        relay.lanes.marks.borrow_mut().note_seen(generation, &[8]);
        server.inserted.replace(Some((8, lane)));
        let taken = timeout(Duration::from_millis(100), relay.lanes.board.take()).await;
        assert_eq!(taken.ok().flatten(), Some(vec![lane]));
    };
    scout_during(&relay, &server, watching).await;
}

const EVERY: Duration = Duration::from_millis(20);
const OFTEN: Duration = Duration::from_millis(5);

fn limits(poll_interval: Duration) -> Limits {
    Limits { poll_interval, look_every: OFTEN, ..fixture::limits() }
}

/// Marks after these ids were read, with the fence at the first one.
fn marks(ids: &[i64]) -> Marks {
    let mut marks = Marks::new();
    marks.note_server(ServerId { connection: 1, started_us: 1, backend: 1 });
    let generation = marks.generation;
    marks.note_ids(generation, ids[..1].iter().copied());
    marks.list_writers(ids[0], Vec::new());
    marks.note_ids(generation, ids.iter().copied());
    marks
}

#[tokio::test(start_paused = true)]
async fn it_looks_for_what_is_unknown_before_an_empty_scan() {
    let (mut lookout, mut marks) = (Lookout::new(), marks(&[5, 8]));
    assert_eq!(lookout.next(&limits(EVERY)), None, "before the first scan");
    lookout.scans(&mut marks);
    assert_eq!(lookout.next(&limits(EVERY)), None, "during a scan");
    lookout.found_nothing(Epoch::from(3));
    let (look, every) = lookout.next(&limits(EVERY)).unwrap();
    assert_eq!((&look, every), (&Look { above: Some(8), gaps: vec![6, 7] }, OFTEN));
    assert!(!lookout.looked(&look, Epoch::from(3), &[]));
    assert!(lookout.looked(&look, Epoch::from(3), &[10, 9, 7]));
    assert_eq!(lookout.next(&limits(EVERY)).unwrap().0, Look { above: Some(10), gaps: vec![6] });
    assert!(lookout.looked(&look, Epoch::from(3), &[13]));
    assert_eq!(lookout.next(&limits(EVERY)).unwrap().0, Look { above: Some(13), gaps: vec![6, 11, 12] });
    advance(SCAN_EVERY).await;
    assert_eq!(lookout.next(&limits(EVERY)), None, "a scan finds what no look can find");
    lookout.scans(&mut marks);
    lookout.found_nothing(Epoch::from(3));
    assert_eq!(lookout.next(&limits(EVERY)).unwrap().0.above, Some(13), "the marks do not know it");
    assert!(!lookout.looked(&look, Epoch::from(4), &[14]), "a hold has ended");
    assert_eq!(lookout.next(&limits(EVERY)), None);
}

#[tokio::test(start_paused = true)]
async fn it_asks_for_the_highest_id_if_it_knows_none() {
    let mut lookout = Lookout::new();
    lookout.scans(&mut Marks::new());
    lookout.found_nothing(Epoch::from(0));
    let (look, _) = lookout.next(&limits(EVERY)).unwrap();
    assert_eq!(look, Look { above: None, gaps: Vec::new() });
    assert!(!lookout.looked(&look, Epoch::from(0), &[20, 19]), "they may have been sent long ago");
    assert_eq!(lookout.next(&limits(EVERY)).unwrap().0.above, Some(20));
}

/// Otherwise no look would find an event until its id has passed the old ones.
#[tokio::test]
async fn it_forgets_ids_that_may_be_issued_again() {
    let (mut lookout, mut marks) = (Lookout::new(), marks(&[8]));
    let mut known = |server: ServerId| {
        marks.note_server(server);
        lookout.scans(&mut marks);
        lookout.found_nothing(Epoch::from(0));
        lookout.next(&limits(EVERY)).unwrap().0.above
    };
    assert_eq!(known(SERVER), Some(8));
    assert_eq!(known(ServerId { started_us: 2, ..SERVER }), None);
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_postgres_like_for_kafka() {
    let second = Duration::from_secs(1);
    for (outage, drains) in [(second, true), (60 * second, false)] {
        let relay = Rc::new(relay(Limits { publish_timeout: 10 * second, ..fixture::limits() }));
        let server = Server::default();
        server.fails.set(Some(FaultKind::Unavailable));
        let (scout, begun) =
            (Scout::new(Rc::clone(&relay), server.clone(), fastrand::Rng::with_seed(1)), Instant::now());
        let ends = async {
            sleep(outage).await;
            server.fails.set(None);
            std::future::pending::<()>().await;
        };
        let drained = tokio::select! {
            drained = scout.drain() => drained,
            () = ends => unreachable!(),
        };
        assert_eq!(drained.is_ok(), drains, "after {outage:?}");
        assert!(drains || begun.elapsed() >= 10 * second, "it gave up after {:?}", begun.elapsed());
    }
}

/// A relay that drains does not try again, so it logs no outage.
#[tokio::test(start_paused = true)]
async fn a_drain_ends_at_a_refused_statement() {
    let relay = Rc::new(relay(fixture::limits()));
    let server = Server::default();
    server.fails.set(Some(FaultKind::Refused));
    let scout = Scout::new(Rc::clone(&relay), server, fastrand::Rng::with_seed(1));
    let Err(Undrained::Postgres(fault)) = scout.drain().await else { panic!("it ended without the fault") };
    assert_eq!(fault.kind, FaultKind::Refused);
    assert_eq!(relay.health.postgres.failed_for(), None);
}

/// Each batch times out, and each probe succeeds.
#[tokio::test(start_paused = true)]
async fn a_drain_ends_although_kafka_answers_probes() {
    let second = Duration::from_secs(1);
    let relay = Rc::new(relay(Limits { publish_timeout: 5 * second, ..fixture::limits() }));
    let scout = Scout::new(Rc::clone(&relay), Server::default(), fastrand::Rng::with_seed(1));
    relay.lanes.board.add(Lane::new(0));
    let publishing = async {
        let _lanes = relay.lanes.board.take().await;
        relay.stats.workers_busy.inc();
        loop {
            relay.kafka.gate.close(LEADER_MOVING.failure("nothing is acknowledged"));
            relay.kafka.gate.opened().await;
            sleep(4 * second).await;
        }
    };
    let undrained = tokio::select! {
        drained = scout.drain() => drained.unwrap_err(),
        () = publishing => unreachable!(),
        () = keep_gate(Rc::clone(&relay), fastrand::Rng::with_seed(1)) => unreachable!(),
        () = sleep(60 * second) => panic!("it has not ended"),
    };
    assert!(matches!(undrained, Undrained::Kafka(failure) if failure.reason == LEADER_MOVING.word));
}

/// Each scan also serves the other lanes, so none may read all held rows of one lane.
#[tokio::test(start_paused = true)]
async fn a_lane_with_millions_of_held_rows_does_not_delay_the_others() {
    let (relay, server) = (Rc::new(relay(fixture::limits())), Server::default());
    let (lane, held) = (Lane::new(9).unwrap(), 3_000_000);
    server.held.set(Some((lane, held)));
    let watching = async {
        let begun = Instant::now();
        while relay.lanes.board.lanes_to_scan().contains(&lane) {
            let scans = server.scans.get();
            sleep(Duration::from_secs(1)).await;
            assert!(server.scans.get() > scans, "a scan takes more than a second");
        }
        assert_eq!(relay.lanes.board.take().await, Some(vec![lane]), "its first row that is not held");
        assert!(relay.lanes.marks.borrow().may_claim(lane));
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    };
    scout_during(&relay, &server, watching).await;
}

/// A worker has a lane whose rows it can never read or record.
#[tokio::test(start_paused = true)]
async fn a_drain_ends_if_the_last_rows_stay_locked_or_unreadable() {
    let second = Duration::from_secs(1);
    for (unreadable, every, published, ends) in [
        (false, second, false, true),
        (true, 6 * second, false, true),
        (false, second, true, false),
        (true, 6 * second, true, false),
    ] {
        let relay = Rc::new(relay(Limits { publish_timeout: 10 * second, ..fixture::limits() }));
        let scout = Scout::new(Rc::clone(&relay), Server::default(), fastrand::Rng::with_seed(1));
        relay.lanes.board.add(Lane::new(0));
        let begun = Instant::now();
        let working = async {
            let _lanes = relay.lanes.board.take().await;
            loop {
                if unreadable {
                    relay.lanes.narrowing.outage.failed(0, &"damaged", "");
                } else {
                    relay.health.locks_failed(1, &"locked");
                }
                relay.stats.published.inc_by(published.into());
                sleep(every).await;
            }
        };
        let ended = tokio::select! {
            drained = scout.drain() => Some(drained.unwrap_err()),
            () = working => unreachable!(),
            () = sleep(60 * second) => None,
        };
        let stuck =
            matches!(&ended, Some(Undrained::Stuck(error)) if error == "damaged" || error == "locked");
        assert_eq!(stuck, ends, "unreadable {unreadable}, published {published}: {ended:?}");
        assert!(begun.elapsed() > 10 * second, "it gave up after {:?}", begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn it_looks_rarely_when_nothing_has_arrived_for_long() {
    let mut lookout = Lookout::new();
    let every = |lookout: &mut Lookout, poll_interval| {
        lookout.scans(&mut marks(&[5]));
        lookout.found_nothing(Epoch::from(0));
        lookout.next(&limits(poll_interval)).unwrap().1
    };
    assert_eq!(every(&mut lookout, EVERY), OFTEN);
    assert_eq!(every(&mut lookout, OFTEN / 5), OFTEN / 5);
    advance(ARRIVING_FOR).await;
    assert_eq!(every(&mut lookout, EVERY), EVERY);
    let hour = Duration::from_secs(3_600);
    assert_eq!(every(&mut lookout, hour), hour, "scans are as rare");
}

/// A look does not find rows that are committed late, except in the gaps that it knows.
#[tokio::test(start_paused = true)]
async fn it_scans_twice_a_second_while_rows_arrive_whatever_the_poll_interval() {
    let (mut lookout, hour) = (Lookout::new(), Duration::from_secs(3_600));
    lookout.scans(&mut marks(&[5]));
    lookout.found_nothing(Epoch::from(0));
    assert!(lookout.next(&limits(hour)).is_some());
    advance(SCAN_EVERY).await;
    assert_eq!(lookout.next(&limits(hour)), None);
}

#[tokio::test(start_paused = true)]
async fn it_only_scans_while_another_relay_publishes_or_rows_may_wait() {
    let (mut lookout, mut marks) = (Lookout::new(), marks(&[5]));
    let mut scanned = |lookout: &mut Lookout| {
        lookout.scans(&mut marks);
        lookout.found_nothing(Epoch::from(0));
        lookout.next(&limits(EVERY)).is_some()
    };
    assert!(scanned(&mut lookout));
    lookout.doubts();
    assert_eq!(lookout.next(&limits(EVERY)), None);
    assert!(scanned(&mut lookout));
    lookout.yields();
    assert!(!scanned(&mut lookout));
    advance(YIELDS_FOR).await;
    assert!(scanned(&mut lookout));
}

fn all() -> Vec<Lane> {
    Lane::all().collect()
}

#[test]
fn after_a_timeout_the_lanes_take_turns() {
    let mut scan_order = ScanOrder::new();
    assert_eq!(scan_order.next_lanes(all()).len(), LANES);
    assert!(scan_order.timed_out(&all()));
    let (first, second) = (scan_order.next_lanes(all()), scan_order.next_lanes(all()));
    assert_eq!((first.len(), second.len()), (32, 32));
    assert_eq!([first.clone(), second].concat(), all());
    assert_eq!(scan_order.next_lanes(all()), first, "and again from the first one");
}

#[test]
fn a_scan_that_timed_out_is_repeated_with_fewer_lanes() {
    let mut scan_order = ScanOrder::new();
    scan_order.timed_out(&all());
    let half = scan_order.next_lanes(all());
    assert!(scan_order.timed_out(&half));
    assert_eq!(scan_order.next_lanes(all()), half[..16]);
    while scan_order.timed_out(&all()[..scan_order.width.get()]) {}
    let one = scan_order.next_lanes(all());
    assert!(!scan_order.timed_out(&one));
    assert_ne!(scan_order.next_lanes(all()), one, "one slow lane does not delay the others");
}

#[test]
fn all_lanes_are_empty_when_each_was_empty_in_turn() {
    let mut scan_order = ScanOrder::new();
    assert!(scan_order.note_empty(&all()));
    assert!(!scan_order.note_empty(&all()[..32]));
    scan_order.forget_empty();
    assert!(!scan_order.note_empty(&all()[32..]));
    assert!(scan_order.note_empty(&all()[..32]));
}
