//! The claim: lanes that a transaction has locked, and the read of their rows in one snapshot.

mod reads;
mod settlement;

use super::connection::SimConnection;
use crate::event::SimEvent;
use crate::plan::Sabotage;
use crate::postgres::tables::Row;
use crate::promises::Damage;
use crate::world::add;
use reads::Snapshot;
use relay::failure::{FaultKind, PostgresFault};
use relay::lanes::Lane;
use relay::outbox::{
    Claim, Event, Head, Outbox, ReadEnd, ReadRequest, Search, SearchResult, ServerId, Settled, Settlement,
    Slice, Wanted,
};
use settlement::{record, settle_late};
use std::rc::Rc;

impl Outbox for SimConnection {
    type Event = SimEvent;
    type Claim<'a> = SimClaim<'a>;

    async fn claim(
        &mut self,
        lanes: &[Lane],
        promptly: Option<&ReadRequest>,
    ) -> Result<SimClaim<'_>, PostgresFault> {
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

impl SimClaim<'_> {
    async fn statement(&mut self) -> Result<(), PostgresFault> {
        self.connection.send_statement(true).await?;
        if self.connection.server.receives_statement(self.transaction) {
            Ok(())
        } else {
            Err(self.connection.breaks())
        }
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

    async fn read(&mut self, read: &ReadRequest) -> Result<(), PostgresFault> {
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
    ) -> Result<Slice, PostgresFault> {
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
        let (hold_version, epoch) = (snapshot.hold_version, snapshot.epoch);
        let exhausted = snapshot.rows.is_empty();
        let end = match (cut || (exhausted && snapshot.limited), exhausted) {
            (true, _) => ReadEnd::Cut,
            (false, true) => ReadEnd::Complete,
            (false, false) => ReadEnd::More,
        };
        self.connection.receive_answer().await?;
        Ok(Slice { hold_version, epoch, end })
    }

    async fn head(&mut self, read: &ReadRequest) -> Result<Head<SimEvent>, PostgresFault> {
        self.statement().await?;
        let lanes = self.lanes.clone();
        let wanted = read.wanted.iter().map(|wanted| Wanted { share: 1, ..*wanted }).collect();
        let first = ReadRequest { rows_max: 1, wanted, ..read.clone() };
        self.take_snapshot(&lanes, &first);
        let Snapshot { rows, hold_version, epoch, .. } = self.snapshot.take().unwrap();
        let server = Rc::clone(&self.connection.server);
        let row = rows.last().copied();
        self.statement().await?;
        let damaged = |row: &SimEvent| {
            server.promises.damage(row.identity) != Damage::None
                || server.world.breaks(Sabotage::UnreadableUnproven)
        };
        let error = row.filter(damaged).map(|_| "the row is damaged".to_owned());
        self.connection.receive_answer().await?;
        Ok(Head { hold_version, epoch, row, error })
    }

    async fn read_on(
        &mut self,
        search: &Search,
        rows: &mut Vec<SimEvent>,
    ) -> Result<SearchResult, PostgresFault> {
        self.statement().await?;
        let server = Rc::clone(&self.connection.server);
        server.reads(self.transaction);
        let mut found = SearchResult {
            hold_version: server.hold_version(),
            epoch: server.epoch(),
            ..SearchResult::default()
        };
        if !server.are_open(&search.excepted) && !server.world.breaks(Sabotage::FlowIgnoresExcepted) {
            found.hold_version = -1;
        }
        let is_same = found.hold_version == search.hold_version && found.epoch == search.epoch;
        if server.world.breaks(Sabotage::FlowUnderAnyVersion) {
            (found.hold_version, found.epoch) = (search.hold_version, search.epoch);
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

    async fn record_sent(&mut self, sent: &[&SimEvent]) -> Result<bool, PostgresFault> {
        self.statement().await?;
        let server = Rc::clone(&self.connection.server);
        let rows = settlement::record_sent(&server, self.transaction, sent, false).await;
        let Some(rows) = rows else {
            let message = "lock timeout".to_owned();
            return Err(PostgresFault { kind: FaultKind::Contended, doing: "simulating", message });
        };
        if server.world.breaks(Sabotage::FlowRecordsNewestRow) {
            let unsent = |row: &Row| row.sent_at.is_none() && self.lanes.contains(&row.event.lane());
            if let Some(row) = server.rows(unsent).last() {
                server.change(self.transaction, settlement::sent(&server, row));
            }
        }
        add(&server.world.count.recorded, rows.len() as u32);
        self.connection.receive_answer().await?;
        Ok(rows.len() == sent.len())
    }

    async fn keep_alive(&mut self) -> Result<(), PostgresFault> {
        self.statement().await?;
        self.connection.receive_answer().await
    }

    async fn settle(mut self, settlement: &Settlement<'_, SimEvent>) -> Result<Settled, PostgresFault> {
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
                return Err(PostgresFault { kind: FaultKind::Contended, doing: "simulating", message });
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

    async fn release(mut self) -> Result<(), PostgresFault> {
        self.statement().await?;
        self.connection.server.roll_back(self.transaction);
        self.connection.receive_answer().await?;
        self.ended = true;
        Ok(())
    }
}
