//! The cycle: claim, publish, settle. One transaction, open until Kafka has answered.
//!
//! | Stage | File | What it does |
//! |---|---|---|
//! | claim | `claim.rs` | locks lanes, and plans the read |
//! | publish | `publish.rs` | reads slice by slice, sends the rows, waits for the reports |
//! | judge | `judge.rs` | publishes rows that Kafka refused alone, in order |
//! | settle | `settle.rs` | records the outcome, and commits |
//! | confirm | `settle.rs` | raises the marks once the COMMIT is confirmed |
//!
//! While Kafka is waited for, `SELECT 1` every `takeover_timeout / 3` keeps the claim.
//!
//! Three rules keep the order through every crash: a claim is a contiguous prefix of each key's unsent rows, a session never
//! leaves a gap, and only real acknowledgements are settled.

mod claim;
pub(crate) mod judge;
pub(crate) mod large_rows;
pub(crate) mod narrow;
mod publish;
pub mod session;
mod settle;
pub mod worker;

use crate::relay::Relay;
use crate::relay::cycle::claim::Claimed;
use crate::relay::cycle::session::Session;
use crate::relay::failure::{Failure, Fault};
use crate::relay::lane::Lane;
use crate::relay::outbox::{Claim, Outbox};
use crate::relay::publisher::Publisher;
use crate::relay::rows::batch::Batch;
use crate::relay::rows::reach::Reach;
use std::time::Duration;
use tokio::time::timeout_at;

/// What one cycle did.
#[derive(Debug, Default)]
pub(crate) struct Cycle {
    /// The lanes that were ours, and how far each of them was read.
    pub reach: Vec<Reach>,
    /// Rows that were read.
    pub rows: usize,
    /// Rows that are settled as sent now.
    pub sent: usize,
    /// Those of them that were not published now, since Kafka had acknowledged them before.
    pub recovered: usize,
    /// From the first row handed over to the last report.
    pub publishing: Option<Duration>,
    /// Kafka's failure that ended the session, if one did.
    pub failure: Option<Failure>,
    /// What kept suspects from being judged.
    pub unjudged: Option<Failure>,
    /// Somebody else's lock kept a row from being settled.
    pub locked_out: bool,
}

/// Runs one cycle over those of `lanes` that are free.
///
/// A fault ends the claim; what Kafka has acknowledged by then is kept in the acknowledged set. After a failure the session
/// can do nothing more, whatever is returned.
pub(crate) async fn run<O: Outbox, P: Publisher>(
    relay: &Relay<P>,
    outbox: &mut O,
    session: &mut Session<P::Producer>,
    lanes: &[Lane],
    skip_locked: bool,
) -> Result<Cycle, Fault> {
    let Some(mut claimed) = claim::claim(relay, outbox, lanes).await? else {
        return Ok(Cycle::default());
    };
    let mut batch = Batch::new(relay.narrowing.on_rejected(lanes, relay.settings.limits().on_rejected));
    session.begin(&relay.rows.refusals);
    publish::publish(relay, session, &mut claimed, &mut batch).await;
    let unjudged = judge_suspects(relay, session, &mut claimed, &mut batch).await;
    // Reports that arrived while other rows were judged.
    session.absorb(&mut batch);
    publish::reported(relay, session, &batch);
    let publishing = session.publishing();

    let Claimed { claim, planned, lanes: owned, fault, .. } = claimed;
    let settled = match fault {
        None => settle::settle(relay, claim, session, &batch, skip_locked).await.inspect_err(|fault| {
            relay.narrowing.settlement_failed(&owned, fault);
        }),
        Some(fault) => Err(fault),
    };
    match settled {
        Ok(settled) => {
            let failure = session.failure().cloned();
            let confirmed = settle::confirm(relay, &planned.start, &owned, &batch, &settled);
            Ok(Cycle { publishing, failure, unjudged, ..confirmed })
        }
        Err(fault) => {
            settle::keep_acknowledged(relay, &owned, &batch);
            Err(fault)
        }
    }
}

/// Judges the rows that Kafka refused, until the deadline. Returns what kept some of them from being judged.
async fn judge_suspects<C: Claim, P: Publisher>(
    relay: &Relay<P>,
    session: &mut Session<P::Producer>,
    claimed: &mut Claimed<C>,
    batch: &mut Batch<C::Event>,
) -> Option<Failure> {
    // Without the claim another relay may have these lanes: what it publishes must not meet a verdict of ours.
    if claimed.fault.is_some() || !batch.has_suspects() {
        return None;
    }
    let judging = timeout_at(claimed.deadline, judge::judge(relay, session, batch));
    let judged = claimed.keep_during(relay, judging).await;
    judged.unwrap_or_else(|_| Some(publish::overdue(relay)))
}

#[cfg(test)]
mod tests;
