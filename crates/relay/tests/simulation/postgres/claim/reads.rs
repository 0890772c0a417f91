//! What the reads of a claim see.

use super::SimClaim;
use crate::event::SimEvent;
use crate::plan::Sabotage;
use relay::lanes::Lane;
use relay::outbox::{Epoch, Event, ReadRequest, RowSelection, Search, SearchResult};
use std::collections::HashSet;
use std::rc::Rc;

pub(super) struct Snapshot {
    /// Rows that were not returned yet. The next one is last.
    pub(super) rows: Vec<SimEvent>,
    pub(super) hold_version: i64,
    pub(super) epoch: Epoch,
    pub(super) limited: bool,
}

impl SimClaim<'_> {
    /// What a read of these lanes sees now.
    pub(super) fn take_snapshot(&mut self, lanes: &[Lane], read: &ReadRequest) {
        let server = Rc::clone(&self.connection.server);
        let wrong_marks = &self.connection.wrong_marks;
        server.reads(self.transaction);
        let (hold_version, epoch) = (server.hold_version(), server.epoch());
        wrong_marks.meet(server.life().1, epoch);
        let valid = epoch == read.epoch;
        let floor = server.floor(&read.excepted);
        let low = |place: usize| {
            let low = if valid { read.wanted[place].low.min(floor) } else { i64::MIN };
            low.max(wrong_marks.low(lanes[place]))
        };
        let named = || read.wanted.iter().filter_map(|wanted| wanted.row);
        let mut rows: Vec<SimEvent> = match read.rows {
            RowSelection::Pending => server.pending(self.transaction, lanes, low),
            RowSelection::FirstOfKeys => named().flat_map(|id| server.first_of_key_of(id)).collect(),
            RowSelection::Named => named().flat_map(|id| server.unsent(id)).collect(),
        };
        let mut left: Vec<usize> = read.wanted.iter().map(|wanted| wanted.share).collect();
        if let Some(early) = self.early.take().filter(|_| read.rows == RowSelection::Pending) {
            rows = early.into_iter().filter(|row| lanes.contains(&row.lane())).collect();
        }
        rows.retain(|row| {
            if read.rows != RowSelection::Pending {
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
        self.snapshot = Some(Snapshot { rows, hold_version, epoch, limited });
    }

    /// The new rows that the flow may publish. All ids go to `found`.
    pub(super) fn new_rows(&self, search: &Search, found: &mut SearchResult) -> Vec<SimEvent> {
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
