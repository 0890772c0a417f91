//! Health: whether Kafka and Postgres are available, and what logs, metrics, `/readyz` and the watchdog report.

pub mod availability;
pub mod metrics;
pub mod stats;

use crate::health::availability::{Episode, Episodes, POSTGRES_ADVICE, rounded};
use crate::outbox::RejectedRow;
use crate::{Availability, Event, PostgresFault, Stats, reason};
use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Short locks of other sessions are normal, for example of operators' statements or deadlocks.
pub(crate) const LOCKS_PATIENCE: Duration = Duration::from_secs(5);

/// What is available, and what was reported.
pub struct Health {
    stats: Arc<Stats>,
    pub postgres: Availability,
    /// Settlements that cannot record rows because of locks of other sessions.
    pub(crate) locks: Availability,
    pub(crate) rejections: Rejections,
    /// The database's clock in microseconds since 1970, and when it was read.
    clock: Cell<Option<(i64, Instant)>>,
    pub(crate) settled_at: Cell<Option<Instant>>,
    /// The end of the last batch with acknowledged rows.
    pub(crate) acknowledged_at: Cell<Option<Instant>>,
    /// The start of the last cycle in which Kafka did not answer a session.
    pub(crate) unanswered_since: Cell<Option<Instant>>,
}

impl Health {
    pub(crate) fn new(stats: Arc<Stats>) -> Health {
        Health {
            stats,
            postgres: Availability::new("postgres", "postgres_unavailable"),
            locks: Availability::lasting("rows", "rows_locked", LOCKS_PATIENCE)
                .described("locked", "no longer locked"),
            rejections: Rejections::default(),
            clock: Cell::new(None),
            settled_at: Cell::new(None),
            acknowledged_at: Cell::new(None),
            unanswered_since: Cell::new(None),
        }
    }

    /// Records that Postgres failed for this task. `begun` is the start of the failed operation. The relay is not ready
    /// while it fails for any task.
    pub fn postgres_failed(&self, task: usize, begun: Instant, fault: &PostgresFault) {
        if self.postgres.has_ended_since(begun) {
            tracing::debug!("late postgres failure from an outage that has ended: {fault}");
            return;
        }
        self.stats.postgres.fails(fault);
        self.postgres.failed(task, fault, POSTGRES_ADVICE);
    }

    /// Records that Postgres worked for this task. It counts as available once it works for all tasks, because reads by
    /// the scout alone publish nothing.
    pub fn postgres_worked(&self, task: usize) {
        self.postgres.worked(task);
        if self.postgres.lasts().is_none() {
            self.stats.postgres.answers();
        }
    }

    /// Records that locks of other sessions stopped this task.
    pub(crate) fn locks_failed(&self, task: usize, error: &dyn Display) {
        self.locks.failed(
            task,
            error,
            "Another session has locked the outbox or some of its rows. Find the session in pg_locks and end it \
             (docs/runbook.md, OutboxRelayUnsettled). The relay then marks the rows without sending them again",
        );
    }

    pub fn note_clock(&self, clock_us: i64) {
        self.clock.set(Some((clock_us, Instant::now())));
    }

    /// Measures the latency of the oldest of these rows, which Kafka has just acknowledged. Ids are drawn in about the order
    /// of `created_at`.
    pub(crate) fn measure_latency<'a, E: Event + 'a>(&self, sent: impl Iterator<Item = &'a E>) {
        let oldest = sent.min_by_key(|row| row.id());
        let (Some(oldest), Some((clock_us, at))) = (oldest, self.clock.get()) else { return };
        let now_us = clock_us.saturating_add_unsigned(at.elapsed().as_micros() as u64);
        let late_us = now_us.saturating_sub(oldest.created_at_us()).max(0);
        self.stats.observe_latency(Duration::from_micros(late_us.unsigned_abs()));
    }

