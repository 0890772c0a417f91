//! The statements of the scout and the prober. Each is its own transaction.

use super::connection::SimConnection;
use super::tables::{Change, Row, Scope};
use crate::event::{TOPICS, topic_number};
use crate::plan::Sabotage;
use relay::failure::PostgresFault;
use relay::holds::{Counts, Pause};
use relay::holds::{Due, ExampleRow, Failed, Holds, LEASE, Waiting};
use relay::lanes::Lane;
use relay::lanes::marks::MarksSnapshot;
use relay::lanes::marks::Writer;
use relay::lanes::scout::Look;
use relay::lanes::scout::{HIDDEN_ROWS_MAX, Looked, Scan, ScoutQueries};
use relay::outbox::{Event, ServerId};
use relay::reason::REJECTS_EVERYTHING;
use std::collections::HashSet;
use std::time::Duration;
use uuid::Uuid;

impl ScoutQueries for SimConnection {
    async fn scan(
        &mut self,
        lanes: &[Lane],
        marks: &MarksSnapshot,
        rows_max: usize,
    ) -> Result<Scan, PostgresFault> {
        self.send_statement(false).await?;
        self.in_time(lanes.len()).await?;
        let server = &self.server;
        let (lows, epoch) = (&marks.lows, server.epoch());
        let valid = marks.epoch == epoch;
        let floor = server.floor(&marks.excepted);
        let low = |place: usize| if valid { lows[place].min(floor) } else { i64::MIN };
        let rows = server.pending(0, lanes, low);
        let mut first_unsent: Vec<(Lane, i64)> = Vec::new();
        for row in rows {
            if first_unsent.last().is_none_or(|(lane, _)| *lane != row.lane()) {
                first_unsent.push((row.lane(), row.id));
            }
        }
        let most = rows_max.saturating_mul(server.world.plan.hidden_rows_max) / HIDDEN_ROWS_MAX;
        let (mut hidden_to, mut newest_hidden) = (Vec::new(), None);
        let is_free = server.holds() == (0, 0) && server.paused().is_empty();
        for (place, lane) in lanes.iter().enumerate().filter(|_| !is_free) {
            let is_unsent =
                |row: &Row| row.sent_at.is_none() && row.event.lane() == *lane && row.event.id > low(place);
            let mut ids: Vec<i64> = server.rows(is_unsent).iter().map(|row| row.event.id).collect();
            ids.sort_unstable();
            let Some(end) = ids.get(most - 1) else { continue };
            if first_unsent.iter().all(|(its, id)| its != lane || id > end) {
                first_unsent.retain(|(its, _)| its != lane);
                hidden_to.push((*lane, *end));
                newest_hidden = newest_hidden.max(ids.last().copied());
            }
        }
        let is_sweep = lows.iter().all(|low| *low == i64::MIN) && lanes.len() < 64;
        for (lane, id) in first_unsent.iter().filter(|_| is_sweep) {
            self.wrong_marks.found(*lane, *id);
        }
        let server = self.server_id();
        self.receive_answer().await?;
        Ok(Scan { server, epoch, first_unsent, hidden_to, newest_hidden })
    }

    async fn writers(&mut self) -> Result<(ServerId, Vec<Writer>), PostgresFault> {
        self.send_statement(false).await?;
        let world = &self.server.world;
        if world.breaks(Sabotage::MarkRaisedByFence) {
            self.wrong_marks.fence_passed(self.server.fenced());
        }
        let mut writers = self.server.writers();
        if world.breaks(Sabotage::MarkLagsByTime) {
            // Each list names another transaction, so the fence passes at the next check, a tenth of a second later.
            writers = vec![Writer { name: format!("time/{}", world.below(1_000_000)), xid: None }];
        }
        let id = self.server_id();
        self.receive_answer().await?;
        Ok((id, writers))
    }

    async fn look(&mut self, look: &Look) -> Result<Looked, PostgresFault> {
        self.send_statement(false).await?;
        let server = &self.server;
        let is_new = |id: i64| look.above.is_none_or(|above| id > above) || look.gaps.contains(&id);
        let mut rows: Vec<(i64, Option<Lane>)> = server
            .rows(|row| is_new(row.event.id))
            .iter()
            .map(|row| (row.event.id, row.sent_at.is_none().then(|| row.event.lane())))
            .collect();
        rows.sort_unstable_by_key(|(id, _)| std::cmp::Reverse(*id));
        rows.truncate(Looked::ROWS_MAX);
        let (hold_version, epoch) = (server.hold_version(), server.epoch());
        let server = self.server_id();
        self.receive_answer().await?;
        Ok(Looked { server, hold_version, epoch, rows })
    }
}

