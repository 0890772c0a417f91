//! What a producer sends to one partition: up to two requests under way, repeated in order until each is answered.

use super::broker::{Answer, Place};
use super::cluster::{failure, missing};
use super::producer::Shared;
use crate::event::SimEvent;
use crate::plan::Sabotage;
use outbox_relay::relay::failure::{Failure, FailureKind};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Requests that may be under way to a partition at once.
const WINDOW: usize = 2;
/// Rows a request, at most.
const REQUEST_ROWS: u64 = 3;
/// So long a topic may be missing before its rows fail, `topic.metadata.propagation.max.ms`.
const MISSING_MAX: Duration = Duration::from_secs(3);
/// Requests of a producer that was given up arrive this late at the most.
const LATE_MAX_MS: u64 = 30_000;
/// `retry.backoff.max.ms`.
const RETRY_MOST: Duration = Duration::from_secs(1);

/// One partition's rows.
#[derive(Default)]
pub struct Queue {
    pub waiting: VecDeque<Row>,
    /// Requests under way, the first one first.
    window: VecDeque<Request>,
    pub producer: u64,
    next: u64,
    /// Rows that were handed over.
    pub accepted: u32,
    missing_since: Option<Instant>,
    pub running: bool,
}

/// A row on its way; without an index nobody hears of it.
#[derive(Clone, Copy)]
pub struct Row {
    pub index: Option<u32>,
    pub event: SimEvent,
}

#[derive(Clone)]
struct Request {
    first: u64,
    rows: Vec<Row>,
}

impl Queue {
    /// Goes on as another producer.
    pub fn begin_anew(&mut self, producer: u64) {
        (self.producer, self.next) = (producer, 0);
    }

    fn fill_window(&mut self, mut random: impl FnMut() -> u64) {
        while self.window.len() < WINDOW && !self.waiting.is_empty() {
            let rows = self.waiting.len().min(1 + random() as usize);
            let rows: Vec<Row> = self.waiting.drain(..rows).collect();
            let first = self.next;
            self.next += rows.len() as u64;
            self.window.push_back(Request { first, rows });
        }
    }
}

/// Sends what is waiting until nothing is, or the producer can send nothing more.
pub async fn send(shared: Rc<Shared>, to: Place) {
    let (world, process) = (Rc::clone(&shared.cluster.broker.world), Rc::clone(&shared.cluster.process));
    let mut retries = 0;
    loop {
        process.thawed().await;
        let abandoned = {
            let mut state = shared.state.borrow_mut();
            let queue = state.queue(to);
            queue.fill_window(|| world.below(REQUEST_ROWS));
            queue.running = !queue.window.is_empty();
            if !queue.running {
                return;
            }
            state.abandoned
        };
        if abandoned {
            // What was under way is in the network: it arrives late, in one piece, or never.
            if world.happens(500) {
                world.pass(LATE_MAX_MS).await;
                arrive(&shared, to);
            }
            return;
        }
        world.pass(3).await;
        let answers = arrive(&shared, to);
        world.pass(3).await;
        process.thawed().await;
        if shared.state.borrow().abandoned {
            return;
        }
        match take_in(&shared, to, &answers) {
            Heard::Something => retries = 0,
            Heard::Nothing => {
                sleep(Duration::from_millis(50 << retries.min(5)).min(RETRY_MOST)).await;
                retries += 1;
            }
            Heard::TheEnd => return,
        }
    }
}

/// Every request under way arrives, in order: they are in one connection, so nothing happens between them, but it
/// may end between any two.
fn arrive(shared: &Shared, to: Place) -> Vec<(u64, Answer)> {
    let (broker, world) = (&shared.cluster.broker, &shared.cluster.broker.world);
    let (producer, window) = {
        let mut state = shared.state.borrow_mut();
        let queue = state.queue(to);
        (queue.producer, queue.window.clone())
    };
    let mut answers = Vec::with_capacity(window.len());
    for request in &window {
        let process = &shared.cluster.process;
        if broker.is_away() || process.has_lost_kafka() || process.has_lost_leader(to) {
            answers.push((request.first, Answer::Silence));
            break;
        }
        let rows: Vec<SimEvent> = request.rows.iter().map(|row| row.event).collect();
        let is_new =
            broker.is_new_to(producer, to, request.first) && !world.breaks(Sabotage::NoOffsetIsSuccess);
        let answer = broker.request(producer, to, request.first, &rows);
        if is_new && answer != Answer::Stored {
            // Not modelled, since nothing excludes it: a topic that was deleted and created again in mid-session
            // refuses a request, and takes the one behind it at any sequence number.
            answers.push((request.first, answer));
            break;
        }
        if world.fails(world.plan.request_answer_lost) {
            shared.state.borrow_mut().unknown = true;
            world.note("an answer of Kafka is lost, to producer", producer);
            answers.push((request.first, Answer::Silence));
            break;
        }
        answers.push((request.first, answer));
    }
    answers
}

