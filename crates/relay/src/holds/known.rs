//! This relay's knowledge of the holds that it records.

use crate::event::Event;
use crate::failure::{Fault, FaultKind};
use crate::health::LOCKS_PATIENCE;
use crate::health::stats::Stats;
use crate::holds::holding::Holding;
use crate::outbox::{Settlement, TopicHold};
use crate::reason::{self, STUCK};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// How long a relay remembers that a topic was stuck: longer than a session waits for its rows.
const STUCK_FOR: Duration = Duration::from_secs(3_600);

/// One relay's knowledge of holds.
#[derive(Default)]
pub(crate) struct KnownHolds {
    /// Topics that were reported as held.
    pub(crate) reported: Holding,
    /// The topics that this relay has recently held because a partition was silent, and when.
    stuck: RefCell<HashMap<String, Instant>>,
    /// Until when settlements that record something else leave out holds and blocked keys.
    left_out_until: Cell<Option<Instant>>,
}

impl KnownHolds {
    /// Removes holds and blocked keys from the settlement if recording them failed recently. Recording them updates the row
    /// with the version of the set. An operator's open transaction may keep that row locked, and acknowledged rows must not
    /// wait for it. The rows concerned stay unsent, and a later batch decides about them again.
    pub(crate) fn leave_out<E>(&self, settlement: &mut Settlement<'_, E>) {
        let leaves_out = self.left_out_until.get().is_some_and(|until| until > Instant::now());
        if leaves_out && !(settlement.sent.is_empty() && settlement.rejected.is_empty()) {
            settlement.held.clear();
            settlement.blocked.clear();
        }
    }

    /// Whether a worker of this relay has held this topic as stuck since this time.
    pub(crate) fn is_stuck_since(&self, topic: &str, time: Instant) -> bool {
        self.stuck.borrow().get(topic).is_some_and(|at| *at >= time)
    }

    /// Records that a settlement failed, perhaps because of another session's lock on the version of the set of holds.
    pub(crate) fn not_settled<E>(&self, settlement: &Settlement<'_, E>, fault: &Fault) {
        let holds = !settlement.held.is_empty() || !settlement.blocked.is_empty();
        if holds && fault.kind == FaultKind::Contended {
            self.left_out_until.set(Some(Instant::now() + LOCKS_PATIENCE));
        }
    }

    /// Reports a recorded hold, if it is the first of its topic.
    pub(crate) fn recorded<E: Event>(&self, TopicHold { topic, why, .. }: &TopicHold<'_, E>, stats: &Stats) {
        if why.reason == STUCK.word {
            let mut stuck = self.stuck.borrow_mut();
            stuck.retain(|_, at| at.elapsed() < STUCK_FOR);
            stuck.insert((*topic).to_owned(), Instant::now());
        }
        if !self.reported.begins(topic) {
            tracing::debug!(topic, reason = why.reason, "topic already held: {}", why.error);
            return;
        }
        stats.holds.inc();
        tracing::warn!(
            code = "topic_held",
            topic,
            reason = why.reason,
            "topic held: {}. Other topics continue. {}",
            why.error,
            reason::fix(reason::remedy(why.reason))
        );
    }
}
