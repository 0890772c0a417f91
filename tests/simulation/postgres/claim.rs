//! The claim: lanes that a transaction has locked, and the read of their rows in one snapshot.

use super::connection::SimConnection;
use super::server::Server;
use super::tables::{Change, Row};
use crate::event::{SimEvent, topic_number};
use crate::plan::Sabotage;
use crate::promises::Damage;
use crate::world::add;
use outbox_relay::relay::event::Event;
use outbox_relay::relay::failure::{Fault, FaultKind};
use outbox_relay::relay::lane::Lane;
use outbox_relay::relay::outbox::{
    Claim, Found, Head, Outbox, ReadEnd, ReadRequest, Rows, Search, ServerId, Settled, Settlement, Slice,
};
use std::collections::HashSet;
use std::rc::Rc;
use tokio::time::Instant;

impl Outbox for SimConnection {
    type Event = SimEvent;
    type Claim<'a> = SimClaim<'a>;

    async fn claim(&mut self, lanes: &[Lane], promptly: Option<&ReadRequest>) -> Result<SimClaim<'_>, Fault> {
        let early = self
            .server
            .world
            .breaks(Sabotage::SnapshotOlderThanLock)
            .then(|| self.server.pending(0, lanes, |_| i64::MIN));
        self.send_statement(false).await?;
        let transaction = self.server.begin(Some(self.process.number));
        let owned = self.server.lock_lanes(transaction, lanes);
        let server = self.server_id();
        if !owned.is_empty() {
            self.server.world.note("relay claims lanes", (self.process.number, lane_numbers(&owned)));
        }
        let mut claim = SimClaim {
            connection: self,
            transaction,
            lanes: owned,
            server,
            snapshot: None,
            early,
            asked: 0,
            has_rows: false,
            ended: false,
        };
        if let Some(read) = promptly {
            // Two statements. Whatever others do in between, the snapshot is younger than the locks.
            claim.statement().await?;
            claim.take_snapshot(lanes, read);
            claim.asked = lanes.len();
        }
        claim.connection.receive_answer().await?;
        Ok(claim)
    }
}

fn lane_numbers(lanes: &[Lane]) -> Vec<i16> {
    lanes.iter().map(|lane| lane.number()).collect()
}

/// An open claim.
pub struct SimClaim<'a> {
    connection: &'a mut SimConnection,
    transaction: u64,
    lanes: Vec<Lane>,
    server: ServerId,
    snapshot: Option<Snapshot>,
    early: Option<Vec<SimEvent>>,
    /// The number of lanes that the read covers.
    asked: usize,
    has_rows: bool,
    ended: bool,
}

struct Snapshot {
    /// Rows that were not returned yet. The next one is last.
    rows: Vec<SimEvent>,
    hold_version: i64,
    basis: i64,
    limited: bool,
}

