//! The second stage: reads the claim slice by slice, sends the rows, and waits for the reports.
//!
//! If there is no backlog and rows arrive often, a claim of all lanes becomes a *flow*: it keeps reading and sending new rows in its
//! transaction for up to `flow_window`.
//!
//! A claim costs two transactions and a scan, however few rows there are. A flow shares this cost among all rows of its
//! window, and delivers a row after one read.
//!
//! A flow that waited for the reports of a silent partition would delay the rows of all other partitions, because it usually
//! holds every lane. It therefore continues beyond its window while reports are overdue.
//!
//! Order: writers of a key take turns, so a snapshot that contains a row contains every earlier row of its key. Each of those
//! was read before or is part of the search, so a flow sends a prefix of each key. docs/design/flows.md has the rules, and
//! `crates/relay/tests/model` checks them.

use crate::cycle::claim::{Claimed, PlannedRead, SLICE_ROWS_MAX};
use crate::cycle::narrow::read_head;
use crate::reason::BROKERS_DOWN;
use crate::{
    Batch, Claim, Event, FailureKind, FaultKind, KafkaFailure, PostgresFault, Producer, Publisher, ReadEnd,
    Relay, Search, SeenIds, Session, fail_point,
};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

/// After this time without all reports, a partition may be silent.
const PROMPT: Duration = Duration::from_millis(50);
/// The time from the end of a read that found rows to the next one.
const READ_EVERY: Duration = Duration::from_millis(3);
/// The same for a read that found none.
const READ_AFTER_NONE: Duration = Duration::from_millis(5);
/// A flow ends after this time without a new row.
const IDLE: Duration = Duration::from_millis(20);
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

pub(super) struct Sending<'a, E, P: Publisher> {
    pub(super) relay: &'a Relay<P>,
    pub(super) session: &'a mut Session<P::Producer>,
    pub(super) batch: Batch<E>,
}

/// The first rows of a batch, whose reports the relay waits for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awaited {
    /// How many rows of the batch these are. Later rows were sent while the flow waited for these.
    rows: usize,
    undecided: usize,
    pub(super) begun: Instant,
    /// When the last of their reports arrived.
    silent_since: Instant,
    /// When Kafka last answered a probe, or the wait began.
    answered_at: Instant,
}

