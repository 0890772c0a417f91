//! The model of Postgres: rows with ids drawn before commit, snapshots, lane locks, lost answers.

use super::kafka::Broker;
use super::world::{Sabotage, World};
use outbox_relay::relay::event::{Event, Payload};
use outbox_relay::relay::failure::{Fault, FaultKind};
use outbox_relay::relay::lane::{LANES, Lane};
use outbox_relay::relay::outbox::{Claim, End, Outbox, Read, ServerId, Settled, Settlement, Slice};
use outbox_relay::relay::prober::{Due, Holds, Waiting, Witness};
use outbox_relay::relay::reason::REJECTS_EVERYTHING;
use outbox_relay::relay::scout::{Lookout, Sighting};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;
use uuid::Uuid;

/// After so long without a word from a relay the server ends its claim.
pub const TAKEOVER: Duration = Duration::from_secs(10);

/// One event as it was written.
#[derive(Clone, Debug)]
pub struct SimEvent {
    pub id: i64,
    pub event_id: Uuid,
    pub aggregate_type: String,
    pub key: String,
}

impl SimEvent {
    fn lane_of(key: &str) -> Lane {
        let hash = key.bytes().fold(7_u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        Lane::new((hash % LANES as u64) as i64).unwrap()
    }
}

impl Event for SimEvent {
    fn id(&self) -> i64 {
        self.id
    }
    fn event_id(&self) -> Uuid {
        self.event_id
    }
    fn lane(&self) -> Lane {
        SimEvent::lane_of(&self.key)
    }
    fn aggregate_type(&self) -> &[u8] {
        self.aggregate_type.as_bytes()
    }
    fn key(&self) -> &[u8] {
        self.key.as_bytes()
    }
    fn event_type(&self) -> &[u8] {
        b"Happened"
    }
    fn payload(&self) -> Payload<'_> {
        Payload::Tombstone
    }
    fn headers(&self) -> Option<&[u8]> {
        None
    }
    fn created_at_us(&self) -> i64 {
        0
    }
    fn size(&self) -> usize {
        100
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowState {
    Unsent,
    Sent,
    Dead,
}

struct Row {
    event: SimEvent,
    state: RowState,
}

/// The server.
pub struct Postgres {
    pub world: Rc<World>,
    broker: Rc<Broker>,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    next_id: i64,
    next_claim: u64,
    next_connection: u64,
    server_started: i64,
    /// Committed rows, by id.
    rows: BTreeMap<i64, Row>,
    /// Transactions that hold the outbox's lock, and have perhaps drawn an id.
    writers: BTreeSet<String>,
    lanes: HashMap<usize, u64>,
    claims: HashMap<u64, Instant>,
    holds: BTreeMap<String, Hold>,
    /// Keys that wait behind a row that was refused: topic, key.
    blocked: BTreeSet<(String, String)>,
    hold_version: i64,
    violations: Vec<String>,
}

struct Hold {
    probe_at: Instant,
    reason: String,
    /// The key of the row that met the failure.
    key: String,
}

impl State {
    /// Unsent rows whose keys are not blocked, by id.
    fn waiting(&self) -> impl Iterator<Item = &SimEvent> {
        self.rows
            .values()
            .filter(|row| row.state == RowState::Unsent)
            .map(|row| &row.event)
            .filter(|event| !self.blocked.contains(&(super::topic_of(event), event.key.clone())))
    }
}

impl Postgres {
    pub fn new(world: Rc<World>, broker: Rc<Broker>) -> Rc<Postgres> {
        let state = State { next_id: 1, server_started: 1, ..State::default() };
        Rc::new(Postgres { world, broker, state: RefCell::new(state) })
    }

    /// A writer's insert takes the lock, then draws an id.
    pub fn begin_insert(&self, writer: &str) -> i64 {
        let mut state = self.state.borrow_mut();
        state.writers.insert(writer.to_owned());
        state.next_id += 1;
        state.next_id - 1
    }

    /// PREPARE TRANSACTION gives the holder of the lock another name.
    pub fn prepare(&self, writer: &str, name: &str) {
        let mut state = self.state.borrow_mut();
        state.writers.remove(writer);
        state.writers.insert(name.to_owned());
    }

    /// The transaction ends; with events it has committed.
    pub fn end_insert(&self, writer: &str, events: Vec<SimEvent>) {
        let mut state = self.state.borrow_mut();
        state.writers.remove(writer);
        for event in events {
            self.world.note(|| format!("{writer} commits id {} of {}", event.id, event.key));
            state.rows.insert(event.id, Row { event, state: RowState::Unsent });
        }
    }

    /// Every connection breaks; the server remembers all it had committed.
    pub fn restart(&self) {
        let mut state = self.state.borrow_mut();
        state.server_started += 1;
        state.claims.clear();
        state.lanes.clear();
        self.world.note(|| "Postgres restarts".to_owned());
    }

    /// Every committed row is sent, or in the dead letters.
    pub fn is_settled(&self) -> bool {
        self.state.borrow().rows.values().all(|row| row.state != RowState::Unsent)
    }

    /// What is still open, for a failure's message.
    pub fn open(&self) -> Vec<i64> {
        let state = self.state.borrow();
        state.rows.values().filter(|row| row.state == RowState::Unsent).map(|row| row.event.id).collect()
    }

    /// Ids in the dead letters.
    pub fn dead(&self) -> Vec<Uuid> {
        let state = self.state.borrow();
        state.rows.values().filter(|row| row.state == RowState::Dead).map(|row| row.event.event_id).collect()
    }

    /// Promises that were seen broken on the way.
    pub fn violations(&self) -> Vec<String> {
        self.state.borrow().violations.clone()
    }

    fn pending(&self, lanes: &[Lane], lows: &[i64], hold_version: i64) -> Vec<SimEvent> {
        let state = self.state.borrow();
        let current = state.hold_version == hold_version || self.world.breaks(Sabotage::HoldsWithoutVersion);
        let mut found: Vec<(usize, SimEvent)> = Vec::new();
        for event in state.waiting() {
            let Some(place) = lanes.iter().position(|asked| *asked == event.lane()) else { continue };
            let above = event.id > if current { lows[place] } else { i64::MIN };
            if above && !state.holds.contains_key(&super::topic_of(event)) {
                found.push((place, event.clone()));
            }
        }
        found.sort_by_key(|(place, event)| (*place, event.id));
        found.into_iter().map(|(_, event)| event).collect()
    }

    /// The first unsent row of the key that this row belongs to.
    fn first_of_key_of(&self, id: i64) -> Vec<SimEvent> {
        let state = self.state.borrow();
        let Some(row) = state.rows.get(&id) else { return Vec::new() };
        let place = |event: &SimEvent| (super::topic_of(event), event.key.clone());
        state.waiting().find(|event| place(event) == place(&row.event)).cloned().into_iter().collect()
    }

    fn hold_version(&self) -> i64 {
        if self.world.breaks(Sabotage::HoldsWithoutVersion) { 0 } else { self.state.borrow().hold_version }
    }

    fn alive(&self, claim: u64) -> Result<(), Fault> {
        let mut state = self.state.borrow_mut();
        match state.claims.get_mut(&claim) {
            Some(heard) if heard.elapsed() < TAKEOVER => {
                *heard = Instant::now();
                Ok(())
            }
            _ => {
                drop(state);
                self.end_claim(claim);
                Err(gone())
            }
        }
    }

    fn end_claim(&self, claim: u64) {
        let mut state = self.state.borrow_mut();
        state.claims.remove(&claim);
        state.lanes.retain(|_, owner| *owner != claim);
    }
}

fn gone() -> Fault {
    Fault { kind: FaultKind::Unavailable, doing: "simulating", message: "the connection broke".to_owned() }
}

/// One connection of a relay.
pub struct SimConnection {
    postgres: Rc<Postgres>,
    relay: usize,
    connection: u64,
    server_started: i64,
}

impl SimConnection {
    pub fn new(postgres: Rc<Postgres>, relay: usize) -> SimConnection {
        SimConnection { postgres, relay, connection: 0, server_started: 0 }
    }

    /// What every statement goes through: it takes time, the relay may be frozen, the connection may break.
    async fn statement(&mut self) -> Result<(), Fault> {
        let postgres = Rc::clone(&self.postgres);
        postgres.world.pass(3).await;
        postgres.world.thawed(self.relay).await;
        let breaks = postgres.world.happens(postgres.world.faults.get().postgres_breaks);
        let mut state = postgres.state.borrow_mut();
        if breaks {
            self.connection = 0;
            return Err(gone());
        }
        if self.connection == 0 || self.server_started != state.server_started {
            let broken = self.connection != 0;
            state.next_connection += 1;
            self.connection = state.next_connection;
            self.server_started = state.server_started;
            if broken {
                return Err(gone());
            }
        }
        Ok(())
    }

    fn server(&self) -> ServerId {
        ServerId {
            connection: self.connection,
            started_us: self.server_started,
            backend: self.connection as i32,
        }
    }
}

impl Outbox for SimConnection {
    type Event = SimEvent;
    type Claim<'a> = SimClaim<'a>;

    async fn claim(&mut self, lanes: &[Lane]) -> Result<SimClaim<'_>, Fault> {
        let before = self.postgres.pending(lanes, &vec![i64::MIN; lanes.len()], 0);
        self.statement().await?;
        let mut owned = Vec::new();
        let claim = {
            let mut state = self.postgres.state.borrow_mut();
            let expired: Vec<u64> = state
                .claims
                .iter()
                .filter(|(_, at)| at.elapsed() >= TAKEOVER)
                .map(|(claim, _)| *claim)
                .collect();
            for claim in expired {
                state.claims.remove(&claim);
                state.lanes.retain(|_, owner| *owner != claim);
            }
            state.next_claim += 1;
            let claim = state.next_claim;
            for lane in lanes {
                let free = !state.lanes.contains_key(&lane.index());
                if free || self.postgres.world.breaks(Sabotage::NoLaneLock) {
                    state.lanes.insert(lane.index(), claim);
                    owned.push(*lane);
                }
            }
            state.claims.insert(claim, Instant::now());
            claim
        };
        let early = self.postgres.world.breaks(Sabotage::SnapshotOlderThanLock).then_some(before);
        Ok(SimClaim { server: self.server(), connection: self, claim, lanes: owned, snapshot: None, early })
    }
}

/// An open claim.
pub struct SimClaim<'a> {
    connection: &'a mut SimConnection,
    server: ServerId,
    claim: u64,
    lanes: Vec<Lane>,
    snapshot: Option<Snapshot>,
    early: Option<Vec<SimEvent>>,
}

