//! Probes of many topics, with scripted holds.

use super::*;
use crate::cycle::tests::relay_with;
use crate::fixture::{FakeCluster, FakeProducer, Row};
use crate::holds::flight::tests::Table;
use crate::holds::{ExampleRow, Pause, Waiting};
use crate::memory::{HoldsSeen, UNKNOWN_HOLDS};
use crate::reason::NO_ANSWER;
use crate::{Coverage, Event};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tokio::time::{advance, timeout};
use uuid::Uuid;

/// What the prober did with the holds.
#[derive(Default)]
struct Log {
    due: BTreeSet<String>,
    /// Due after a second, as in the database.
    soon: Vec<(Instant, String)>,
    released: BTreeSet<String>,
    postponed: BTreeSet<String>,
    /// Topics whose leases were renewed.
    renewed: BTreeSet<String>,
    /// How many topics each search for events covered.
    searched: Vec<usize>,
}

/// Held topics without events. The search for an event of the topic `events.slow`, or of an invalid name, times out.
#[derive(Clone, Default)]
struct Scripted(Rc<RefCell<Log>>);

impl Scripted {
    fn make_due_again(&self, topics: &[&str]) {
        self.0.borrow_mut().due.extend(topics.iter().map(|topic| (*topic).to_owned()));
    }
}

impl Holds for Scripted {
    /// A key is blocked.
    async fn count(&mut self) -> Result<Waiting, PostgresFault> {
        Ok(Waiting { keys: 1, hold_version: 4, ..Waiting::default() })
    }
    /// The row 1.
    async fn unsent(&mut self, ids: &[i64], _: &[Uuid]) -> Result<HashSet<i64>, PostgresFault> {
        Ok(ids.iter().copied().filter(|id| *id == 1).collect())
    }
    async fn pauses(&mut self) -> Result<Vec<Pause>, PostgresFault> {
        unreachable!("only the log names pauses")
    }
    async fn held(&mut self) -> Result<Vec<(String, String)>, PostgresFault> {
        unreachable!("only the log names topics")
    }
    async fn due(&mut self, most: usize) -> Result<Vec<Due>, PostgresFault> {
        let mut log = self.0.borrow_mut();
        let now_due: Vec<_> = log.soon.extract_if(.., |(at, _)| *at <= Instant::now()).collect();
        log.due.extend(now_due.into_iter().map(|(_, topic)| topic));
        let due = std::mem::take(&mut log.due);
        let mut due = due.into_iter();
        let taken: Vec<String> = due.by_ref().take(most).collect();
        log.due = due.collect();
        Ok(taken.into_iter().map(|topic| Due { topic, reason: "unknown-topic".to_owned() }).collect())
    }
    async fn examples(&mut self, due: &[Due]) -> Result<Vec<Option<ExampleRow>>, PostgresFault> {
        self.0.borrow_mut().searched.push(due.len());
        if due.iter().any(|due| ["events.slow", "not a topic"].contains(&due.topic.as_str())) {
            let message = "canceling statement due to statement timeout".to_owned();
            return Err(PostgresFault { kind: FaultKind::TimedOut, doing: "searching", message });
        }
        Ok(due.iter().map(|_| None).collect())
    }
    async fn release(&mut self, topics: &[&str]) -> Result<(), PostgresFault> {
        self.0.borrow_mut().released.extend(topics.iter().map(|topic| (*topic).to_owned()));
        Ok(())
    }
    async fn postpone(&mut self, failed: &[Failed<'_>]) -> Result<(), PostgresFault> {
        self.0.borrow_mut().postponed.extend(failed.iter().map(|failed| failed.topic.to_owned()));
        Ok(())
    }
    async fn retry_soon(&mut self, topics: &[&str]) -> Result<(), PostgresFault> {
        let at = Instant::now() + Duration::from_secs(1);
        self.0.borrow_mut().soon.extend(topics.iter().map(|topic| (at, (*topic).to_owned())));
        Ok(())
    }
    async fn renew_leases(&mut self, topics: &[&str]) -> Result<(), PostgresFault> {
        self.0.borrow_mut().renewed.extend(topics.iter().map(|topic| (*topic).to_owned()));
        Ok(())
    }
    async fn make_due(&mut self) -> Result<(), PostgresFault> {
        Ok(())
    }
}

/// A COMMIT took effect, but its answer was lost. Its rows stay acknowledged until the database shows them as sent.
#[tokio::test(start_paused = true)]
async fn a_hidden_row_that_is_settled_is_forgotten_although_a_key_stays_blocked() {
    let relay = relay_with(FakeCluster::default());
    {
        let mut acknowledged = relay.memory.acknowledged.borrow_mut();
        acknowledged.keep([Row(1), Row(2)].iter(), 3);
        let covered = [Row(1), Row(2)].map(|row| Coverage {
            lane: row.lane(),
            last_read: None,
            first_open: None,
            cut: false,
            used_share: false,
        });
        acknowledged.forget::<Row>(&covered, &[], HoldsSeen { hold_version: 4, nothing_held: false });
    }
    refresh(&relay, &mut Scripted::default(), &mut Reported::default()).await.unwrap();
    let acknowledged = relay.memory.acknowledged.borrow();
    assert!(acknowledged.contains(&Row(1)), "it waits");
    assert!(!acknowledged.contains(&Row(2)), "a replay of it would be ignored");
}

/// A relay that has published the row 1 of a held topic, which another session has locked, and its prober.
async fn published<'a>(
    relay: &'a Relay<Rc<FakeCluster>>,
    holds: &Scripted,
) -> Probes<'a, Rc<FakeCluster>, Scripted, Table> {
    relay.kafka.gate.open();
    relay.stats.held_topics.set(1);
    let mut probes = Probes::new(relay, holds.clone(), Table::new(&[1], &[]));
    let mut flight = Flight::new(FakeProducer { answers: Cell::new(true), ..FakeProducer::default() });
    let candidate = Candidate::new(
        Due { topic: "events.order".to_owned(), reason: "stuck".to_owned() },
        ExampleRow { lane: Row(1).lane(), id: 1, key: None },
        &[Some(0)],
    );
    let (outbox, found, lane_rests) = (&mut probes.outbox, &mut probes.found, &mut [None; LANES]);
    flight.publish(relay, outbox, vec![candidate], found, lane_rests).await.unwrap();
    assert!(found.works.is_empty() && found.fails.is_empty());
    probes.unfinished.push("events.order".to_owned());
    probes.keep_late(flight).await.unwrap();
    probes.conclude().await.unwrap();
    probes
}

