//! The judge of the promises. It knows what was written and what Kafka has stored, and detects a broken promise
//! immediately.

use super::event::SimEvent;
use super::plan::Plan;
use super::postgres::Scope;
use super::world::{World, add};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

/// The promises of the relay to its users.
pub struct Promises {
    world: Rc<World>,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    events: Vec<Known>,
    /// Identities in the order of their commits, for each topic and key.
    orders: BTreeMap<(u8, u8), Vec<u32>>,
    /// Counts pauses and reads in the order in which they happen.
    moment: u64,
    /// The scopes that are paused, and the moment when each pause began.
    pauses: Vec<(Scope, u64)>,
    /// The moment at which a relay, by its number, last read an event.
    reads: HashMap<(usize, u32), u64>,
}

#[derive(Clone, Copy, Default)]
struct Known {
    /// It is committed.
    committed: bool,
    /// When it was last committed.
    committed_at: Option<Instant>,
    /// It was committed, and a failover lost it.
    lost: bool,
    /// Kafka can never store it.
    is_bad: bool,
    /// It is refused before it is sent.
    unsendable: bool,
    /// How PostgreSQL's copy of its row is damaged.
    damage: Damage,
    dead: bool,
    topic: u8,
    /// The id of its row.
    id: i64,
    /// The id of its row when it became a dead letter. Later events of its key may be in flight, even if a failover has
    /// restored that row.
    died: Option<i64>,
    /// The number of times that Kafka has stored it, and when it did so last.
    stored: u32,
    stored_at: Option<Instant>,
    /// A relay has received an acknowledgement.
    acknowledged: bool,
    /// A broker has refused it when it was sent alone.
    refused_alone: bool,
    /// The number of times that Kafka must have stored it in the end.
    due: u32,
}

/// The damage of a row in PostgreSQL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Damage {
    #[default]
    None,
    /// It cannot be read.
    Unreadable,
    /// It cannot be moved to another table either.
    Unmovable,
}

/// The outcome of a schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub written: usize,
    pub duplicates: usize,
    pub dead: usize,
    /// Events that were committed and then lost by a failover.
    pub lost_by_failover: usize,
    pub interruptions: usize,
    pub settlements_lost: usize,
    /// The number of times that a topic was held because it was silent.
    pub stuck: usize,
    pub flowed: usize,
    pub recorded: usize,
    /// The time from the last fault until everything was settled.
    pub settled_after: Duration,
    /// The longest time from a commit until Kafka stored the event, in topics that were never away.
    pub slowest: Duration,
    /// The longest time from the moment when Kafka stored an event until it was settled.
    pub settled_late: Duration,
}

impl Promises {
    pub fn new(world: &Rc<World>) -> Rc<Promises> {
        Rc::new(Promises { world: Rc::clone(world), state: RefCell::default() })
    }

    /// The identity of a new event. A bad event can never be stored by Kafka, or is refused before it is sent.
    pub fn identity(&self, poisoned: bool, unsendable: bool) -> u32 {
        let mut state = self.state.borrow_mut();
        state.events.push(Known { is_bad: poisoned || unsendable, unsendable, ..Known::default() });
        state.events.len() as u32 - 1
    }

    /// Records that the row of this event is damaged.
    pub fn damaged(&self, identity: u32, damage: Damage) {
        let known = &mut self.state.borrow_mut().events[identity as usize];
        (known.damage, known.is_bad) = (damage, true);
    }

    /// The damage of this event's row.
    pub fn damage(&self, identity: u32) -> Damage {
        self.state.borrow().events[identity as usize].damage
    }

    /// Whether an event is refused before it is sent.
    pub fn is_unsendable(&self, identity: u32) -> bool {
        self.state.borrow().events[identity as usize].unsendable
    }

    /// A writer has committed the event. If it was committed before, this is a requeue, and its position is now here.
    pub fn committed(&self, event: &SimEvent) {
        let mut state = self.state.borrow_mut();
        let known = &mut state.events[event.identity as usize];
        (known.committed, known.lost, known.dead, known.due) = (true, false, false, known.due.max(1));
        (known.id, known.topic, known.committed_at) = (event.id, event.topic, Some(Instant::now()));
        let order = state.orders.entry((event.topic, event.key)).or_default();
        order.retain(|identity| *identity != event.identity);
        order.push(event.identity);
    }

    /// PostgreSQL has lost its last commits. Forgets all commits and dead letters. The ones that remain are reported
    /// again.
    pub fn failed_over(&self) {
        let mut state = self.state.borrow_mut();
        state.orders.clear();
        state.pauses.clear();
        for known in &mut state.events {
            known.lost |= known.committed;
            known.committed = false;
        }
    }