struct Snapshot {
    rows: Vec<SimEvent>,
    hold_version: i64,
    limited: bool,
}

impl SimClaim<'_> {
    async fn statement(&mut self) -> Result<(), Fault> {
        self.connection.statement().await?;
        self.connection.postgres.alive(self.claim)
    }
}

impl Drop for SimClaim<'_> {
    fn drop(&mut self) {
        self.connection.postgres.end_claim(self.claim);
    }
}

impl Claim for SimClaim<'_> {
    type Event = SimEvent;

    fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    fn server(&self) -> ServerId {
        self.server
    }

    async fn read(&mut self, read: &Read) -> Result<(), Fault> {
        self.statement().await?;
        let postgres = &self.connection.postgres;
        let mut rows = match read.first_of_key_of {
            Some(id) => postgres.first_of_key_of(id),
            None => postgres.pending(&self.lanes, &read.lows, read.hold_version),
        };
        if let Some(early) = self.early.take() {
            rows = early.into_iter().filter(|row| self.lanes.contains(&row.lane())).collect();
        }
        if postgres.world.breaks(Sabotage::RowsSkipLocked) {
            rows.retain(|_| !postgres.world.happens(50));
        }
        let limited = rows.len() >= read.rows_max;
        rows.truncate(read.rows_max);
        rows.reverse();
        let hold_version = postgres.hold_version();
        self.snapshot = Some(Snapshot { rows, hold_version, limited });
        Ok(())
    }

    async fn next_slice(
        &mut self,
        rows_max: usize,
        bytes_max: usize,
        rows: &mut Vec<SimEvent>,
    ) -> Result<Slice, Fault> {
        self.statement().await?;
        let snapshot = self.snapshot.as_mut().unwrap();
        let (mut bytes, mut cut) = (0, false);
        for _ in 0..rows_max {
            let Some(row) = snapshot.rows.pop() else { break };
            cut |= bytes >= bytes_max && bytes > 0;
            if !cut {
                bytes += row.size();
                rows.push(row);
            }
        }
        let end = match (cut || (snapshot.rows.is_empty() && snapshot.limited), snapshot.rows.is_empty()) {
            (true, _) => End::Cut,
            (false, true) => End::Complete,
            (false, false) => End::More,
        };
        Ok(Slice { hold_version: snapshot.hold_version, end })
    }

    async fn keep_alive(&mut self) -> Result<(), Fault> {
        self.statement().await
    }

    async fn settle(mut self, settlement: &Settlement<'_, SimEvent>) -> Result<Settled, Fault> {
        self.statement().await?;
        let postgres = Rc::clone(&self.connection.postgres);
        let world = Rc::clone(&postgres.world);
        let locked = world.happens(world.faults.get().row_locked);
        if locked && !settlement.skip_locked {
            let message = "lock timeout".to_owned();
            return Err(Fault { kind: FaultKind::Contended, doing: "simulating", message });
        }
        let mut all = true;
        {
            let mut state = postgres.state.borrow_mut();
            for (place, event) in settlement.sent.iter().enumerate() {
                if locked && place == 0 {
                    all = false;
                    continue;
                }
                if !postgres.broker.has(event.event_id) {
                    state.violations.push(format!("id {} was marked and is not in Kafka", event.id));
                }
                world.note(|| format!("id {} is marked", event.id));
                state.rows.get_mut(&event.id).unwrap().state = RowState::Sent;
            }
            for verdict in &settlement.rejected {
                world.note(|| format!("id {} moves to the dead letters", verdict.row.id));
                state.rows.get_mut(&verdict.row.id).unwrap().state = RowState::Dead;
            }
            for verdict in &settlement.blocked {
                world.note(|| format!("id {} blocks its key", verdict.row.id));
                state.blocked.insert((super::topic_of(verdict.row), verdict.row.key.clone()));
                state.hold_version += 1;
            }
            for held in &settlement.held {
                let reason = held.why.reason.to_owned();
                let hold = Hold { probe_at: Instant::now(), reason, key: held.witness.key.clone() };
                if !state.holds.contains_key(held.topic) {
                    state.holds.insert(held.topic.to_owned(), hold);
                    state.hold_version += 1;
                    world.note(|| format!("{} is held: {}", held.topic, held.why.reason));
                }
            }
        }
        if world.happens(world.faults.get().commit_answer_lost) {
            self.connection.connection = 0;
            world.note(|| "an answer to COMMIT is lost".to_owned());
            return Err(gone());
        }
        Ok(Settled { all })
    }

    async fn release(mut self) -> Result<(), Fault> {
        self.statement().await
    }
}

