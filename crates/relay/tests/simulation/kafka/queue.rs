//! The rows that a producer sends to one partition: at most two requests in flight, retried in order until each is
//! answered.

use super::broker::{Answer, Place};
use super::cluster::{failure, missing};
use super::producer::Shared;
use crate::event::SimEvent;
use crate::plan::Sabotage;
use relay::failure::{FailureKind, KafkaFailure};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The maximum number of requests in flight to a partition.
const WINDOW: usize = 2;
/// The maximum number of rows in a request.
const REQUEST_ROWS: u64 = 3;
/// How long a topic may be missing before its rows fail: `topic.metadata.propagation.max.ms`.
const MISSING_MAX: Duration = Duration::from_secs(3);
/// The maximum delay of requests from an abandoned producer.
const LATE_MAX_MS: u64 = 30_000;
/// The maximum time between two answers on a connection.
const ANSWERS_APART_MS: u64 = 200;
/// `retry.backoff.max.ms`.
const RETRY_MOST: Duration = Duration::from_secs(1);

/// The rows of one partition.
#[derive(Default)]
pub struct Queue {
    pub waiting: VecDeque<Row>,
    /// Requests in flight, in order.
    window: VecDeque<Request>,
    pub producer: u64,
    /// The client raises it to send requests again after an earlier one has failed. Sequence numbers then begin at 0 again.
    epoch: u32,
    next: u64,
    /// The first sequence number that is not acknowledged.
    acknowledged: u64,
    /// The number of rows that were accepted.
    pub accepted: u32,
    missing_since: Option<Instant>,
    pub running: bool,
}

/// A row in flight. The outcome of a row without an index is not reported.
#[derive(Clone, Copy)]
pub struct Row {
    pub index: Option<u32>,
    pub event: SimEvent,
}

#[derive(Clone)]
struct Request {
    first: u64,
    rows: Vec<Row>,
    /// It was refused for a moment and waits in the client's queue until it is sent again. Later requests may be in flight.
    queued: bool,
}

impl Queue {
    /// Continues as another producer.
    pub fn restart(&mut self, producer: u64) {
        (self.producer, self.epoch, self.next, self.acknowledged) = (producer, 0, 0, 0);
    }

    /// Takes out the rows that are not in flight, or some of those that wait.
    pub fn take_queued(&mut self, half: bool) -> Vec<Row> {
        if half {
            return self.waiting.drain(..self.waiting.len().div_ceil(2)).collect();
        }
        let (queued, in_flight) = self.window.drain(..).partition(|request| request.queued);
        self.window = in_flight;
        let queued: VecDeque<Request> = queued;
        queued.into_iter().flat_map(|request| request.rows).chain(self.waiting.drain(..)).collect()
    }

    /// The rows in flight.
    pub fn in_flight(&self) -> impl Iterator<Item = Row> {
        self.window.iter().flat_map(|request| request.rows.iter().copied())
    }

    fn return_to_queue(&mut self, first: u64) {
        if let Some(request) = self.window.iter_mut().find(|request| request.first == first) {
            request.queued = true;
        }
    }

    /// Sends the rows in flight again under a new epoch, because a request before them was not stored.
    fn raise_epoch(&mut self) {
        (self.epoch, self.next, self.acknowledged) = (self.epoch + 1, 0, 0);
        for request in &mut self.window {
            request.first = self.next;
            self.next += request.rows.len() as u64;
        }
    }

    fn fill_window(&mut self, mut random: impl FnMut() -> u64) {
        while self.window.len() < WINDOW && !self.waiting.is_empty() {
            let rows = self.waiting.len().min(1 + random() as usize);
            let rows: Vec<Row> = self.waiting.drain(..rows).collect();
            let first = self.next;
            self.next += rows.len() as u64;
            self.window.push_back(Request { first, rows, queued: false });
        }
    }
}