    /// Counts a rejected row. The first of a run is reported with the consequence for the row, and later ones with their number.
    pub(crate) fn rejected<E: Event>(
        &self,
        RejectedRow { row, topic, why }: &RejectedRow<'_, E>,
        consequence: &str,
    ) {
        self.stats.rejected.at([why.reason]).inc();
        // An invalid name may be as long as a row. The row contains the full name.
        let topic = topic.char_indices().nth(NAME_CHARS_MAX).map_or(*topic, |(end, _)| &topic[..end]);
        let unreadable = why.reason == reason::UNREADABLE_ROW.word;
        let (code, what) = if unreadable {
            ("event_unreadable", "event unreadable")
        } else {
            ("event_rejected", "event rejected")
        };
        let fix = || reason::fix(reason::remedy(why.reason));
        match self.rejections.counts(topic, why.reason) {
            None => tracing::debug!(
                event_id = %row.event_id(), topic, reason = why.reason,
                "another {what} for the same reason, {consequence}: {}. {}",
                why.error, fix()
            ),
            Some(1) => tracing::warn!(
                code, event_id = %row.event_id(), topic, reason = why.reason,
                "{what}, {consequence}: {}. {}", why.error, fix()
            ),
            Some(events) => tracing::warn!(
                code = "rejections_continue",
                topic,
                reason = why.reason,
                events,
                "events rejected for the same reason. {}",
                fix()
            ),
        }
    }
}

/// The longest topic name that is logged and counted.
const NAME_CHARS_MAX: usize = 300;
/// A run is over after this time without a rejected row.
const RUN_OVER_AFTER: Duration = Duration::from_secs(60);
/// The maximum number of topics with their own runs. The other topics share one run per reason.
const RUNS_MAX: usize = 100;

/// A topic, or an empty name for several topics, and why its rows are rejected.
type Run = (String, &'static str);

/// The current runs. Rejected rows may come in thousands. The first of a run is reported, then the 10th, the 100th, and so on, and
/// at its end the number of rows. Each row is in the database.
#[derive(Default)]
pub(crate) struct Rejections(RefCell<Episodes<Run>>);

impl Rejections {
    /// Counts a row. Returns how many its run has now, if the caller has to report it.
    pub(crate) fn counts(&self, topic: &str, reason: &'static str) -> Option<u64> {
        let mut runs = self.0.borrow_mut();
        let mut run = (topic.to_owned(), reason);
        if runs.len() >= RUNS_MAX && !runs.contains(&run) {
            run.0.clear();
        }
        let rows = runs.count(run);
        (10_u64.pow(rows.ilog10()) == rows).then_some(rows)
    }

    pub(crate) fn report_over(&self) {
        report(self.end(|run| run.quiet() > RUN_OVER_AFTER));
    }

    /// Reports all runs when the relay ends.
    pub(crate) fn report_all(&self) {
        report(self.end(|_| true));
    }

    /// Ends runs, and returns those of more than one row.
    fn end(&self, is_over: impl Fn(&Episode) -> bool) -> Vec<(Run, Episode)> {
        let mut ended = self.0.borrow_mut().end(|_, run| is_over(run));
        ended.retain(|(_, run)| run.times > 1);
        ended
    }
}

fn report(ended: Vec<(Run, Episode)>) {
    for ((topic, reason), run) in ended {
        let seconds = rounded(run.latest - run.since);
        let topic = (!topic.is_empty()).then_some(topic);
        tracing::info!(
            code = "rejections_ended",
            topic,
            reason,
            seconds,
            events = run.times,
            "run of rejected events ended"
        );
    }
}

/// The scout is task 0. Workers count from 1, and there are 64 at most.
const TASKS: usize = 65;
const SCOUT: usize = 0;

/// The steps of the scout and the workers, which feed the watchdog.
///
/// Only the task itself counts its steps, never a clock. Waiting for a server also counts, because every such wait ends
/// with an answer, a keep-alive to Postgres, or a timeout.
pub struct Progress {
    tasks: [Task; TASKS],
    stepped: Notify,
}

#[derive(Default)]
struct Task {
    busy: AtomicBool,
    /// Whether it has taken a step since the last check.
    stepped: AtomicBool,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        Progress { tasks: std::array::from_fn(|_| Task::default()), stepped: Notify::new() }
    }

    /// Counts a step of the scout, which is busy from the first one on.
    pub(crate) fn scouted(&self) {
        self.step(SCOUT);
    }

    /// Runs a cycle of this worker, which is busy meanwhile. Each time the cycle is woken counts as a step.
    pub(crate) async fn of<T>(&self, worker: usize, cycle: impl Future<Output = T>) -> T {
        let mut cycle = pin!(cycle);
        let done = poll_fn(|context| {
            self.step(worker);
            cycle.as_mut().poll(context)
        })
        .await;
        if let Some(task) = self.tasks.get(worker) {
            task.busy.store(false, Ordering::Relaxed);
            self.stepped.notify_one();
        }
        done
    }

    fn step(&self, task: usize) {
        if let Some(task) = self.tasks.get(task) {
            task.busy.store(true, Ordering::Relaxed);
            task.stepped.store(true, Ordering::Relaxed);
            self.stepped.notify_one();
        }
    }

    /// Waits until the scout and every busy worker has taken a step since the last call ended. For one caller.
    pub async fn by_all(&self) {
        while !self.tasks.iter().all(Task::is_alive) || !self.tasks[SCOUT].busy.load(Ordering::Relaxed) {
            self.stepped.notified().await;
        }
        for task in &self.tasks {
            task.stepped.store(false, Ordering::Relaxed);
        }
    }
}