impl Lookout for SimConnection {
    async fn look(&mut self, lanes: &[Lane], lows: &[i64], hold_version: i64) -> Result<Sighting, Fault> {
        self.statement().await?;
        let rows = self.postgres.pending(lanes, lows, hold_version);
        let mut first_unsent: Vec<(Lane, i64)> = Vec::new();
        for row in rows {
            if !first_unsent.iter().any(|(lane, _)| *lane == row.lane()) {
                first_unsent.push((row.lane(), row.id));
            }
        }
        Ok(Sighting { server: self.server(), first_unsent })
    }

    async fn writers(&mut self) -> Result<(ServerId, Vec<String>), Fault> {
        self.statement().await?;
        if self.postgres.world.breaks(Sabotage::BlindFence) {
            return Ok((self.server(), Vec::new()));
        }
        let writers = self.postgres.state.borrow().writers.iter().cloned().collect();
        Ok((self.server(), writers))
    }

    async fn backlog(&mut self, _: &[i64]) -> Result<i64, Fault> {
        Ok(0)
    }

    async fn oldest(&mut self) -> Result<Option<Duration>, Fault> {
        Ok(None)
    }
}

impl Holds for SimConnection {
    async fn count(&mut self) -> Result<Waiting, Fault> {
        self.statement().await?;
        let state = self.postgres.state.borrow();
        Ok(Waiting { topics: state.holds.len() as i64, keys: state.blocked.len() as i64 })
    }