/// Sends waiting rows until none are left or the producer cannot send any more.
pub async fn send(shared: Rc<Shared>, to: Place) {
    let (world, process) = (Rc::clone(&shared.cluster.broker.world), Rc::clone(&shared.cluster.process));
    let mut retries = 0;
    loop {
        process.thawed().await;
        let abandoned = {
            let mut state = shared.state.borrow_mut();
            let (abandoned, dead) = (state.abandoned, state.dead);
            let queue = state.queue(to);
            if !abandoned {
                queue.window.iter_mut().for_each(|request| request.queued = dead);
            }
            if dead {
                return;
            }
            queue.fill_window(|| world.below(REQUEST_ROWS));
            queue.running = !queue.window.is_empty();
            if !queue.running {
                return;
            }
            state.abandoned
        };
        if abandoned {
            // The request in flight is in the network. It arrives late, in one piece, or never.
            if world.happens(500) {
                world.pass(LATE_MAX_MS).await;
                arrive(&shared, to);
            }
            return;
        }
        world.pass(3).await;
        let answers = arrive(&shared, to);
        world.pass(3).await;
        if !world.plan.brokers_slow.is_zero() {
            sleep(world.plan.brokers_slow).await;
        }
        process.thawed().await;
        if shared.state.borrow().abandoned {
            return;
        }
        match process_answers(&shared, to, &answers).await {
            Progress::Made => retries = 0,
            Progress::Stalled => {
                sleep(Duration::from_millis(50 << retries.min(5)).min(RETRY_MOST)).await;
                retries += 1;
            }
            Progress::Ended => return,
        }
    }
}

/// Delivers every request in flight, in order. They share one connection, so nothing happens between them, but the
/// connection may break between any two.
fn arrive(shared: &Shared, to: Place) -> Vec<(u64, Answer)> {
    let (broker, world) = (&shared.cluster.broker, &shared.cluster.broker.world);
    let (producer, epoch, acknowledged, window) = {
        let mut state = shared.state.borrow_mut();
        let queue = state.queue(to);
        (queue.producer, queue.epoch, queue.acknowledged, queue.window.clone())
    };
    let mut answers = Vec::with_capacity(window.len());
    for request in &window {
        let process = &shared.cluster.process;
        if broker.is_unavailable() || process.has_lost_kafka() || process.has_lost_leader(to) {
            answers.push((request.first, Answer::Silence));
            break;
        }
        // Not modeled, because nothing prevents it (docs/guarantees.md, Not guaranteed): if a topic is deleted and created
        // again during a session, it may accept a request at any sequence number, although an earlier one was refused or
        // taken back.
        let was_known = acknowledged > 0 || epoch > 0;
        if was_known
            && request.first > acknowledged
            && broker.is_new_to(producer, to)
            && !world.breaks(Sabotage::NoOffsetIsSuccess)
        {
            answers.push((request.first, Answer::Silence));
            break;
        }
        let rows: Vec<SimEvent> = request.rows.iter().map(|row| row.event).collect();
        let answer = broker.request((producer, epoch), to, request.first, &rows);
        if world.fails(world.plan.request_answer_lost) {
            shared.state.borrow_mut().unknown = true;
            world.note("Kafka's answer is lost, to producer", producer);
            answers.push((request.first, Answer::Silence));
            break;
        }
        answers.push((request.first, answer));
    }
    answers
}

enum Progress {
    Made,
    Stalled,
    Ended,
}

async fn process_answers(shared: &Shared, to: Place, answers: &[(u64, Answer)]) -> Progress {
    let world = &shared.cluster.broker.world;
    let (mut progress, mut skipped) = (Progress::Stalled, false);
    for (place, (first, answer)) in answers.iter().enumerate() {
        if matches!(answer, Answer::Retry | Answer::Missing) {
            shared.state.borrow_mut().queue(to).return_to_queue(*first);
            if place + 1 < answers.len() {
                // The next answer arrives a moment later.
                world.pass(ANSWERS_APART_MS).await;
            }
            if shared.state.borrow().abandoned {
                return Progress::Ended;
            }
        }
        let outcome = match answer {
            Answer::Stored => Ok(()),
            Answer::NoOffset if world.breaks(Sabotage::NoOffsetIsSuccess) => Ok(()),
            Answer::NoOffset => Err(KafkaFailure::unknown("acknowledged without an offset")),
            Answer::OutOfOrder if *first > shared.state.borrow_mut().queue(to).acknowledged => {
                skipped = true;
                continue;
            }
            Answer::Retry | Answer::Silence if world.breaks(Sabotage::ResentOnSameProducer) => {
                resend_at_the_end(shared, to, *first);
                return Progress::Stalled;
            }
            Answer::Retry | Answer::Silence => continue,
            Answer::Missing => match is_permanently_missing(shared, to) {
                true => return fail_topic(shared, to),
                false => continue,
            },
            Answer::Denied => {
                return fail(shared, to, *first, &failure(FailureKind::Topic, "not-authorized"));
            }
            Answer::Invalid => return fail(shared, to, *first, &failure(FailureKind::Row, "invalid-record")),
            Answer::TooLarge => {
                return fail(shared, to, *first, &failure(FailureKind::Row, "record-too-large"));
            }
            Answer::OutOfOrder | Answer::Fatal => {
                return fail(shared, to, *first, &failure(FailureKind::Session, "producer-fatal"));
            }
        };
        let rows = {
            let mut state = shared.state.borrow_mut();
            let queue = state.queue(to);
            queue.missing_since = None;
            let at = queue.window.iter().position(|request| request.first == *first);
            let request = at.and_then(|at| queue.window.remove(at));
            request.map(|request| {
                queue.acknowledged = request.first + request.rows.len() as u64;
                request.rows
            })
        };
        for row in rows.into_iter().flatten() {
            shared.report(&row, outcome.clone());
        }
        progress = Progress::Made;
    }
    if skipped {
        shared.state.borrow_mut().queue(to).raise_epoch();
    }
    progress
}

