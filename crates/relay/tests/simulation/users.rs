//! The other users of the database: applications that write events, and operators.

use super::event::{Keys, SimEvent};
use super::kafka::broker::Broker;
use super::plan::{Sabotage, TopicsBy};
use super::postgres::server::{OpenTransaction, Server};
use super::postgres::{Change, Row, Scope};
use super::promises::Damage;
use super::world::{World, add};
use std::rc::Rc;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

/// The state that they share.
pub struct Users {
    pub world: Rc<World>,
    pub broker: Rc<Broker>,
    pub server: Rc<Server>,
    /// Writers of one key take turns before they insert the event.
    turns: [Mutex<()>; 6],
}

impl Users {
    pub fn new(world: &Rc<World>, broker: &Rc<Broker>, server: &Rc<Server>) -> Rc<Users> {
        let (world, broker, server) = (Rc::clone(world), Rc::clone(broker), Rc::clone(server));
        Rc::new(Users { world, broker, server, turns: Default::default() })
    }

    /// Starts all of them.
    pub fn start(self: &Rc<Self>) -> JoinSet<()> {
        let plan = self.world.plan;
        let mut tasks = JoinSet::new();
        for _ in 0..plan.writers {
            let users = Rc::clone(self);
            tasks.spawn_local(async move {
                for _ in 0..plan.transactions {
                    users.world.pass(2 * users.pause_ms()).await;
                    users.write().await;
                }
            });
        }
        type Act = fn(Rc<Users>) -> std::pin::Pin<Box<dyn Future<Output = ()>>>;
        let acts: [(u32, Act); 6] = [
            (plan.row_locks, |users| Box::pin(async move { users.lock_a_row().await })),
            (plan.put_backs, |users| Box::pin(async move { users.put_back().await })),
            (plan.holds_by_hand, |users| Box::pin(async move { users.hold_a_topic().await })),
            (plan.requeues, |users| Box::pin(async move { users.requeue().await })),
            (plan.pauses, |users| Box::pin(async move { users.pause().await })),
            (plan.hold_locks, |users| Box::pin(async move { users.lock_holds().await })),
        ];
        for (times, act) in acts {
            for _ in 0..times {
                tasks.spawn_local(act(Rc::clone(self)));
            }
        }
        tasks
    }

    fn pause_ms(&self) -> u64 {
        self.world.plan.writing.as_millis() as u64 / self.world.plan.transactions
    }

    async fn some_time(&self) {
        self.world.pass(2 * self.world.plan.writing.as_millis() as u64).await;
    }

    fn event(&self, id: i64, identity: u32, topic: u8, key: u8) -> SimEvent {
        let by_id_alone = self.world.breaks(Sabotage::RecognizedByIdAlone);
        let event = SimEvent::new(id, identity, topic, key, self.world.plan.lanes, by_id_alone);
        let by_type = self.world.breaks(Sabotage::KeysByTypeAlone);
        let keys = if by_type { Keys::PerType } else { Keys::AcrossTopics };
        match self.world.plan.topics_by {
            TopicsBy::AggregateType => event,
            TopicsBy::EventType => event.of_any_kind(keys, false),
            TopicsBy::Column => event.of_any_kind(keys, true),
        }
    }

    /// One business transaction. Its events have the same key and, if the aggregate type determines it, the same topic.
    async fn write(&self) {
        let (world, server, plan) = (&self.world, &self.server, &self.world.plan);
        let key = world.below(plan.keys) as u8;
        let _turn = self.turns[key as usize].lock().await;
        let mut topic = world.below(plan.topics as u64) as u8;
        let transaction = OpenTransaction::begin(server);
        let events = 1 + world.below(3) as usize;
        let mut drawn = Vec::new();
        if world.happens(plan.draws_early) {
            drawn.extend((0..events).map(|_| server.draw_id(transaction.name)));
            world.pass(2_000).await;
        }
        server.lock_table(transaction.name);
        for at in 0..events {
            if plan.topics_by != TopicsBy::AggregateType {
                topic = world.below(plan.topics as u64) as u8;
            }
            let id = drawn.get(at).copied().unwrap_or_else(|| server.draw_id(transaction.name));
            let (poisoned, unsendable) = (world.happens(plan.poison), world.happens(plan.unsendable));
            let identity = server.promises.identity(poisoned, unsendable);
            if poisoned {
                self.broker.poison(identity);
            }
            if world.happens(plan.unreadable) {
                let damage = if world.happens(500) { Damage::Unreadable } else { Damage::Unmovable };
                server.promises.damaged(identity, damage);
            }
            let mut event = self.event(id, identity, topic, key);
            if poisoned && world.happens(500) {
                event = event.too_large();
            }
            server.change(transaction.name, Change::Insert(event));
            world.pass(15).await;
        }
        if world.happens(plan.long_transaction) {
            world.pass(2_000).await;
        }
        if world.happens(plan.prepares) && server.prepare(transaction.name) {
            world.pass(1_500).await;
            return server.end_prepared(transaction.name, !world.happens(plan.rolls_back));
        }
        if !world.happens(plan.rolls_back) {
            server.commit(transaction.name, true);
        }
    }