    async fn held(&mut self) -> Result<Vec<(String, String)>, Fault> {
        Ok(Vec::new())
    }

    async fn due(&mut self) -> Result<Option<Due>, Fault> {
        self.statement().await?;
        let mut state = self.postgres.state.borrow_mut();
        let due = state.holds.iter_mut().find(|(_, hold)| hold.probe_at <= Instant::now());
        Ok(due.map(|(topic, hold)| {
            hold.probe_at = Instant::now() + Duration::from_secs(30);
            Due { topic: topic.clone(), reason: hold.reason.clone() }
        }))
    }

    async fn witness(&mut self, due: &Due) -> Result<Option<Witness>, Fault> {
        self.statement().await?;
        let state = self.postgres.state.borrow();
        let key = state.holds.get(&due.topic).map(|hold| hold.key.clone());
        let mut rows: Vec<&SimEvent> =
            state.waiting().filter(|event| super::topic_of(event) == due.topic).collect();
        let any = due.reason == REJECTS_EVERYTHING.word && !rows.is_empty();
        if any {
            let at = self.postgres.world.below(rows.len() as u64) as usize;
            rows.rotate_left(at);
        }
        let first = rows.iter().find(|event| !any && Some(&event.key) == key.as_ref()).or(rows.first());
        Ok(first.map(|event| Witness { lane: event.lane(), id: event.id }))
    }

    async fn lift(&mut self, topic: &str) -> Result<(), Fault> {
        self.statement().await?;
        let mut state = self.postgres.state.borrow_mut();
        if state.holds.remove(topic).is_some() {
            state.hold_version += 1;
        }
        Ok(())
    }

    async fn postpone(&mut self, topic: &str, _: Option<&str>, _: &str) -> Result<(), Fault> {
        self.again(topic).await
    }

    async fn again(&mut self, topic: &str) -> Result<(), Fault> {
        self.statement().await?;
        let at = Instant::now() + Duration::from_secs(1);
        if let Some(hold) = self.postgres.state.borrow_mut().holds.get_mut(topic) {
            hold.probe_at = at;
        }
        Ok(())
    }
}