enum Heard {
    Something,
    Nothing,
    TheEnd,
}

fn take_in(shared: &Shared, to: Place, answers: &[(u64, Answer)]) -> Heard {
    let world = &shared.cluster.broker.world;
    let mut heard = Heard::Nothing;
    for (place, (first, answer)) in answers.iter().enumerate() {
        let outcome = match answer {
            Answer::Stored => Ok(()),
            Answer::NoOffset if world.breaks(Sabotage::NoOffsetIsSuccess) => Ok(()),
            Answer::NoOffset => Err(Failure::unknown("acknowledged without an offset")),
            Answer::OutOfOrder if place > 0 => continue,
            Answer::Retry | Answer::Silence if world.breaks(Sabotage::ResentOnSameProducer) => {
                resend_behind(shared, to, *first);
                return Heard::Nothing;
            }
            Answer::Retry | Answer::Silence => continue,
            Answer::Missing => match is_missing_for_good(shared, to) {
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
            at.and_then(|at| queue.window.remove(at)).map(|request| request.rows)
        };
        for row in rows.into_iter().flatten() {
            shared.report(&row, outcome.clone());
        }
        heard = Heard::Something;
    }
    heard
}

/// Metadata takes a while to spread, so a topic that has just gone may be back in time.
fn is_missing_for_good(shared: &Shared, to: Place) -> bool {
    let at_once = shared.cluster.broker.world.breaks(Sabotage::TopicCreatedMidBatch);
    let mut state = shared.state.borrow_mut();
    let since = state.queue(to).missing_since.get_or_insert_with(Instant::now);
    at_once || since.elapsed() >= MISSING_MAX
}

/// The topic is gone: the client fails what it has for it, and takes more. None of it was sent, so no sequence number
/// is used up.
fn fail_topic(shared: &Shared, to: Place) -> Heard {
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
    if one_by_one { Heard::Nothing } else { Heard::Something }
}

/// A request was refused for good. What else is under way may be stored.
fn fail(shared: &Shared, to: Place, refused: u64, failure: &Failure) -> Heard {
    let world = &shared.cluster.broker.world;
    let gaps = world.breaks(Sabotage::GapsAfterRefusal) || world.breaks(Sabotage::EnqueuedWhilePurged);
    let window: Vec<Request> = {
        let mut state = shared.state.borrow_mut();
        let producer = gaps.then(|| shared.cluster.broker.new_producer());
        let queue = state.queue(to);
        if let Some(producer) = producer {
            queue.begin_anew(producer);
        }
        queue.window.drain(..).collect()
    };
    for request in window {
        let outcome =
            if request.first == refused { failure.clone() } else { Failure::unknown("after a failure") };
        for row in &request.rows {
            shared.report(row, Err(outcome.clone()));
        }
    }
    shared.die();
    if gaps { Heard::Something } else { Heard::TheEnd }
}

/// What a producer does that gives up a request and sends its rows again: they come behind what is sent meanwhile.
fn resend_behind(shared: &Shared, to: Place, first: u64) {
    let producer = shared.cluster.broker.new_producer();
    let mut state = shared.state.borrow_mut();
    let queue = state.queue(to);
    let window: Vec<Request> = queue.window.drain(..).collect();
    queue.begin_anew(producer);
    let (timed_out, others): (Vec<_>, Vec<_>) =
        window.into_iter().partition(|request| request.first == first);
    for row in others.into_iter().flat_map(|request| request.rows).rev() {
        queue.waiting.push_front(row);
    }
    queue.waiting.extend(timed_out.into_iter().flat_map(|request| request.rows));
}