/// Metadata takes some time to spread, so a topic that has just been deleted may exist again in time.
fn is_permanently_missing(shared: &Shared, to: Place) -> bool {
    let at_once = shared.cluster.broker.world.breaks(Sabotage::TopicCreatedMidBatch);
    let mut state = shared.state.borrow_mut();
    let since = state.queue(to).missing_since.get_or_insert_with(Instant::now);
    at_once || since.elapsed() >= MISSING_MAX
}

/// The topic is missing. The client fails its queued rows of the topic and accepts more. None of them was sent, so no
/// sequence number is used.
fn fail_topic(shared: &Shared, to: Place) -> Progress {
    let one_by_one = shared.cluster.broker.world.breaks(Sabotage::TopicCreatedMidBatch);
    let rows: Vec<Row> = {
        let mut state = shared.state.borrow_mut();
        let queue = state.queue(to);
        queue.missing_since = None;
        if let Some(request) = queue.window.front() {
            queue.next = request.first;
        }
        let mut rows: Vec<Row> = queue.window.drain(..).flat_map(|request| request.rows).collect();
        if !one_by_one {
            rows.extend(queue.waiting.drain(..));
        }
        rows
    };
    for row in rows {
        shared.report(&row, Err(missing()));
    }
    if one_by_one { Progress::Stalled } else { Progress::Made }
}

/// A request was refused permanently. Other requests in flight may still be stored.
fn fail(shared: &Shared, to: Place, refused: u64, failure: &KafkaFailure) -> Progress {
    let world = &shared.cluster.broker.world;
    let gaps = world.breaks(Sabotage::GapsAfterRefusal) || world.breaks(Sabotage::EnqueuedWhilePurged);
    let window: Vec<Request> = {
        let mut state = shared.state.borrow_mut();
        let producer = gaps.then(|| shared.cluster.broker.new_producer());
        let queue = state.queue(to);
        if let Some(producer) = producer {
            queue.restart(producer);
        }
        queue.window.drain(..).collect()
    };
    for request in window {
        let outcome =
            if request.first == refused { failure.clone() } else { KafkaFailure::unknown("after a failure") };
        for row in &request.rows {
            shared.report(row, Err(outcome.clone()));
        }
    }
    shared.die();
    if gaps { Progress::Made } else { Progress::Ended }
}

/// What a producer does if it gives up a request and sends its rows again: they follow the rows that were sent in the
/// meantime.
fn resend_at_the_end(shared: &Shared, to: Place, first: u64) {
    let producer = shared.cluster.broker.new_producer();
    let mut state = shared.state.borrow_mut();
    let queue = state.queue(to);
    let window: Vec<Request> = queue.window.drain(..).collect();
    queue.restart(producer);
    let (timed_out, others): (Vec<_>, Vec<_>) =
        window.into_iter().partition(|request| request.first == first);
    for row in others.into_iter().flat_map(|request| request.rows).rev() {
        queue.waiting.push_front(row);
    }
    queue.waiting.extend(timed_out.into_iter().flat_map(|request| request.rows));
}