impl SimClaim<'_> {
    async fn statement(&mut self) -> Result<(), Fault> {
        self.connection.send_statement(true).await?;
        if self.connection.server.receives_statement(self.transaction) {
            Ok(())
        } else {
            Err(self.connection.breaks())
        }
    }

    /// Blocks the keys of all refused rows, regardless of the rows before them.
    fn block_at_once(&self) {
        let server = &self.connection.server;
        let (refused, blocked) = (self.connection.process.refused.take(), server.blocked());
        for row in server.rows(|row| row.sent_at.is_none() && !blocked.contains(&row.event)) {
            let is_refused = refused.iter().any(|event| event.identity == row.event.identity);
            if is_refused && self.lanes.contains(&row.event.lane()) {
                server.change(self.transaction, Change::Block(row.event));
            }
        }
    }

    /// What a read of these lanes sees now.
    fn take_snapshot(&mut self, lanes: &[Lane], read: &ReadRequest) {
        let server = Rc::clone(&self.connection.server);
        let wrong_marks = &self.connection.wrong_marks;
        server.reads(self.transaction);
        let (hold_version, basis) = (server.hold_version(), server.basis());
        wrong_marks.meet(server.life().1, basis);
        let valid = basis == read.basis;
        let low = |place: usize| {
            let low = if valid { read.lows[place] } else { i64::MIN };
            low.max(wrong_marks.low(lanes[place]))
        };
        let mut rows: Vec<SimEvent> = match &read.rows {
            Rows::Pending => server.pending(self.transaction, lanes, low),
            Rows::FirstOfKeys(of) => of.iter().flat_map(|(_, id)| server.first_of_key_of(*id)).collect(),
            Rows::These(rows) => rows.iter().flat_map(|(_, id)| server.unsent(*id)).collect(),
        };
        let mut left = read.shares.clone();
        if let Some(early) = self.early.take().filter(|_| read.rows == Rows::Pending) {
            rows = early.into_iter().filter(|row| lanes.contains(&row.lane())).collect();
        }
        rows.retain(|row| {
            if read.rows != Rows::Pending {
                return true;
            }
            let place = lanes.iter().position(|lane| *lane == row.lane()).unwrap_or_default();
            let within = left[place] > 0;
            left[place] -= usize::from(within);
            within
        });
        wrong_marks.saw(&rows);
        if server.world.breaks(Sabotage::MarkRaisedBeforeCommit) {
            wrong_marks.read(server.fenced(), &rows[..rows.len().min(read.rows_max)]);
        }
        let limited = rows.len() >= read.rows_max;
        rows.truncate(read.rows_max);
        // If the read was sent together with the claim, removes the rows of lanes that another relay owns.
        rows.retain(|row| self.lanes.contains(&row.lane()));
        if !rows.is_empty() && !std::mem::replace(&mut self.has_rows, true) {
            server.world.rows_are_claimed();
        }
        server.promises.read(self.connection.process.number, &rows);
        rows.reverse();
        self.snapshot = Some(Snapshot { rows, hold_version, basis, limited });
    }
}

impl SimClaim<'_> {
    /// The new rows that the flow may publish. All ids go to `found`.
    fn new_rows(&self, search: &Search, found: &mut Found) -> Vec<SimEvent> {
        let server = &self.connection.server;
        let breaks = |sabotage| server.world.breaks(sabotage);
        let is_gap = |id: &i64| {
            let forgotten = breaks(Sabotage::FlowForgetsGaps)
                || breaks(Sabotage::FlowForgetsFencedGaps) && *id <= server.fenced();
            !forgotten && search.gaps.contains(id)
        };
        let mut rows = server.rows(|row| row.event.id > search.above || is_gap(&row.event.id));
        rows.sort_by_key(|row| row.event.id);
        let all: Vec<Lane> = Lane::all().collect();
        let lanes = if breaks(Sabotage::FlowReadsAllLanes) { &all } else { &self.lanes };
        let pending: HashSet<i64> =
            server.pending(self.transaction, lanes, |_| i64::MIN).iter().map(|event| event.id).collect();
        let (mut mine, mut bytes) = (Vec::new(), 0);
        found.cut = rows.len() >= search.rows_max;
        for row in rows.into_iter().take(search.rows_max) {
            if bytes >= search.bytes_max && bytes > 0 {
                found.cut = true;
                break;
            }
            found.ids.push(row.event.id);
            if pending.contains(&row.event.id) {
                bytes += row.event.size();
                mine.push(row.event);
            }
        }
        self.connection.wrong_marks.saw(&mine);
        mine
    }
}