    fn any(&self, rows: &[Row]) -> Option<SimEvent> {
        if rows.is_empty() {
            return None;
        }
        Some(rows[self.world.below(rows.len() as u64) as usize].event)
    }

    /// Another session locks a row with FOR UPDATE for some time.
    async fn lock_a_row(&self) {
        self.some_time().await;
        let Some(event) = self.any(&self.server.rows(|row| row.sent_at.is_none())) else { return };
        let transaction = OpenTransaction::begin(&self.server);
        if self.server.lock_rows(transaction.name, &[event.id], false).await.is_some() {
            self.world.note("is locked by another session: id", event.id);
            self.world.pass(2_500).await;
        }
    }

    /// An operator deletes a hold and leaves the transaction open for some time.
    async fn lock_holds(&self) {
        self.some_time().await;
        let transaction = OpenTransaction::begin(&self.server);
        if self.server.lock_holds(transaction.name).await.is_some() {
            self.world.note("the holds are locked by", transaction.name);
            self.world.pass(4_000).await;
        }
    }

    /// An operator puts back a sent row, so that it is published again: `sent_at = NULL`. Or `replay` puts back all sent rows
    /// of its key, and invalidates the marks.
    async fn put_back(&self) {
        self.some_time().await;
        let Some(event) = self.any(&self.server.rows(|row| row.sent_at.is_some())) else { return };
        // Not a random choice, which would change all schedules.
        let replays = event.id % 2 == 0;
        let is_chosen = |row: &Row| {
            let is_of_key = (row.event.topic, row.event.key) == (event.topic, event.key);
            row.sent_at.is_some() && (row.event.id == event.id || replays && is_of_key)
        };
        let ids: Vec<i64> = self.server.rows(is_chosen).iter().map(|row| row.event.id).collect();
        let transaction = OpenTransaction::begin(&self.server);
        self.server.lock_table(transaction.name);
        let Some(rows) = self.server.lock_rows(transaction.name, &ids, false).await else { return };
        if replays && self.server.lock_holds(transaction.name).await.is_none() {
            return;
        }
        self.world.pass(10).await;
        for row in rows.iter().filter(|row| row.sent_at.is_some()) {
            self.server.change(transaction.name, Change::PutBack(row.event));
        }
        if replays {
            self.server.change(transaction.name, Change::MarksInvalidated);
        }
        self.server.commit(transaction.name, true);
    }

    /// An operator holds a topic and releases it later.
    async fn hold_a_topic(&self) {
        self.some_time().await;
        let topic = self.world.below(self.world.plan.topics as u64) as u8;
        if self.server.held(Some(topic)).is_none() {
            self.server.commit_at_once(&[Change::Hold(topic, "by hand", None)], true);
        }
        self.world.pass(1_500).await;
        if self.server.held(Some(topic)).is_some() {
            // A relay may have a row of the topic in flight that another relay now reads.
            if self.world.plan.relays > 1 && self.server.is_leased(topic) {
                add(&self.world.count.released_in_probe, 1);
            }
            self.server.commit_at_once(&[Change::Release(topic)], true);
        }
    }

    /// An operator pauses something and resumes it later.
    async fn pause(&self) {
        self.some_time().await;
        let topic = self.world.below(self.world.plan.topics as u64) as u8;
        let key = self.world.below(self.world.plan.keys) as u8;
        let scope = match self.world.below(3) {
            0 => Scope::Everything,
            1 => Scope::Topic(topic),
            _ => Scope::Key(topic, key),
        };
        if !self.server.paused().contains(&scope) {
            self.server.commit_at_once(&[Change::Pause(scope)], true);
        }
        self.world.pass(3_000).await;
        if self.server.paused().contains(&scope) {
            self.server.commit_at_once(&[Change::Resume(scope)], true);
        }
    }

    /// Resumes everything at the end, because a failover may have lost a resume.
    pub fn resume_all(&self) {
        let resumed: Vec<Change> = self.server.paused().into_iter().map(Change::Resume).collect();
        self.server.commit_at_once(&resumed, true);
    }

    /// An operator fixes a row and unblocks its key.
    fn unblock(&self) {
        let Some(event) = self.server.blocked().first().copied() else { return };
        self.broker.repair_event(event.identity);
        self.server.promises.repaired(event.identity);
        self.server.commit_at_once(&[Change::Unblock(event)], true);
    }

    /// An operator fixes a dead letter and requeues it under the same identity.
    async fn requeue(&self) {
        self.some_time().await;
        let dead = self.server.dead();
        let Some(event) = dead.first() else { return self.unblock() };
        let _turn = self.turns[event.key as usize].lock().await;
        if !self.server.dead().contains(event) {
            return;
        }
        self.broker.repair_event(event.identity);
        self.server.promises.repaired(event.identity);
        let transaction = OpenTransaction::begin(&self.server);
        self.server.lock_table(transaction.name);
        let id = self.server.draw_id(transaction.name);
        self.world.pass(10).await;
        self.server.change(transaction.name, Change::Requeued(*event));
        self.server.change(transaction.name, Change::Insert(event.inserted_again(id)));
        self.server.commit(transaction.name, true);
    }
}
