//! The judge: knows what was written and what Kafka has, and sees a promise break at the moment it does.

use super::event::SimEvent;
use super::plan::{Disaster, Plan};
use super::postgres::Scope;
use super::world::{World, add};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Duration;

/// What the relay owes to its users.
pub struct Promises {
    world: Rc<World>,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    events: Vec<Known>,
    /// Identities in the order of their commits, for each topic and key.
    orders: BTreeMap<(u8, u8), Vec<u32>>,
    /// Counts pauses and reads, in the order in which they happen.
    moment: u64,
    /// What is paused, and since which moment.
    pauses: Vec<(Scope, u64)>,
    /// When a relay, by its number, has last read an event.
    reads: HashMap<(usize, u32), u64>,
}

#[derive(Clone, Copy, Default)]
struct Known {
    /// Its commit stands.
    committed: bool,
    /// It was committed, and a failover lost it.
    lost: bool,
    /// Kafka can never store it.
    guilty: bool,
    /// It is refused before it is sent.
    unsendable: bool,
    /// Postgres cannot read its row.
    damage: Damage,
    dead: bool,
    /// It was a dead letter once, and those behind it may be on their way. A failover may have lost that.
    died: bool,
    /// How many times Kafka has it.
    stored: u32,
    /// A relay was told so.
    acknowledged: bool,
    /// A broker has refused it when it came alone.
    refused_alone: bool,
    /// How many times Kafka has to have it in the end.
    due: u32,
}

/// What is wrong with a row in Postgres.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Damage {
    #[default]
    None,
    /// It cannot be read.
    Unreadable,
    /// It cannot be moved to another table either.
    Unmovable,
}

/// What came of a schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub written: usize,
    pub duplicates: usize,
    pub dead: usize,
    /// Events that a failover lost after they were committed.
    pub lost_by_failover: usize,
    pub interruptions: usize,
    pub settlements_lost: usize,
    /// How many times a topic was held since it was silent.
    pub stuck: usize,
    /// From the last fault until everything was settled.
    pub settled_after: Duration,
}

impl Promises {
    pub fn new(world: &Rc<World>) -> Rc<Promises> {
        Rc::new(Promises { world: Rc::clone(world), state: RefCell::default() })
    }

    /// The identity of a new event. Guilty is one that Kafka can never store, or that is not even sent.
    pub fn identity(&self, poisoned: bool, unsendable: bool) -> u32 {
        let mut state = self.state.borrow_mut();
        state.events.push(Known { guilty: poisoned || unsendable, unsendable, ..Known::default() });
        state.events.len() as u32 - 1
    }

    /// The row of this event is damaged.
    pub fn damaged(&self, identity: u32, damage: Damage) {
        let known = &mut self.state.borrow_mut().events[identity as usize];
        (known.damage, known.guilty) = (damage, true);
    }

    /// What is wrong with the row of this event.
    pub fn damage(&self, identity: u32) -> Damage {
        self.state.borrow().events[identity as usize].damage
    }

    /// Whether an event is refused before it is sent.
    pub fn is_unsendable(&self, identity: u32) -> bool {
        self.state.borrow().events[identity as usize].unsendable
    }

    /// A writer has committed it. If it was committed before, this is a requeue, and its place is here now.
    pub fn committed(&self, event: &SimEvent) {
        let mut state = self.state.borrow_mut();
        let known = &mut state.events[event.identity as usize];
        (known.committed, known.lost, known.dead, known.due) = (true, false, false, known.due.max(1));
        let order = state.orders.entry((event.topic, event.key)).or_default();
        order.retain(|identity| *identity != event.identity);
        order.push(event.identity);
    }

    /// Postgres has lost its last commits: forgets who wrote what. What stands is committed again, and who is dead
    /// said again.
    pub fn failed_over(&self) {
        let mut state = self.state.borrow_mut();
        state.orders.clear();
        state.pauses.clear();
        for known in &mut state.events {
            known.lost |= known.committed;
            known.committed = false;
        }
    }

    /// Somebody has paused this.
    pub fn paused(&self, scope: Scope) {
        let mut state = self.state.borrow_mut();
        state.moment += 1;
        let moment = state.moment;
        state.pauses.push((scope, moment));
    }

    /// Somebody has resumed it.
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

    /// A relay hands an event over to be published: what is paused only if it had been read before.
    pub fn handed_over(&self, relay: usize, event: &SimEvent) {
        let state = self.state.borrow();
        let read = state.reads.get(&(relay, event.identity)).copied().unwrap_or(u64::MAX);
        let since = state.pauses.iter().find(|(scope, since)| scope.covers(event) && *since < read);
        if let Some((scope, _)) = since {
            self.world.violate(|| format!("{event:?} was claimed after {scope:?} was paused, and published"));
        }
    }

    /// Kafka has stored a record.
    pub fn stored(&self, event: &SimEvent) {
        let mut state = self.state.borrow_mut();
        let known = &mut state.events[event.identity as usize];
        known.stored += 1;
        if known.stored > 1 || known.lost {
            return;
        }
        if !known.committed {
            return self.world.violate(|| format!("{event:?} was published, and nobody has committed it"));
        }
        let order = &state.orders[&(event.topic, event.key)];
        for earlier in order.iter().take_while(|identity| **identity != event.identity) {
            let known = &state.events[*earlier as usize];
            // A guilty row may become a dead letter after those behind it were sent; if it blocks its key, they wait.
            // One that cannot be read is alone in its batch: those behind it wait until it has moved.
            let found_guilty = (known.guilty || known.refused_alone) && known.damage == Damage::None;
            let passed = known.dead || known.died || (found_guilty && !self.world.plan.blocks_keys);
            if known.stored == 0 && !passed {
                return self.world.violate(|| format!("{event:?} was published before event {earlier}"));
            }
        }
    }