fn order() -> BTreeSet<String> {
    BTreeSet::from(["events.order".to_owned()])
}

/// If the lease ended, another relay would publish the row again.
#[tokio::test(start_paused = true)]
async fn the_lease_of_a_topic_is_kept_until_its_acknowledged_row_is_recorded() {
    let (relay, holds) = (relay_with(FakeCluster::default()), Scripted::default());
    let mut probes = published(&relay, &holds).await;
    assert_eq!(std::mem::take(&mut holds.0.borrow_mut().renewed), order());
    rounds(&mut probes).await;
    {
        let log = holds.0.borrow();
        assert_eq!(log.renewed, order());
        assert!(log.soon.is_empty() && log.released.is_empty(), "{:?} {:?}", log.soon, log.released);
    }
    probes.outbox.free.insert(1);
    probes.round().await.unwrap();
    assert_eq!(holds.0.borrow().released, order());
    assert!(relay.memory.acknowledged.borrow().is_empty());
}

/// Otherwise, the next relay that starts would publish the row again.
#[tokio::test(start_paused = true)]
async fn an_acknowledged_row_is_recorded_when_the_relay_stops_while_kafka_is_unavailable() {
    let (relay, holds) = (relay_with(FakeCluster::default()), Scripted::default());
    let mut probes = published(&relay, &holds).await;
    relay.kafka.gate.close(NO_ANSWER.failure(""));
    probes.outbox.free.insert(1);
    probes.end().await.unwrap();
    assert_eq!(holds.0.borrow().released, order());
    assert!(relay.memory.acknowledged.borrow().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_lease_of_an_acknowledged_row_is_kept_while_kafka_is_unavailable() {
    let (relay, holds) = (relay_with(FakeCluster::default()), Scripted::default());
    let mut probes = published(&relay, &holds).await;
    relay.kafka.gate.close(NO_ANSWER.failure(""));
    holds.0.borrow_mut().renewed.clear();
    let outage = Availability::new("probes", "probes_failed");
    assert!(timeout(Duration::from_secs(60), probes.wait_for_kafka(&outage)).await.is_err(), "Kafka is away");
    assert_eq!(holds.0.borrow().renewed, order());
    probes.outbox.free.insert(1);
    assert!(timeout(Duration::from_secs(60), probes.wait_for_kafka(&outage)).await.is_err(), "Kafka is away");
    assert_eq!(holds.0.borrow().released, order());
}

/// The lease expired, and this relay leased the topic again just before Kafka became unavailable.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_renewed_by_a_search_for_due_topics_is_kept_too() {
    let (relay, holds) = (relay_with(FakeCluster::default()), Scripted::default());
    let mut probes = published(&relay, &holds).await;
    holds.make_due_again(&["events.order"]);
    relay.kafka.gate.close(NO_ANSWER.failure(""));
    probes.round().await.unwrap();
    assert!(holds.0.borrow().due.is_empty(), "it was leased");
    relay.kafka.gate.open();
    probes.round().await.unwrap();
    assert!(holds.0.borrow().soon.is_empty(), "another relay would publish the row again");
}

/// A trigger or a constraint may refuse a single row.
#[tokio::test(start_paused = true)]
async fn a_row_that_cannot_be_recorded_delays_no_other_topic() {
    let (relay, holds) = (relay_with(FakeCluster::default()), Scripted::default());
    let mut probes = published(&relay, &holds).await;
    probes.outbox = Table { fails: Some(1), ..Table::new(&[1, 100], &[1, 100]) };
    relay.memory.acknowledged.borrow_mut().keep([Row(100)].iter(), UNKNOWN_HOLDS);
    probes.unsettled.push(Unsettled { topic: "events.silent".to_owned(), row: Row(100), proves: true });
    holds.make_due_again(&["events.a"]);
    for _ in 0..6 {
        _ = probes.round().await;
        advance(HOLDS_EVERY).await;
    }
    let log = holds.0.borrow();
    assert_eq!(log.released, BTreeSet::from(["events.a", "events.silent"].map(str::to_owned)));
    assert!(log.soon.is_empty(), "the lease of the other row is kept");
}

/// A worker published the row before the topic was held.
#[tokio::test(start_paused = true)]
async fn a_hold_does_not_end_because_an_earlier_row_is_recorded() {
    let (relay, holds) = (relay_with(FakeCluster::default()), Scripted::default());
    relay.memory.acknowledged.borrow_mut().keep([Row(1)].iter(), UNKNOWN_HOLDS);
    let mut probes = published(&relay, &holds).await;
    rounds(&mut probes).await;
    assert!(holds.0.borrow().soon.is_empty(), "the lease is kept while the row is locked");
    probes.outbox.free.insert(1);
    probes.round().await.unwrap();
    let log = holds.0.borrow();
    assert!(log.released.is_empty() && log.soon.len() == 1, "{:?} {:?}", log.released, log.soon);
}

fn table() -> Table {
    Table::new(&[], &[])
}

/// A topic that is held, and whose events were deleted or belong to a blocked key, has no row to probe it with. The search walks
/// all rows that wait.
#[tokio::test(start_paused = true)]
async fn a_topic_without_events_does_not_end_the_probes_of_others() {
    let relay = relay_with(FakeCluster::default());
    let holds = Scripted::default();
    relay.kafka.gate.open();
    relay.stats.held_topics.set(3);
    holds.make_due_again(&["events.a", "events.b", "events.slow"]);
    let mut probes = Probes::new(&relay, holds.clone(), table());
    // The topics are due together again after a second.
    rounds(&mut probes).await;
    {
        let log = holds.0.borrow();
        assert_eq!(log.searched, [3, 1, 1, 1], "all together, then each alone");
        assert_eq!(log.released, BTreeSet::from(["events.a", "events.b"].map(str::to_owned)));
        assert_eq!(log.postponed, BTreeSet::from(["events.slow".to_owned()]));
    }

    // The search is not repeated at once.
    holds.make_due_again(&["events.c", "events.slow"]);
    rounds(&mut probes).await;
    assert_eq!(holds.0.borrow().searched, [3, 1, 1, 1, 1]);
    assert!(holds.0.borrow().released.contains("events.c"));
    advance(SLOW_FOR).await;
    holds.make_due_again(&["events.d", "events.slow"]);
    rounds(&mut probes).await;
    assert_eq!(holds.0.borrow().searched[5..], [2, 1, 1]);
    assert!(holds.0.borrow().released.contains("events.d"));
}

/// Rounds of 5 seconds.
async fn rounds<P: Publisher, O: Outbox>(probes: &mut Probes<'_, P, Scripted, O>) {
    for _ in 0..10 {
        probes.round().await.unwrap();
        advance(HOLDS_EVERY).await;
    }
}

/// They do not count as topics that were probed alone.
#[tokio::test(start_paused = true)]
async fn topics_that_are_due_meanwhile_do_not_bring_the_others_together_again() {
    let relay = relay_with(FakeCluster::default());
    let holds = Scripted::default();
    relay.kafka.gate.open();
    relay.stats.held_topics.set(6);
    holds.make_due_again(&["events.a", "events.b", "events.slow"]);
    let mut probes = Probes::new(&relay, holds.clone(), table());
    probes.round().await.unwrap();
    holds.make_due_again(&["events.x", "events.y", "events.z"]);
    rounds(&mut probes).await;
    assert_eq!(holds.0.borrow().searched, [3, 1, 1, 1, 1, 1, 1]);
}

/// No other topic may wait for it.
#[tokio::test(start_paused = true)]
async fn a_topic_of_an_invalid_name_whose_events_cannot_be_searched_delays_no_other() {
    let relay = relay_with(FakeCluster::default());
    let holds = Scripted::default();
    relay.kafka.gate.open();
    relay.stats.held_topics.set(2);
    holds.make_due_again(&["events.a", "not a topic"]);
    let mut probes = Probes::new(&relay, holds.clone(), table());
    rounds(&mut probes).await;
    assert_eq!(holds.0.borrow().released, BTreeSet::from(["events.a".to_owned()]));
    assert_eq!(holds.0.borrow().searched, [1, 1], "the invalid one once, and the other one");
}

#[tokio::test(start_paused = true)]
async fn many_missing_topics_are_compared_with_one_list() {
    let relay = relay_with(FakeCluster::default());
    let holds = Scripted::default();
    relay.kafka.gate.open();
    let topics: Vec<String> = (0..5_000).map(|number| format!("events.{number:04}")).collect();
    relay.stats.held_topics.set(5_000);
    let mut probes = Probes::new(&relay, holds.clone(), table());
    let producer = FakeProducer::listing(&["events.0007", "events.other"]);
    let (listed, looked_up) = producer.requests();
    probes.producer = Some(producer);
    holds.make_due_again(&named(&topics));
    probes.round().await.unwrap();
    assert_eq!((listed.get(), looked_up.get()), (1, 1), "lists and look-ups");
    assert_eq!(holds.0.borrow().postponed.len(), 4_999);
    assert_eq!(holds.0.borrow().released, BTreeSet::from(["events.0007".to_owned()]));

    // A release may be one of many, so the next round lists at once. After a round without a release, the next one waits.
    holds.make_due_again(&["events.0001"]);
    probes.round().await.unwrap();
    probes.round().await.unwrap();
    assert_eq!(listed.get(), 2);
    advance(LIST_EVERY).await;
    probes.round().await.unwrap();
    assert_eq!((listed.get(), looked_up.get()), (3, 1));
}

/// No held topic is probed between two lists.
#[tokio::test(start_paused = true)]
async fn a_list_that_takes_long_delays_the_next_one_for_30_s_at_most() {
    let relay = relay_with(FakeCluster::default());
    let holds = Scripted::default();
    relay.kafka.gate.open();
    relay.stats.held_topics.set(5_000);
    let mut probes = Probes::new(&relay, holds.clone(), table());
    let producer = FakeProducer { list_takes: Duration::from_secs(5), ..FakeProducer::listing(&[]) };
    let (listed, _) = producer.requests();
    probes.producer = Some(producer);
    for expected in [1, 2] {
        holds.make_due_again(&["events.0001"]);
        probes.round().await.unwrap();
        assert_eq!(listed.get(), expected);
        advance(LIST_LATEST).await;
    }
}