    /// This scope was paused.
    pub fn paused(&self, scope: Scope) {
        let mut state = self.state.borrow_mut();
        state.moment += 1;
        let moment = state.moment;
        state.pauses.push((scope, moment));
    }

    /// This scope was resumed.
    pub fn resumed(&self, scope: Scope) {
        self.state.borrow_mut().pauses.retain(|(paused, _)| *paused != scope);
    }

    /// A claim of this relay has read these events.
    pub fn read(&self, relay: usize, events: &[SimEvent]) {
        let mut state = self.state.borrow_mut();
        state.moment += 1;
        let moment = state.moment;
        state.reads.extend(events.iter().map(|event| ((relay, event.identity), moment)));
    }

    /// A relay sends an event. A paused event may be sent only if it was read before the pause.
    pub fn sent(&self, relay: usize, event: &SimEvent) {
        let state = self.state.borrow();
        let read = state.reads.get(&(relay, event.identity)).copied().unwrap_or(u64::MAX);
        let since = state.pauses.iter().find(|(scope, since)| scope.covers(event) && *since < read);
        if let Some((scope, _)) = since {
            self.world.violate(|| {
                format!("{event:?} was published although {scope:?} was paused before its claim")
            });
        }
    }

    /// Kafka has stored a record.
    pub fn stored(&self, event: &SimEvent) {
        let mut state = self.state.borrow_mut();
        let known = &mut state.events[event.identity as usize];
        known.stored += 1;
        known.stored_at = Some(Instant::now());
        if known.stored > 1 || known.lost {
            return;
        }
        if !known.committed {
            return self.world.violate(|| format!("{event:?} was published but is not committed"));
        }
        if known.topic != event.topic {
            let topic = known.topic;
            return self.world.violate(|| format!("{event:?} belongs to topic {topic}"));
        }
        let order = &state.orders[&(event.topic, event.key)];
        for earlier in order.iter().take_while(|identity| **identity != event.identity) {
            let known = &state.events[*earlier as usize];
            // A bad row may become a dead letter after the rows behind it were sent. If it blocks its key instead, they
            // wait. An unreadable row is alone in its batch, and the rows behind it wait until it has been moved.
            let is_rejected = (known.is_bad || known.refused_alone) && known.damage == Damage::None;
            let passed =
                known.dead || known.died == Some(known.id) || (is_rejected && !self.world.plan.blocks_keys);
            if known.stored == 0 && !passed {
                return self.world.violate(|| format!("{event:?} was published before event {earlier}"));
            }
        }
    }

    /// A topic that was never away has stored a record. Duplicates may be late.
    pub fn delivered(&self, event: &SimEvent) {
        let state = self.state.borrow();
        let known = &state.events[event.identity as usize];
        if known.stored > 1 {
            return;
        }
        let slowest = &self.world.count.slowest;
        slowest.set(known.committed_at.map_or(Duration::ZERO, |at| at.elapsed()).max(slowest.get()));
    }

    /// A relay has received an acknowledgement.
    pub fn acknowledged(&self, identity: u32) {
        self.state.borrow_mut().events[identity as usize].acknowledged = true;
    }

    /// A settlement recorded it as sent.
    pub fn settled(&self, event: &SimEvent) {
        let known = self.state.borrow().events[event.identity as usize];
        if !known.acknowledged || known.stored == 0 {
            self.world.violate(|| format!("{event:?} was settled without an acknowledgement"));
        }
        let latest = &self.world.count.settled_late;
        latest.set(known.stored_at.map_or(Duration::ZERO, |at| at.elapsed()).max(latest.get()));
    }

    /// It was moved to the dead letters.
    pub fn died(&self, event: &SimEvent) {
        let mut state = self.state.borrow_mut();
        let known = &mut state.events[event.identity as usize];
        (known.dead, known.died) = (true, Some(event.id));
        drop(state);
        self.rejected(event);
    }

    /// It was rejected.
    pub fn rejected(&self, event: &SimEvent) {
        let mut state = self.state.borrow_mut();
        let known = &mut state.events[event.identity as usize];
        if !known.is_bad && known.refused_alone {
            add(&self.world.count.valid_rejected, 1);
            known.is_bad = true;
        }
        if !known.is_bad {
            self.world.violate(|| format!("{event:?} was rejected although it is valid"));
        }
    }

