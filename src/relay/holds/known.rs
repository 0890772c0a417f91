//! What this relay knows of the holds that it records.

use crate::relay::event::Event;
use crate::relay::failure::{Fault, FaultKind};
use crate::relay::health::LOCKS_PATIENCE;
use crate::relay::health::stats::Stats;
use crate::relay::holds::elsewhere::Elsewhere;
use crate::relay::holds::holding::Holding;
use crate::relay::outbox::{Held, Settlement};
use crate::relay::reason;
use std::cell::Cell;
use tokio::time::Instant;

/// What one relay knows of holds.
#[derive(Default)]
pub struct KnownHolds {
    /// Topics that were reported as held.
    pub(crate) reported: Holding,
    /// What other relays can reach and this one cannot.
    pub(crate) elsewhere: Elsewhere,
    /// Until when settlements leave out holds and blocked keys, if they have anything else to record.
    left_out_until: Cell<Option<Instant>>,
}

impl KnownHolds {
    /// Holds and blocked keys change one row, the version of their set, which an operator's open transaction may keep locked.
    /// What Kafka has acknowledged must not wait for that. The rows that they are about stay unsent, and a later batch decides
    /// about them again.
    pub(crate) fn leave_out<E>(&self, settlement: &mut Settlement<'_, E>) {
        let leaves_out = self.left_out_until.get().is_some_and(|until| until > Instant::now());
        if leaves_out && !(settlement.sent.is_empty() && settlement.rejected.is_empty()) {
            settlement.held.clear();
            settlement.blocked.clear();
        }
    }

    /// A settlement failed, perhaps because another session's lock kept its holds from being recorded.
    pub(crate) fn not_settled<E>(&self, settlement: &Settlement<'_, E>, fault: &Fault) {
        let holds = !settlement.held.is_empty() || !settlement.blocked.is_empty();
        if holds && fault.kind == FaultKind::Contended {
            self.left_out_until.set(Some(Instant::now() + LOCKS_PATIENCE));
        }
    }

    /// A hold was recorded. Only the first one of its topic is reported.
    pub(crate) fn recorded<E: Event>(&self, Held { topic, why, witness }: &Held<'_, E>, stats: &Stats) {
        if why.reason == reason::STUCK.word {
            self.elsewhere.held(topic, witness.id());
        }
        if !self.reported.begins(topic) {
            tracing::debug!(topic, reason = why.reason, "topic already held: {}", why.error);
            return;
        }
        stats.holds.inc();
        tracing::warn!(
            topic,
            reason = why.reason,
            "topic held, other topics continue: {}. Fix: {}",
            why.error,
            reason::remedy(why.reason)
        );
    }
}