impl<E: Event, P: Publisher> Sending<'_, E, P> {
    /// Reads and publishes the rows of the claim. A fault is stored in `claimed`.
    pub(super) async fn publish<C: Claim<Event = E>>(&mut self, claimed: &mut Claimed<C>) {
        let relay = self.relay;
        claimed.sends_until = Rc::clone(&self.session.sends_until);
        claimed.kept(relay, claimed.kept_at);
        self.batch.set_shares(claimed.planned.read.wanted.iter().map(|wanted| wanted.share));
        let published = if relay.lanes.narrowing.reads_head(&claimed.planned.lanes) {
            read_head(relay, &mut claimed.claim, &claimed.planned, &mut self.batch).await
        } else {
            self.read_and_send(claimed).await
        };
        if let Err(fault) = published {
            claimed.lose(fault);
        }
        // After a fault, rows may still be in flight. Their reports must arrive before the next batch, which reuses the indexes.
        if claimed.fault.is_some() {
            let finishing = timeout_at(claimed.deadline, self.session.finish(&mut self.batch));
            if claimed.keep_during(relay, finishing).await.is_err() {
                self.close_at_deadline();
            }
        }
        if self.session.failure.is_some() {
            claimed.keep_during(relay, self.collect_reports()).await;
        }
    }

    async fn read_and_send<C: Claim<Event = E>>(
        &mut self,
        claimed: &mut Claimed<C>,
    ) -> Result<(), PostgresFault> {
        let relay = self.relay;
        self.read(&mut claimed.claim, &mut claimed.planned).await?;
        // A slow read takes nothing from the time that Kafka has.
        claimed.extend_deadline(relay);
        claimed.check_after(relay, claimed.planned.begun).await?;
        if relay.lanes.board.is_stopped() {
            return Ok(()); // the rows stay in the outbox
        }
        // Send all rows at once. Slice by slice, they would be sent in many small requests.
        self.send(claimed, 0).await;
        if claimed.fault.is_none() {
            fail_point::reach("rows-sent").await;
            self.flow(claimed).await;
            let (deadline, awaited) = (claimed.deadline, claimed.flow.awaited);
            fail_point::reach("waiting-for-reports").await;
            claimed.keep_during(relay, self.wait_for_reports(awaited, deadline)).await;
        }
        Ok(())
    }

    async fn read<C: Claim<Event = E>>(
        &mut self,
        claim: &mut C,
        planned: &mut PlannedRead,
    ) -> Result<(), PostgresFault> {
        let (relay, batch) = (self.relay, &mut self.batch);
        // Use the same limits for the whole batch, even if a reload changes them meanwhile.
        let limits = relay.settings.limits();
        let failed = |fault: &PostgresFault| {
            relay.lanes.narrowing.read_failed(&planned.lanes, planned.read.rows_max, fault);
        };
        if !planned.sent {
            claim.read(&planned.read).await.inspect_err(failed)?;
        }
        fail_point::reach("read-sent").await;
        loop {
            let bytes_left = limits.batch_bytes.saturating_sub(batch.bytes);
            let rows_left = limits.batch_rows.saturating_sub(batch.len());
            let rows = relay.memory.rows_in(bytes_left).min(rows_left).min(SLICE_ROWS_MAX);
            let read = claim.next_slice(rows, bytes_left, batch.rows_mut()).await;
            let from = batch.appended(read.as_ref().map_or(ReadEnd::Cut, |slice| slice.end));
            let slice = read.inspect_err(|fault| {
                relay.memory.note_failed_slice(limits.batch_bytes);
                failed(fault);
            })?;
            (batch.hold_version, batch.epoch) = (slice.hold_version, slice.epoch);
            let rows = &batch.rows()[from..];
            relay.memory.note_row_size(rows);
            let ids = rows.iter().map(Event::id);
            relay.lanes.marks.borrow_mut().note_epoch(planned.marks.generation, slice.epoch);
            relay.lanes.marks.borrow_mut().note_ids(planned.marks.generation, ids.clone());
            if let Some(search) = &mut planned.search {
                search.add(ids);
            }
            relay.memory.mark_acknowledged(batch, from);
            if relay.memory.probes_any_of(&batch.rows()[from..]) {
                batch.cut();
                let message = "a probe of its topic has an event of this claim in flight".to_owned();
                return Err(PostgresFault { kind: FaultKind::Probed, doing: "reading events", message });
            }
            let full = batch.len() >= limits.batch_rows || batch.bytes >= limits.batch_bytes;
            if slice.end == ReadEnd::More && full {
                batch.cut();
            }
            if slice.end != ReadEnd::More || full {
                relay.lanes.narrowing.width.worked(planned.lanes.len(), planned.begun.elapsed());
                return Ok(());
            }
            fail_point::reach("between-slices").await;
        }
    }

    /// Sends the rows from this index on, until the deadline of the claim.
    async fn send<C: Claim<Event = E>>(&mut self, claimed: &mut Claimed<C>, from: usize) {
        let topics = &self.relay.kafka.topics;
        let sending = timeout_at(claimed.deadline, self.session.send(topics, &mut self.batch, from));
        if claimed.keep_during(self.relay, sending).await.is_err() {
            self.close_at_deadline();
        }
    }

    /// Records which topics accepted rows. This comes before refused rows are judged, because rows that were sent before a refused
    /// one show nothing about those after it.
    pub(super) fn note_accepted(&self) {
        let streaks = &self.relay.memory.streaks;
        if !streaks.is_empty() {
            self.session.tally(&self.batch).for_each(|(topic, _, _)| streaks.accepted(topic, 0));
        }
    }

    /// Counts what Kafka acknowledged, once all reports of the batch have arrived.
    pub(super) fn count_acknowledged(&self) {
        let (relay, first_sent) = (self.relay, self.session.publishing_since);
        // Rows that were acknowledged in an earlier cycle are not part of it: they do not show that Kafka works now.
        let mut acknowledged = false;
        for (topic, rows, bytes) in self.session.tally(&self.batch) {
            relay.stats.count_topic(topic, rows, bytes);
            acknowledged = true;
        }
        let took = first_sent.map(|at| at.elapsed());
        relay.settings.published(relay.stats.notes.throttle().is_some(), took);
        if acknowledged {
            relay.health.acknowledged_at.set(Some(Instant::now()));
            first_sent.into_iter().for_each(|at| relay.kafka.gate.acknowledged(at));
        }
    }

    /// Keeps reading and sending new rows until the flow ends. A fault is stored in `claimed`.
    async fn flow<C: Claim<Event = E>>(&mut self, claimed: &mut Claimed<C>) {
        let relay = self.relay;
        let window = relay.settings.limits().flow_window;
        let may_flow = relay.lanes.narrowing.allows_all() && !relay.memory.settling_is_refused.get();
        if window.is_zero() || !may_flow || !self.batch.is_complete(&claimed.lanes) {
            return;
        }
        let Some(mut search) = claimed.planned.search.take() else { return };
        // The first read may have left too many gaps to search for.
        if !search.pass(claimed.planned.marks.fenced) {
            return;
        }
        if !claimed.flows_at_once {
            // Only if reports are late: a silent partition must not stop the other rows of its lanes.
            let prompt = timeout(PROMPT, self.session.finish(&mut self.batch));
            if claimed.keep_during(relay, prompt).await.is_ok() {
                return;
            }
        }
        let begun = Instant::now();
        let reloads = relay.settings.reloads();
        let mut rows_at = begun;
        let (mut has_rows, mut arriving) = (false, false);
        let mut read_at = begun + READ_EVERY;
        self.batch.flows();
        while claimed.fault.is_none() {
            sleep_until(read_at).await;
            self.session.absorb(&mut self.batch);
            let reported = self.batch.first_unacknowledged(claimed.flow.measured);
            claimed.measure_latency(relay, &self.batch, reported);
            let ends = relay.lanes.board.is_stopped()
                || !relay.kafka.gate.is_open()
                || relay.settings.reloads() != reloads
                || self.session.leaves_rows(&self.batch);
            arriving = has_rows && rows_at.elapsed() < IDLE;
            let ends_window = begun.elapsed() >= window || rows_at.elapsed() >= IDLE;
            let is_over = claimed.flow.awaited.is_some() || ends_window;
            if ends || is_over {
                // Reports that arrive while the flow waits for them show that Kafka works at its end.
                claimed.flow.acknowledged = self.batch.sent().count();
            }
            if ends || (is_over && !self.flows_on(claimed).await) {
                break;
            }
            fail_point::reach("flowing").await;
            if let Err(fault) = self.record(claimed).await {
                claimed.lose(fault);
                break;
            }
            match self.step(claimed, &mut search).await {
                Ok(true) if claimed.flow.finds_rows => (has_rows, rows_at) = (true, Instant::now()),
                Ok(true) => {}
                Ok(false) => {
                    claimed.flow.acknowledged = self.batch.sent().count();
                    break;
                }
                Err(fault) => claimed.lose(fault),
            }
            read_at = Instant::now() + if claimed.flow.finds_rows { READ_EVERY } else { READ_AFTER_NONE };
        }
        self.session.absorb(&mut self.batch);
        claimed.flow.is_arriving = claimed.fault.is_none() && arriving;
        claimed.extend_deadline(relay);
    }

    /// Records the acknowledged rows at the start of the batch as sent, if there are enough of them.
    async fn record<C: Claim<Event = E>>(&self, claimed: &mut Claimed<C>) -> Result<(), PostgresFault> {
        let relay = self.relay;
        let rows = claimed.flow.recorded..claimed.flow.measured;
        if rows.len() < relay.settings.limits().flow_records || claimed.around_locks {
            return Ok(());
        }
        let sent: Vec<&E> = self.batch.sent_in(rows.clone()).collect();
        let recorded = claimed.claim.record_sent(&sent).await.inspect_err(|fault| {
            relay.lanes.narrowing.settlement_failed(&claimed.lanes, rows.len(), fault);
            relay.memory.note_settlement(Some(fault));
        })?;
        fail_point::reach("recorded").await;
        claimed.flow.recorded = rows.end;
        claimed.flow.missed |= !recorded;
        Ok(())
    }

    /// Reads the rows that the search describes, and sends them. Returns whether the flow may read on.
    async fn step<C: Claim<Event = E>>(
        &mut self,
        claimed: &mut Claimed<C>,
        search: &mut SeenIds,
    ) -> Result<bool, PostgresFault> {
        let (relay, batch) = (self.relay, &mut self.batch);
        let limits = relay.settings.limits();
        let batch_rows =
            relay.lanes.narrowing.rows_max(&claimed.lanes, relay.memory.rows_max(limits.batch_rows));
        let generation = claimed.planned.marks.generation;
        let bytes_max = limits.batch_bytes.saturating_sub(batch.bytes);
        let rows_max = relay.memory.rows_in(bytes_max).min(SLICE_ROWS_MAX);
        // Note the fence before the read is sent. Otherwise an id below it could commit after the read's snapshot.
        let (fenced, excepted) = {
            let marks = relay.lanes.marks.borrow();
            (marks.fence.passed, marks.fence.excepted())
        };
        // The rows of a transaction that was excepted and has ended are not part of the search.
        if excepted.ended != claimed.planned.marks.excepted.ended {
            return Ok(false);
        }
        let request = Search {
            above: search.highest,
            gaps: search.gaps(),
            hold_version: batch.hold_version,
            epoch: batch.epoch,
            excepted: excepted.xids,
            rows_max: batch_rows.saturating_sub(batch.len()).min(rows_max),
            bytes_max,
            expects_rows: claimed.flow.finds_rows,
            expects_free: relay.memory.holds_seen(batch.hold_version).nothing_held,
        };
        if request.rows_max == 0 || request.bytes_max == 0 {
            return Ok(false);
        }
        let (mut rows, begun) = (Vec::new(), Instant::now());
        let found = claimed.claim.read_on(&request, &mut rows).await.inspect_err(|fault| {
            relay.lanes.narrowing.read_failed(&claimed.planned.lanes, request.rows_max, fault);
        })?;
        claimed.extend_deadline(relay);
        claimed.check_after(relay, begun).await?;
        let is_same_generation = {
            let mut marks = relay.lanes.marks.borrow_mut();
            marks.note_epoch(generation, found.epoch);
            marks.note_ids(generation, rows.iter().map(Event::id));
            marks.note_seen(generation, &found.ids);
            marks.generation == generation
        };
        let holds_changed = found.hold_version != request.hold_version || found.epoch != request.epoch;
        if !is_same_generation || holds_changed || relay.memory.probes_any_of(&rows) {
            return Ok(false);
        }
        search.add(found.ids.iter().copied());
        let reads_on = search.pass(fenced) && !found.cut;
        claimed.flow.finds_rows = !rows.is_empty();
        if claimed.flow.finds_rows {
            let from = batch.extend(rows);
            relay.memory.note_row_size(&batch.rows()[from..]);
            relay.memory.mark_acknowledged(batch, from);
            self.send(claimed, from).await;
        }
        Ok(reads_on)
    }

    /// Whether a flow continues at the end of its window: some reports are overdue, probably because a partition is silent. The
    /// rows of other partitions must not wait for that. First waits briefly for the reports.
    async fn flows_on<C: Claim<Event = E>>(&mut self, claimed: &mut Claimed<C>) -> bool {
        let relay = self.relay;
        if let Some(mut awaited) = claimed.flow.awaited {
            if claimed.keep_during(relay, self.closes_unanswered(&mut awaited)).await
                || claimed.fault.is_some()
            {
                return false;
            }
            let from = claimed.flow.measured.min(awaited.rows);
            self.recount(&mut awaited, from);
            claimed.flow.awaited = Some(awaited);
            let silent = awaited.silent_since.elapsed() >= patience(relay);
            // A topic can be held only if other partitions work. Until then, each further row may prove that.
            let ends = silent && self.others_work(&awaited)
                || awaited.begun.elapsed() + patience(relay) >= relay.settings.limits().publish_timeout;
            // Once these rows are decided, the flow ends even if later ones are overdue. Otherwise it would never end while
            // every acknowledgement is slow.
            return awaited.undecided > 0 && !ends;
        }
        let begun = Instant::now();
        let waiting = timeout(OVERDUE_AFTER, self.session.finish(&mut self.batch));
        if claimed.keep_during(relay, waiting).await.is_ok() || claimed.fault.is_some() {
            return false;
        }
        claimed.flow.awaited = Some(self.awaited(begun));
        true
    }

    /// All rows of the batch. The wait for them began at this time.
    fn awaited(&self, begun: Instant) -> Awaited {
        let rows = self.batch.len();
        let silent_since = self.session.reported_at.map_or(begun, |at| at.max(begun));
        Awaited { rows, undecided: self.batch.undecided(0..rows), begun, silent_since, answered_at: begun }
    }

    /// Counts the awaited rows that are still undecided. `from` is at most the index of the first of them.
    fn recount(&self, awaited: &mut Awaited, from: usize) {
        let undecided = self.batch.undecided(from..awaited.rows);
        if undecided < awaited.undecided {
            awaited.silent_since = self.session.reported_at.map_or(awaited.begun, |at| at.max(awaited.begun));
        }
        awaited.undecided = undecided;
    }

    /// Counts again. Once the rows that were awaited first are decided, counts all rows of the batch.
    fn recount_all(&self, awaited: &mut Awaited) {
        self.recount(awaited, 0);
        if awaited.undecided == 0 {
            // A later row may have been acknowledged since.
            let all = self.awaited(awaited.begun);
            (awaited.rows, awaited.undecided, awaited.silent_since) =
                (all.rows, all.undecided, all.silent_since);
        }
    }

    /// Waits until every report has arrived or the session has closed: at its first failure, at the deadline, or when a
    /// partition stays silent while others are acknowledged. The topic of such a partition is held.
    async fn wait_for_reports(&mut self, awaited: Option<Awaited>, deadline: Instant) {
        let relay = self.relay;
        let mut awaited = awaited.unwrap_or_else(|| self.awaited(Instant::now()));
        // Rows that a flow sent just now have had no time to be reported.
        let mut check_at = (awaited.silent_since + patience(relay)).max(Instant::now() + OVERDUE_AFTER);
        while check_at < self.latest(deadline) {
            let held_at = Instant::now() + HELD_CHECK_EVERY;
            let until = check_at.min(self.probe_at(&awaited)).min(held_at);
            if timeout_at(until, self.session.finish(&mut self.batch)).await.is_ok() {
                return;
            }
            if relay.stats.notes.throttle().is_none() && self.closes_held() {
                return;
            }
            if self.closes_unanswered(&mut awaited).await {
                return;
            }
            if Instant::now() < check_at {
                continue;
            }
            self.recount_all(&mut awaited);
            if awaited.silent_since.elapsed() < patience(relay) {
                check_at = awaited.silent_since + patience(relay);
                continue;
            }
            if relay.stats.notes.throttle().is_none() && self.closes_stuck(&awaited, deadline).await {
                return;
            }
            check_at = Instant::now() + STUCK_CHECK_EVERY;
        }
        if timeout_at(self.latest(deadline), self.session.finish(&mut self.batch)).await.is_ok() {
            return;
        }
        // Under a quota too, a partition that is silent for so long is held.
        self.recount_all(&mut awaited);
        let is_silent = awaited.silent_since.elapsed() >= patience(relay);
        if is_silent && self.closes_stuck(&awaited, Instant::now() + silence_max(relay)).await {
            return;
        }
        if timeout(Duration::ZERO, self.session.finish(&mut self.batch)).await.is_err() {
            self.close_at_deadline();
        }
    }

    /// When the last report must have arrived. A broker that enforces a quota answers no further request of a connection while
    /// it delays the relay, so there each report restarts the time.
    fn latest(&self, deadline: Instant) -> Instant {
        let timeout = self.relay.settings.limits().publish_timeout;
        let extended = self.session.reported_at.map(|at| at + timeout);
        let is_throttled = self.relay.stats.notes.throttle().is_some();
        extended.filter(|_| is_throttled).map_or(deadline, |at| at.max(deadline))
    }

    /// When the relay probes Kafka if no report arrives until then.
    fn probe_at(&self, awaited: &Awaited) -> Instant {
        let answered_at = awaited.answered_at;
        self.session.reported_at.map_or(answered_at, |at| at.max(answered_at)) + silence_max(self.relay)
    }

    /// Closes the session if no report has arrived for some time, and a probe of Kafka fails as well. Then the gate closes.
    async fn closes_unanswered(&mut self, awaited: &mut Awaited) -> bool {
        if Instant::now() < self.probe_at(awaited) {
            return false;
        }
        let waited = silence_max(self.relay);
        let answer = timeout(waited, self.relay.kafka.publisher.probe()).await;
        self.session.absorb(&mut self.batch);
        let failure = match answer {
            Ok(Ok(())) => {
                awaited.answered_at = Instant::now();
                return false;
            }
            Ok(Err(failure)) => failure,
            Err(_) => BROKERS_DOWN.failure(format!("Kafka did not answer a probe within {waited:?}")),
        };
        if Instant::now() < self.probe_at(awaited) {
            return false; // reports have arrived meanwhile
        }
        self.session.close(KafkaFailure { kind: FailureKind::Cluster, ..failure });
        true
    }

    /// Closes the session if another worker has held the topics of all rows in flight as stuck since the first row of the batch
    /// was sent. Otherwise the other rows of its lanes would wait as long again.
    fn closes_held(&mut self) -> bool {
        let Some(sent) = self.session.publishing_since else { return false };
        let holds = &self.relay.memory.holds;
        self.session.close_if_held(&self.batch, |topic| holds.is_stuck_since(topic, sent))
    }

    /// Closes the session if the cluster answers and only some partitions are silent. Holds their topics.
    async fn closes_stuck(&mut self, awaited: &Awaited, deadline: Instant) -> bool {
        if !self.others_work(awaited) {
            return false;
        }
        // Other rows may have been acknowledged just before all of Kafka became unavailable.
        let answers = timeout_at(deadline, self.relay.kafka.publisher.probe()).await;
        self.session.absorb(&mut self.batch);
        matches!(answers, Ok(Ok(())))
            && self.session.hold_stuck(&self.batch, awaited.rows, patience(self.relay))
    }

    /// Whether rows of other partitions were acknowledged, in this batch or another one.
    fn others_work(&self, awaited: &Awaited) -> bool {
        let acknowledged_at = self.relay.health.acknowledged_at.get();
        self.session.others_work(&self.batch, None) || acknowledged_at.is_some_and(|at| at > awaited.begun)
    }

    fn close_at_deadline(&mut self) {
        let failure = self.not_acknowledged();
        self.session.close(failure);
    }

    /// The failure of rows that are not acknowledged at the deadline, with what the client knows about the cause.
    pub(super) fn not_acknowledged(&self) -> KafkaFailure {
        let waited = self.relay.settings.limits().publish_timeout;
        let error = format!("Kafka did not acknowledge all records within the publish_timeout of {waited:?}");
        KafkaFailure::unknown(match self.session.producer.last_error(waited) {
            Some(cause) => format!("{error}. Last error of the Kafka client: {cause}"),
            None => error,
        })
    }

    /// Waits briefly after the session has closed for the reports of rows that are already being sent, even if its partitions
    /// are stuck: they may have just recovered, and these rows would be duplicates.
    async fn collect_reports(&mut self) {
        self.session.absorb(&mut self.batch);
        self.session.producer.stop(COLLECT_REPORTS_WITHIN).await;
        self.session.absorb(&mut self.batch);
    }
}