impl SimConnection {
    /// How long a topic is reserved for the relay that probes it.
    fn lease(&self) -> Duration {
        if self.server.world.breaks(Sabotage::LeaseIgnored) { Duration::from_millis(1) } else { LEASE }
    }
}

impl Holds for SimConnection {
    async fn count(&mut self) -> Result<Waiting, PostgresFault> {
        self.send_statement(false).await?;
        let (topics, keys) = self.server.holds();
        let hold_version = self.server.hold_version();
        let mut paused = Counts::default();
        for scope in self.server.paused() {
            match scope {
                Scope::Everything => paused.everything += 1,
                Scope::Topic(_) => paused.topics += 1,
                Scope::Key(..) => paused.keys += 1,
            }
        }
        Ok(Waiting { topics: topics as i64, keys: keys as i64, paused, hold_version })
    }

    /// Only displayed to operators.
    async fn pauses(&mut self) -> Result<Vec<Pause>, PostgresFault> {
        Ok(Vec::new())
    }

    /// Only displayed to operators.
    async fn held(&mut self) -> Result<Vec<(String, String)>, PostgresFault> {
        Ok(Vec::new())
    }

    async fn unsent(&mut self, ids: &[i64], event_ids: &[Uuid]) -> Result<HashSet<i64>, PostgresFault> {
        self.send_statement(false).await?;
        let rows = ids.iter().zip(event_ids);
        let is_unsent = |(id, event_id): &(&i64, &Uuid)| {
            self.server.unsent(**id).is_some_and(|event| event.event_id() == **event_id)
        };
        let unsent = rows.filter(is_unsent).map(|(id, _)| *id).collect();
        self.receive_answer().await?;
        Ok(unsent)
    }

    async fn due(&mut self, most: usize) -> Result<Vec<Due>, PostgresFault> {
        self.send_statement(false).await?;
        let lease = self.lease();
        let due: Vec<_> = (0..most).map_while(|_| self.server.due(lease)).collect();
        self.receive_answer().await?;
        let due = due.into_iter().map(|(topic, reason)| Due {
            topic: TOPICS[topic as usize].to_owned(),
            reason: reason.to_owned(),
        });
        Ok(due.collect())
    }

    async fn examples(&mut self, due: &[Due]) -> Result<Vec<Option<ExampleRow>>, PostgresFault> {
        self.send_statement(false).await?;
        let example = |due: &Due| {
            let row = self.server.example(topic_number(&due.topic), due.reason == REJECTS_EVERYTHING.word)?;
            Some(ExampleRow { lane: row.lane(), id: row.id, key: Some(row.key().to_vec()) })
        };
        let examples = due.iter().map(example).collect();
        self.receive_answer().await?;
        Ok(examples)
    }

    async fn release(&mut self, topics: &[&str]) -> Result<(), PostgresFault> {
        self.send_statement(false).await?;
        let held =
            |topic: &&str| Some(topic_number(topic)).filter(|topic| self.server.held(Some(*topic)).is_some());
        let released: Vec<Change> = topics.iter().filter_map(held).map(Change::Release).collect();
        if !released.is_empty() {
            self.server.commit_at_once(&released, false);
        }
        self.receive_answer().await
    }

    async fn postpone(&mut self, failed: &[Failed<'_>]) -> Result<(), PostgresFault> {
        let topics: Vec<&str> = failed.iter().map(|failed| failed.topic).collect();
        self.retry_soon(&topics).await
    }

    async fn retry_soon(&mut self, topics: &[&str]) -> Result<(), PostgresFault> {
        self.send_statement(false).await?;
        for topic in topics {
            let time = self.server.world.up_to(3_000);
            self.server.postpone(topic_number(topic), time);
        }
        self.receive_answer().await
    }

    async fn renew_leases(&mut self, topics: &[&str]) -> Result<(), PostgresFault> {
        self.send_statement(false).await?;
        for topic in topics {
            self.server.renew_lease(topic_number(topic), self.lease());
        }
        self.receive_answer().await
    }

    /// Probes are postponed by a few seconds at most.
    async fn make_due(&mut self) -> Result<(), PostgresFault> {
        Ok(())
    }
}