impl Task {
    fn is_alive(&self) -> bool {
        !self.busy.load(Ordering::Relaxed) || self.stepped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::future::pending;
    use std::time::Duration;
    use tokio::time::{advance, sleep, timeout};

    #[tokio::test(start_paused = true)]
    async fn a_run_has_one_beginning_and_one_end() {
        let rejections = Rejections::default();
        assert_eq!(rejections.counts("events.order", "invalid-record"), Some(1));
        for _ in 0..9 {
            advance(RUN_OVER_AFTER).await;
            _ = rejections.counts("events.order", "invalid-record");
            assert_eq!(rejections.end(|run| run.quiet() > RUN_OVER_AFTER), []);
        }
        let other = rejections.counts("events.order", "record-too-large");
        assert_eq!(other, Some(1), "another reason is another run");
        advance(RUN_OVER_AFTER * 2).await;
        let ended = rejections.end(|run| run.quiet() > RUN_OVER_AFTER);
        assert_eq!(ended.len(), 1, "a single row is not reported again");
        let ((topic, reason), run) = &ended[0];
        assert_eq!((topic.as_str(), *reason, run.times), ("events.order", "invalid-record", 10));
        assert_eq!(run.latest - run.since, RUN_OVER_AFTER * 9);
        assert_eq!(rejections.counts("events.order", "invalid-record"), Some(1), "the next run");
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_run_is_reported_in_between() {
        let rejections = Rejections::default();
        let reported = (0..50_000).filter_map(|_| rejections.counts("events.order", "invalid-headers"));
        assert_eq!(reported.collect::<Vec<_>>(), [1, 10, 100, 1_000, 10_000]);
    }

    #[tokio::test(start_paused = true)]
    async fn rows_of_many_topics_share_one_run() {
        let rejections = Rejections::default();
        let begins = |row: &u32| rejections.counts(&format!("events.{row}"), "no-topic") == Some(1);
        assert_eq!((0..1_000).filter(begins).count(), RUNS_MAX + 1);
        let ended = rejections.end(|_| true);
        assert_eq!(ended.len(), 1);
        let ((topic, _), run) = &ended[0];
        assert_eq!((topic.as_str(), run.times), ("", 1_000 - RUNS_MAX as u64));
    }

    async fn fed(progress: &Progress) -> bool {
        timeout(Duration::from_secs(600), progress.by_all()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn each_step_counts_once() {
        let progress = Progress::new();
        assert!(!fed(&progress).await, "nothing has started");
        progress.scouted();
        assert!(fed(&progress).await);
        assert!(!fed(&progress).await, "there was no step since");
        progress.scouted();
        assert!(fed(&progress).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cycle_that_nothing_wakes_is_no_progress_even_if_the_scout_continues() {
        let progress = Progress::new();
        let mut hanging = pin!(progress.of(2, pending::<()>()));
        assert!(hanging.as_mut().now_or_never().is_none());
        progress.scouted();
        assert!(fed(&progress).await, "it has started");
        progress.scouted();
        assert!(!fed(&progress).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cycle_that_waits_for_a_server_is_progress_and_an_idle_worker_does_no_harm() {
        let progress = Progress::new();
        let waits = async {
            for _ in 0..100 {
                sleep(Duration::from_secs(3)).await;
            }
        };
        let scout = async {
            loop {
                progress.scouted();
                sleep(Duration::from_secs(1)).await;
            }
        };
        let feeding = async {
            for _ in 0..50 {
                assert!(timeout(Duration::from_secs(5), progress.by_all()).await.is_ok());
            }
        };
        tokio::select! {
            _ = async { tokio::join!(progress.of(1, waits), scout) } => unreachable!(),
            () = feeding => {}
        }
        progress.of(1, async {}).await;
        progress.scouted();
        assert!(fed(&progress).await, "the worker is idle");
        progress.scouted();
        assert!(fed(&progress).await, "it is still idle");
    }
}