fn silence_max<P>(relay: &Relay<P>) -> Duration {
    relay.settings.limits().takeover_timeout / SILENT_SHARE
}

pub(super) fn patience<P>(relay: &Relay<P>) -> Duration {
    relay.settings.limits().publish_timeout / STUCK_SHARE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, FakeCluster, FakeProducer, Row};
    use crate::{Fate, Marks, OnRejected, Stats};
    use std::cell::{Cell, RefCell};
    use std::sync::Arc;
    use tokio::time::sleep;

    /// Sends these rows, of which all but those of `silent` are acknowledged, and waits until the deadline. Returns the topics to
    /// hold, and how many probes Kafka answered.
    async fn waited(rows: Vec<Row>, throttled: bool) -> (Vec<String>, u32) {
        let template = "events.{aggregate_type}".parse().unwrap();
        let marks = Rc::new(RefCell::new(Marks::new()));
        let cluster = Rc::new(FakeCluster::default());
        let relay = Relay::new(cluster, template, fixture::limits(), marks, Arc::new(Stats::new()));
        let silent = rows.iter().position(|row| row.0 == 101).map(|index| index as u32);
        let producer =
            FakeProducer { answers: Cell::new(true), waits: true, ..FakeProducer::keeping(silent) };
        let mut session = Session::new(producer, Rc::default());
        let mut batch = Batch::new(OnRejected::default());
        batch.rows_mut().extend(rows);
        batch.appended(ReadEnd::Complete);
        session.begin(&relay.memory.streaks);
        session.send(&relay.kafka.topics, &mut batch, 0).await;
        let mut sending = Sending { relay: &relay, session: &mut session, batch };
        let deadline = Instant::now() + relay.settings.limits().publish_timeout;
        let throttling = async {
            loop {
                if throttled {
                    relay.stats.notes.throttled(Duration::from_millis(1));
                }
                sleep(Duration::from_secs(5)).await;
            }
        };
        tokio::select! {
            biased;
            _ = throttling => unreachable!(),
            () = sending.wait_for_reports(None, deadline) => {}
        }
        let held = sending.session.held(&sending.batch);
        (held.iter().map(|held| held.topic.to_string()).collect(), relay.kafka.publisher.probes.get())
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_partition_is_held_in_the_end_although_a_quota_applies() {
        for throttled in [false, true] {
            let (held, _) = waited(vec![Row(1), Row(101)], throttled).await;
            assert_eq!(held, ["events.silent"], "throttled: {throttled}");
        }
    }

    /// A flow waits for its first rows. While later ones are acknowledged, no partition is silent.
    #[tokio::test(start_paused = true)]
    async fn rows_acknowledged_after_those_that_a_flow_waited_for_restart_the_time() {
        let template = "events.{aggregate_type}".parse().unwrap();
        let marks = Rc::new(RefCell::new(Marks::new()));
        let cluster = Rc::new(FakeCluster::default());
        let relay = Relay::new(cluster, template, fixture::limits(), marks, Arc::new(Stats::new()));
        let mut session = Session::new(FakeProducer::default(), Rc::default());
        let mut batch = Batch::new(OnRejected::default());
        batch.rows_mut().extend([Row(1), Row(2)]);
        batch.appended(ReadEnd::Complete);
        let mut sending = Sending { relay: &relay, session: &mut session, batch };
        let begun = Instant::now();
        let mut awaited = Awaited { rows: 1, undecided: 0, begun, silent_since: begun, answered_at: begun };
        sleep(Duration::from_secs(10)).await;
        sending.session.reported_at = Some(Instant::now());
        sending.batch.set(0, Fate::Acknowledged);
        sleep(Duration::from_secs(5)).await;
        sending.recount_all(&mut awaited);
        assert_eq!((awaited.rows, awaited.undecided), (2, 1));
        assert_eq!(awaited.silent_since.elapsed(), Duration::from_secs(5));
    }

    /// A probe opens a connection to each broker.
    #[tokio::test(start_paused = true)]
    async fn kafka_is_not_probed_for_a_hold_that_is_impossible() {
        let (held, probes) = waited(vec![Row(101)], false).await;
        assert!(held.is_empty());
        assert!((5..=10).contains(&probes), "{probes}: one in each third of takeover_timeout");
    }
}
