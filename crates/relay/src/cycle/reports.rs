//! Waits for Kafka's reports of the rows that were sent, and decides when a silent partition is stuck.

use crate::cycle::claim::Claimed;
use crate::reason::BROKERS_DOWN;
use crate::{Batch, Claim, Event, FailureKind, KafkaFailure, Producer, Publisher, Relay, Session};
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// How long to wait after a failure for the reports of records that are already being sent.
const COLLECT_REPORTS_WITHIN: Duration = Duration::from_secs(2);
/// After this share of `publish_timeout` without a report, the relay checks whether only some partitions are silent. Their
/// topics are stuck. This is longer than most leader changes, but short because other rows of the lanes wait meanwhile.
const STUCK_SHARE: u32 = 3;
const STUCK_CHECK_EVERY: Duration = Duration::from_secs(1);
/// How often the relay checks whether another worker has held the topics whose reports are overdue.
const HELD_CHECK_EVERY: Duration = Duration::from_millis(100);
/// After this share of `takeover_timeout` without any report, the relay probes Kafka. If there is no answer within the same time,
/// it gives its lanes back, so that a relay that reaches Kafka gets them within `takeover_timeout`.
const SILENT_SHARE: u32 = 3;
/// How long a flow waits at its end for the reports, before it continues for the sake of other partitions.
const OVERDUE_AFTER: Duration = Duration::from_millis(100);

/// The first rows of a batch, while some of them have no report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Overdue {
    /// How many rows of the batch these are. Later rows were sent while the flow waited for these.
    rows: usize,
    undecided: usize,
    pub(super) begun: Instant,
    /// When the last of their reports arrived.
    silent_since: Instant,
    /// When Kafka last answered a probe, or the wait began.
    answered_at: Instant,
}

impl Overdue {
    /// All rows of the batch. The wait for them began at this time.
    fn new<E: Event, P: Producer>(session: &Session<P>, batch: &Batch<E>, begun: Instant) -> Overdue {
        let rows = batch.len();
        let silent_since = session.reported_at.map_or(begun, |at| at.max(begun));
        let undecided = batch.undecided(0..rows);
        Overdue { rows, undecided, begun, silent_since, answered_at: begun }
    }

    /// Counts the rows that are still undecided. `from` is at most the index of the first of them.
    fn count<E: Event, P: Producer>(&mut self, session: &Session<P>, batch: &Batch<E>, from: usize) {
        let undecided = batch.undecided(from..self.rows);
        if undecided < self.undecided {
            self.silent_since = session.reported_at.map_or(self.begun, |at| at.max(self.begun));
        }
        self.undecided = undecided;
    }

    /// Waits for the later rows too, once these are decided.
    fn include_later<E: Event>(&mut self, batch: &Batch<E>) {
        if self.undecided == 0 {
            self.rows = batch.len();
            self.undecided = batch.undecided(0..self.rows);
        }
    }
}

fn silence_max<P>(relay: &Relay<P>) -> Duration {
    relay.settings.limits().takeover_timeout / SILENT_SHARE
}

fn patience<P>(relay: &Relay<P>) -> Duration {
    relay.settings.limits().publish_timeout / STUCK_SHARE
}

/// Whether a flow continues at the end of its window: some reports are overdue, probably because a partition is silent. The
/// rows of other partitions must not wait for that. First waits briefly for the reports.
pub(super) async fn flows_on<C: Claim, P: Publisher>(
    relay: &Relay<P>,
    session: &mut Session<P::Producer>,
    claimed: &mut Claimed<C>,
    batch: &mut Batch<C::Event>,
) -> bool {
    let measured = claimed.flow.measured;
    if let Some(mut overdue) = claimed.flow.overdue {
        let closing = closes_unanswered(relay, session, batch, &mut overdue);
        if claimed.keep_during(relay, closing).await {
            return false;
        }
        claimed.flow.overdue = Some(overdue);
    }
    if let Some(overdue) = &mut claimed.flow.overdue {
        overdue.count(session, batch, measured.min(overdue.rows));
        let silent = overdue.silent_since.elapsed() >= patience(relay);
        // A topic can be held only if other partitions work. Until then, each further row may prove that.
        let ends = silent && others_work(relay, session, batch, overdue)
            || overdue.begun.elapsed() + patience(relay) >= relay.settings.limits().publish_timeout;
        // Once these rows are decided, the flow ends even if later ones are overdue. Otherwise it would never end while
        // every acknowledgement is slow.
        return overdue.undecided > 0 && !ends;
    }
    let begun = Instant::now();
    let waiting = timeout(OVERDUE_AFTER, session.finish(batch));
    if claimed.keep_during(relay, waiting).await.is_ok() || claimed.fault.is_some() {
        return false;
    }
    claimed.flow.overdue = Some(Overdue::new(session, batch, begun));
    true
}