/// Closing the socket ends the transaction. The server does not notice that the socket is closed if the relay cannot
/// reach it.
impl Drop for SimClaim<'_> {
    fn drop(&mut self) {
        let server = &self.connection.server;
        if !self.ended {
            add(&server.world.count.interruptions, 1);
        }
        if self.connection.process.is_silent() {
            server.lose_relay(self.transaction);
        } else {
            server.roll_back(self.transaction);
        }
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

    async fn read(&mut self, read: &ReadRequest) -> Result<(), Fault> {
        self.statement().await?;
        let lanes = self.lanes.clone();
        self.asked = lanes.len();
        self.take_snapshot(&lanes, read);
        Ok(())
    }

    async fn next_slice(
        &mut self,
        rows_max: usize,
        bytes_max: usize,
        rows: &mut Vec<SimEvent>,
    ) -> Result<Slice, Fault> {
        self.statement().await?;
        self.connection.in_time(self.asked).await?;
        let promises = Rc::clone(&self.connection.server.promises);
        let snapshot = self.snapshot.as_mut().unwrap();
        let (mut bytes, mut cut) = (0, false);
        for _ in 0..rows_max {
            let Some(row) = snapshot.rows.pop() else { break };
            let world = &self.connection.server.world;
            if promises.damage(row.identity) != Damage::None || world.fails(world.plan.read_errors) {
                return Err(self.connection.refuses(FaultKind::Data));
            }
            cut |= bytes >= bytes_max && bytes > 0;
            if !cut {
                bytes += row.size();
                rows.push(row);
            }
        }
        let (hold_version, basis) = (snapshot.hold_version, snapshot.basis);
        let exhausted = snapshot.rows.is_empty();
        let end = match (cut || (exhausted && snapshot.limited), exhausted) {
            (true, _) => ReadEnd::Cut,
            (false, true) => ReadEnd::Complete,
            (false, false) => ReadEnd::More,
        };
        self.connection.receive_answer().await?;
        Ok(Slice { hold_version, basis, end })
    }

    async fn head(&mut self, read: &ReadRequest) -> Result<Head<SimEvent>, Fault> {
        self.statement().await?;
        let lanes = self.lanes.clone();
        let first = ReadRequest { rows_max: 1, shares: vec![1; lanes.len()], ..read.clone() };
        self.take_snapshot(&lanes, &first);
        let Snapshot { rows, hold_version, basis, .. } = self.snapshot.take().unwrap();
        let server = Rc::clone(&self.connection.server);
        let row = rows.last().copied();
        self.statement().await?;
        let damaged = |row: &SimEvent| {
            server.promises.damage(row.identity) != Damage::None
                || server.world.breaks(Sabotage::UnreadableUnproven)
        };
        let refusal = row.filter(damaged).map(|_| "the row is damaged".to_owned());
        self.connection.receive_answer().await?;
        Ok(Head { hold_version, basis, row, refusal })
    }

    async fn read_on(&mut self, search: &Search, rows: &mut Vec<SimEvent>) -> Result<Found, Fault> {
        self.statement().await?;
        let server = Rc::clone(&self.connection.server);
        server.reads(self.transaction);
        let mut found =
            Found { hold_version: server.hold_version(), basis: server.basis(), ..Found::default() };
        let is_same = found.hold_version == search.hold_version && found.basis == search.basis;
        if server.world.breaks(Sabotage::FlowUnderAnyVersion) {
            (found.hold_version, found.basis) = (search.hold_version, search.basis);
        } else if !is_same {
            self.connection.receive_answer().await?;
            return Ok(found);
        }
        let mine = self.new_rows(search, &mut found);
        if !mine.is_empty() && !std::mem::replace(&mut self.has_rows, true) {
            server.world.rows_are_claimed();
        }
        add(&server.world.count.flowed, mine.len() as u32);
        let fails = server.world.fails(server.world.plan.read_errors);
        if fails || mine.iter().any(|row| server.promises.damage(row.identity) != Damage::None) {
            return Err(self.connection.refuses(FaultKind::Data));
        }
        server.promises.read(self.connection.process.number, &mine);
        rows.extend(mine);
        self.connection.receive_answer().await?;
        Ok(found)
    }

    async fn keep_alive(&mut self) -> Result<(), Fault> {
        self.statement().await?;
        self.connection.receive_answer().await
    }

    async fn settle(mut self, settlement: &Settlement<'_, SimEvent>) -> Result<Settled, Fault> {
        let server = Rc::clone(&self.connection.server);
        let late = server.world.breaks(Sabotage::SettledAfterTakeover);
        if let Err(fault) = self.statement().await {
            if late && !self.connection.process.is_silent() {
                settle_late(&server, settlement);
            }
            return Err(fault);
        }
        let settled = record(&server, self.transaction, settlement).await;
        if server.world.breaks(Sabotage::BlockedBehindOpenRow) {
            self.block_at_once();
        }
        let settled = match settled {
            Ok(settled) => settled,
            Err(FaultKind::Contended) => {
                let message = "lock timeout".to_owned();
                return Err(Fault { kind: FaultKind::Contended, doing: "simulating", message });
            }
            Err(kind) => return Err(self.connection.refuses(kind)),
        };
        self.statement().await?;
        server.commit(self.transaction, false);
        if server.world.fails(server.world.plan.commit_answer_lost) {
            server.world.note("the answer to COMMIT is lost, for relay", self.connection.process.number);
            return Err(self.connection.breaks());
        }
        self.connection.receive_answer().await?;
        // Another relay may send rows again that stayed locked.
        self.ended = settled == Settled::All;
        Ok(settled)
    }

    async fn release(mut self) -> Result<(), Fault> {
        self.statement().await?;
        self.connection.server.roll_back(self.transaction);
        self.connection.receive_answer().await?;
        self.ended = true;
        Ok(())
    }
}