    /// In the end, it is unsent, and only a later event blocks its key. That is correct only if an operator put the
    /// event back while its key was blocked.
    pub fn hidden(&self, event: &SimEvent) {
        if self.state.borrow().events[event.identity as usize].due <= 1 {
            self.world.violate(|| format!("{event:?} is hidden by the block of a later event"));
        }
    }

    /// A broker has refused it when it was sent alone, or it was refused before it was sent.
    pub fn refused_alone(&self, identity: u32) {
        self.state.borrow_mut().events[identity as usize].refused_alone = true;
    }

    /// It is still a dead letter after a crash.
    pub fn stays_dead(&self, event: &SimEvent) {
        self.state.borrow_mut().events[event.identity as usize].dead = true;
    }

    /// A dead letter was fixed.
    pub fn repaired(&self, identity: u32) {
        let known = &mut self.state.borrow_mut().events[identity as usize];
        (known.is_bad, known.unsendable, known.refused_alone) = (false, false, false);
        known.damage = Damage::None;
    }

    /// An operator wants the event to be sent again.
    pub fn put_back(&self, event: &SimEvent) {
        let mut state = self.state.borrow_mut();
        let known = &mut state.events[event.identity as usize];
        known.due = known.stored + 1;
        add(&self.world.count.put_back, 1);
    }

    /// Its row was deleted.
    pub fn reaped(&self, event: &SimEvent, unsent: bool) {
        if unsent {
            self.world.violate(|| format!("{event:?} was reaped before it was sent"));
        }
    }

    /// Judges the result when only waiting rows are left.
    pub fn judge(&self, waits: impl Fn(u32) -> bool) -> Outcome {
        let state = self.state.borrow();
        let plan = &self.world.plan;
        let mut outcome = Outcome {
            interruptions: self.world.count.interruptions.get() as usize,
            settlements_lost: self.world.count.settlements_lost.get() as usize,
            stuck: self.world.count.stuck.get() as usize,
            flowed: self.world.count.flowed.get() as usize,
            recorded: self.world.count.recorded.get() as usize,
            settled_after: self.world.count.settled_after.get(),
            slowest: self.world.count.slowest.get(),
            settled_late: self.world.count.settled_late.get(),
            ..Outcome::default()
        };
        for (identity, known) in state.events.iter().enumerate() {
            outcome.written += usize::from(known.committed);
            outcome.lost_by_failover += usize::from(known.lost);
            outcome.dead += usize::from(known.committed && known.dead);
            outcome.duplicates += (known.stored as usize).saturating_sub(1);
            if known.committed && !known.dead && known.stored == 0 && !waits(identity as u32) {
                self.world.violate(|| format!("event {identity} is lost"));
            }
            // If the confirmation of a settlement was lost, the settlement may be mistaken for the state before the row
            // was put back.
            let sent_again = known.stored == 0 || known.stored >= known.due || waits(identity as u32);
            if faultless(plan) && known.committed && !sent_again {
                self.world.violate(|| format!("event {identity} was put back but not sent again"));
            }
        }
        let put_back = self.world.count.put_back.get() as usize;
        let released_in_probe = self.world.count.released_in_probe.get() as usize;
        let bound = outcome.interruptions * plan.batch_rows * plan.workers
            + outcome.settlements_lost
            + put_back
            + released_in_probe;
        let valid_rejected = self.world.count.valid_rejected.get();
        let tolerated = plan.rejections_before_hold * self.world.count.starts.get() * plan.disasters;
        if valid_rejected > tolerated {
            self.world.violate(|| format!("{valid_rejected} valid events were rejected"));
        }
        if outcome.duplicates > bound {
            self.world.violate(|| format!("{} duplicates, at most {bound} are allowed", outcome.duplicates));
        }
        outcome
    }
}

fn faultless(plan: &Plan) -> bool {
    let settles = plan.commit_answer_lost == 0 && plan.row_locks == 0 && plan.hold_locks == 0;
    settles && plan.disasters == 0 && plan.postgres_breaks == 0
}

impl Outcome {
    /// Adds another outcome.
    pub fn add(&mut self, other: &Outcome) {
        self.written += other.written;
        self.duplicates += other.duplicates;
        self.dead += other.dead;
        self.lost_by_failover += other.lost_by_failover;
        self.interruptions += other.interruptions;
        self.settlements_lost += other.settlements_lost;
        self.stuck += other.stuck;
        self.flowed += other.flowed;
        self.recorded += other.recorded;
        self.settled_after = self.settled_after.max(other.settled_after);
        self.slowest = self.slowest.max(other.slowest);
        self.settled_late = self.settled_late.max(other.settled_late);
    }
}
