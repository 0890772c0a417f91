//! This relay's knowledge of the holds that it records.

use crate::relay::event::Event;
use crate::relay::failure::{Fault, FaultKind};
use crate::relay::health::LOCKS_PATIENCE;
use crate::relay::health::stats::Stats;
use crate::relay::holds::holding::Holding;
use crate::relay::outbox::{Settlement, TopicHold};
use crate::relay::reason;
use std::cell::Cell;
use tokio::time::Instant;

/// One relay's knowledge of holds.
#[derive(Default)]
pub(crate) struct KnownHolds {
    /// Topics that were reported as held.
    pub(crate) reported: Holding,
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

    /// Records that a settlement failed, perhaps because of another session's lock on the version of the set of holds.
    pub(crate) fn not_settled<E>(&self, settlement: &Settlement<'_, E>, fault: &Fault) {
        let holds = !settlement.held.is_empty() || !settlement.blocked.is_empty();
        if holds && fault.kind == FaultKind::Contended {
            self.left_out_until.set(Some(Instant::now() + LOCKS_PATIENCE));
        }
    }

    /// Reports a recorded hold, if it is the first of its topic.
    pub(crate) fn recorded<E: Event>(&self, TopicHold { topic, why, .. }: &TopicHold<'_, E>, stats: &Stats) {
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