/// Runs the statements of a settlement.
async fn record(
    server: &Server,
    transaction: u64,
    settlement: &Settlement<'_, SimEvent>,
) -> Result<Settled, FaultKind> {
    let locked = FaultKind::Contended;
    server.lock_table(transaction);
    let ids: Vec<i64> = settlement.sent.iter().map(|row| row.id).collect();
    let rows = server.lock_rows(transaction, &ids, settlement.skip_locked).await.ok_or(locked)?;
    let sent_ids: HashSet<i64> = rows.iter().map(|row| row.event.id).collect();
    let mut recorded = rows.len();
    for row in &rows {
        server.change(transaction, sent(server, row));
    }
    let ids: Vec<i64> = settlement.rejected.iter().map(|verdict| verdict.row.id).collect();
    let rows = server.lock_rows(transaction, &ids, true).await.ok_or(locked)?;
    recorded += rows.len();
    for row in &rows {
        if server.promises.damage(row.event.identity) == Damage::Unmovable {
            return Err(FaultKind::Data);
        }
        server.change(transaction, Change::DeadLetter(row.event));
    }
    if !settlement.blocked.is_empty() || !settlement.held.is_empty() {
        server.lock_holds(transaction).await.ok_or(locked)?;
    }
    for verdict in &settlement.blocked {
        // The same condition as in the statement: the row exists, is unsent, and does not block its key yet.
        let unsent = server.rows(|row| row.event.id == verdict.row.id && row.sent_at.is_none());
        if let (Some(row), false) = (unsent.first(), server.blocked().contains(verdict.row)) {
            server.change(transaction, Change::Block(row.event));
        }
    }
    for held in &settlement.held {
        let topic = topic_number(held.topic);
        if server.held(Some(topic)).is_none() {
            if held.why.reason == "stuck" {
                add(&server.world.count.stuck, 1);
            }
            server.change(transaction, Change::Hold(topic, held.why.reason, Some(held.witness.key)));
        }
    }
    Ok(match settlement.skip_locked {
        _ if recorded == settlement.sent.len() + settlement.rejected.len() => Settled::All,
        true => Settled::Only(sent_ids),
        false => Settled::Fewer,
    })
}

fn sent(server: &Server, row: &Row) -> Change {
    if server.world.plan.deletes_sent {
        Change::SentAndDeleted(row.event)
    } else {
        Change::Sent(row.event, Instant::now())
    }
}

/// The settlement of a claim that has ended, as a defective relay would send it over another connection.
fn settle_late(server: &Server, settlement: &Settlement<'_, SimEvent>) {
    let rows = server.rows(|row| settlement.sent.iter().any(|sent| sent.id == row.event.id));
    let changes: Vec<Change> = rows.iter().map(|row| sent(server, row)).collect();
    server.commit_at_once(&changes, false);
}