/// Waits until every report has arrived or the session has closed: at its first failure, at the deadline, or when a
/// partition stays silent while others are acknowledged. The topic of such a partition is held.
pub(super) async fn wait_for_reports<E: Event, P: Publisher>(
    relay: &Relay<P>,
    session: &mut Session<P::Producer>,
    batch: &mut Batch<E>,
    overdue: Option<Overdue>,
    deadline: Instant,
) {
    let flowed_on = overdue.is_some();
    let mut overdue = overdue.unwrap_or_else(|| Overdue::new(session, batch, Instant::now()));
    let mut check_at = overdue.silent_since + patience(relay);
    if flowed_on {
        // Rows that were sent just now have had no time to be reported.
        check_at = check_at.max(Instant::now() + OVERDUE_AFTER);
    }
    while check_at < latest(relay, session, deadline) {
        let probe_at = probe_at(relay, session, &overdue);
        let held_at = Instant::now() + HELD_CHECK_EVERY;
        if timeout_at(check_at.min(probe_at).min(held_at), session.finish(batch)).await.is_ok() {
            return;
        }
        if relay.stats.notes.throttle().is_none() && closes_held(relay, session, batch) {
            return;
        }
        if closes_unanswered(relay, session, batch, &mut overdue).await {
            return;
        }
        if Instant::now() < check_at {
            continue;
        }
        overdue.count(session, batch, 0);
        overdue.include_later(batch);
        if overdue.silent_since.elapsed() < patience(relay) {
            check_at = overdue.silent_since + patience(relay);
            continue;
        }
        let is_throttled = relay.stats.notes.throttle().is_some();
        if !is_throttled && closes_stuck(relay, session, batch, &overdue, deadline).await {
            return;
        }
        check_at = Instant::now() + STUCK_CHECK_EVERY;
    }
    if timeout_at(latest(relay, session, deadline), session.finish(batch)).await.is_err() {
        session.close(not_acknowledged(relay, session));
    }
}

/// When the last report must have arrived. A broker that enforces a quota answers no further request of a connection while it
/// delays the relay, so there each report restarts the time.
fn latest<P: Publisher>(relay: &Relay<P>, session: &Session<P::Producer>, deadline: Instant) -> Instant {
    let extended = session.reported_at.map(|at| at + relay.settings.limits().publish_timeout);
    extended.filter(|_| relay.stats.notes.throttle().is_some()).map_or(deadline, |at| at.max(deadline))
}

/// When the relay probes Kafka if no report arrives until then.
fn probe_at<P: Publisher>(relay: &Relay<P>, session: &Session<P::Producer>, overdue: &Overdue) -> Instant {
    session.reported_at.map_or(overdue.answered_at, |at| at.max(overdue.answered_at)) + silence_max(relay)
}

/// Closes the session if no report has arrived for some time, and a probe of Kafka fails as well. Then the gate closes.
async fn closes_unanswered<E: Event, P: Publisher>(
    relay: &Relay<P>,
    session: &mut Session<P::Producer>,
    batch: &mut Batch<E>,
    overdue: &mut Overdue,
) -> bool {
    if Instant::now() < probe_at(relay, session, overdue) {
        return false;
    }
    let waited = silence_max(relay);
    let answer = timeout(waited, relay.kafka.publisher.probe()).await;
    session.absorb(batch);
    let failure = match answer {
        Ok(Ok(())) => {
            overdue.answered_at = Instant::now();
            return false;
        }
        Ok(Err(failure)) => failure,
        Err(_) => BROKERS_DOWN.failure(format!("Kafka did not answer a probe within {waited:?}")),
    };
    if Instant::now() < probe_at(relay, session, overdue) {
        return false; // reports have arrived meanwhile
    }
    session.close(KafkaFailure { kind: FailureKind::Cluster, ..failure });
    true
}

/// Closes the session if another worker has held the topics of all rows in flight as stuck since the first row of the batch was
/// sent. Otherwise the other rows of its lanes would wait as long again.
fn closes_held<E: Event, P: Publisher>(
    relay: &Relay<P>,
    session: &mut Session<P::Producer>,
    batch: &Batch<E>,
) -> bool {
    let Some(sent) = session.publishing().map(|lasted| Instant::now() - lasted) else { return false };
    session.close_if_held(batch, |topic| relay.memory.holds.is_stuck_since(topic, sent))
}

/// Closes the session if the cluster answers and only some partitions are silent. Holds their topics.
async fn closes_stuck<E: Event, P: Publisher>(
    relay: &Relay<P>,
    session: &mut Session<P::Producer>,
    batch: &mut Batch<E>,
    overdue: &Overdue,
    deadline: Instant,
) -> bool {
    // Other rows may have been acknowledged just before all of Kafka became unavailable.
    let answers = timeout_at(deadline, relay.kafka.publisher.probe()).await;
    session.absorb(batch);
    if !matches!(answers, Ok(Ok(_))) {
        return false;
    }
    others_work(relay, session, batch, overdue) && session.hold_stuck(batch, overdue.rows, patience(relay))
}

/// Whether rows of other partitions were acknowledged, in this batch or another one.
fn others_work<E: Event, P: Publisher>(
    relay: &Relay<P>,
    session: &Session<P::Producer>,
    batch: &Batch<E>,
    overdue: &Overdue,
) -> bool {
    session.others_work(batch) || relay.health.acknowledged_since(overdue.begun)
}

/// The failure of rows that are not acknowledged at the deadline, with what the client knows about the cause.
pub(super) fn not_acknowledged<P: Publisher>(
    relay: &Relay<P>,
    session: &Session<P::Producer>,
) -> KafkaFailure {
    let waited = relay.settings.limits().publish_timeout;
    let error = format!("Kafka did not acknowledge all records within the publish_timeout of {waited:?}");
    KafkaFailure::unknown(match session.producer.last_error(waited) {
        Some(cause) => format!("{error}. Last error of the Kafka client: {cause}"),
        None => error,
    })
}

/// Waits briefly after the session has closed for the reports of rows that are already being sent, even if its partitions
/// are stuck: they may have just recovered, and these rows would be duplicates.
pub(super) async fn collect_reports<E: Event, P: Producer>(session: &mut Session<P>, batch: &mut Batch<E>) {
    session.absorb(batch);
    session.producer.stop(COLLECT_REPORTS_WITHIN).await;
    session.absorb(batch);
}