    /// Kafka has told a relay so.
    pub fn acknowledged(&self, identity: u32) {
        self.state.borrow_mut().events[identity as usize].acknowledged = true;
    }

    /// A settlement recorded it as sent.
    pub fn settled(&self, event: &SimEvent) {
        let known = self.state.borrow().events[event.identity as usize];
        if !known.acknowledged || known.stored == 0 {
            self.world.violate(|| format!("{event:?} was settled, and Kafka has not acknowledged it"));
        }
    }

    /// It moved to the dead letters.
    pub fn died(&self, event: &SimEvent) {
        let mut state = self.state.borrow_mut();
        let known = &mut state.events[event.identity as usize];
        (known.dead, known.died) = (true, true);
        drop(state);
        self.condemned(event);
    }

    /// It was found guilty.
    pub fn condemned(&self, event: &SimEvent) {
        let mut state = self.state.borrow_mut();
        let known = &mut state.events[event.identity as usize];
        if !known.guilty && known.refused_alone {
            add(&self.world.count.wronged, 1);
            known.guilty = true;
        }
        if !known.guilty {
            self.world.violate(|| format!("{event:?} was rejected, and nothing is wrong with it"));
        }
    }

    /// In the end it is unsent and its key is blocked, but only by a later event. That is right only for an event that an
    /// operator put back while its key was blocked.
    pub fn hidden(&self, event: &SimEvent) {
        if self.state.borrow().events[event.identity as usize].due <= 1 {
            self.world.violate(|| format!("{event:?} is hidden by the block of a later event"));
        }
    }

    /// A broker has refused it when it came alone.
    pub fn refused_alone(&self, identity: u32) {
        self.state.borrow_mut().events[identity as usize].refused_alone = true;
    }

    /// It is in the dead letters still, after a crash.
    pub fn stays_dead(&self, event: &SimEvent) {
        self.state.borrow_mut().events[event.identity as usize].dead = true;
    }

    /// What was wrong with a dead event is mended.
    pub fn mended(&self, identity: u32) {
        let known = &mut self.state.borrow_mut().events[identity as usize];
        (known.guilty, known.unsendable, known.refused_alone) = (false, false, false);
        (known.damage, known.died) = (Damage::None, false);
    }

    /// An operator wants it to be sent again.
    pub fn put_back(&self, event: &SimEvent) {
        let mut state = self.state.borrow_mut();
        let known = &mut state.events[event.identity as usize];
        known.due = known.stored + 1;
        add(&self.world.count.put_back, 1);
    }

    /// Its row is gone.
    pub fn reaped(&self, event: &SimEvent, unsent: bool) {
        if unsent {
            self.world.violate(|| format!("{event:?} was reaped before it was sent"));
        }
    }

    /// When nothing is left to do but for those that wait.
    pub fn judge(&self, waits: impl Fn(u32) -> bool) -> Outcome {
        let state = self.state.borrow();
        let plan = &self.world.plan;
        let mut outcome = Outcome {
            interruptions: self.world.count.interruptions.get() as usize,
            settlements_lost: self.world.count.settlements_lost.get() as usize,
            stuck: self.world.count.stuck.get() as usize,
            settled_after: self.world.count.settled_after.get(),
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
            // A settlement whose confirmation was lost may be taken for a row's state before it was put back.
            let sent_again = known.stored == 0 || known.stored >= known.due || waits(identity as u32);
            if faultless(plan) && known.committed && !sent_again {
                self.world.violate(|| format!("event {identity} was put back and not sent again"));
            }
        }
        let put_back = self.world.count.put_back.get() as usize;
        let lifted_in_probe = self.world.count.lifted_in_probe.get() as usize;
        let bound = outcome.interruptions * plan.batch_rows * plan.workers
            + outcome.settlements_lost
            + put_back
            + lifted_in_probe;
        let wronged = self.world.count.wronged.get();
        let tolerated = plan.rejections_before_hold * self.world.count.starts.get() * plan.disasters;
        if wronged > tolerated {
            self.world.violate(|| format!("{wronged} innocent events were rejected one by one"));
        }
        // A relay that is cut off from one leader holds its topic, finds that others reach it, and does so no more. Each of
        // its workers may have a batch under way when the others lift the hold.
        let cuts_leaders = plan.disasters > 0 && plan.kinds == [Disaster::CutFromLeader] && plan.relays > 1;
        if cuts_leaders && outcome.stuck > plan.disasters as usize * (1 + plan.workers) {
            self.world
                .violate(|| format!("topics were held {} times by a relay that is cut off", outcome.stuck));
        }
        if outcome.duplicates > bound {
            self.world.violate(|| format!("{} duplicates, and only {bound} are excused", outcome.duplicates));
        }
        outcome
    }
}

fn faultless(plan: &Plan) -> bool {
    let settles = plan.commit_answer_lost == 0 && plan.row_locks == 0 && plan.hold_locks == 0;
    settles && plan.disasters == 0 && plan.postgres_breaks == 0
}

impl Outcome {
    /// Sums up.
    pub fn add(&mut self, other: &Outcome) {
        self.written += other.written;
        self.duplicates += other.duplicates;
        self.dead += other.dead;
        self.lost_by_failover += other.lost_by_failover;
        self.interruptions += other.interruptions;
        self.settlements_lost += other.settlements_lost;
        self.stuck += other.stuck;
        self.settled_after = self.settled_after.max(other.settled_after);
    }
}
