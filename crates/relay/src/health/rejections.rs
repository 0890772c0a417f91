//! Rejected rows may come in thousands. The first of a run is reported, then the 10th, the 100th, and so on, and at its end the
//! number of rows. Each row is in the database.

use crate::health::episodes::{Episode, Episodes};
use std::cell::RefCell;
use std::time::Duration;

/// A run is over after this time without a rejected row.
const QUIET: Duration = Duration::from_secs(60);
/// The maximum number of topics with their own runs. The other topics share one run per reason.
const TOPICS_MAX: usize = 100;

/// A topic, or an empty name for several topics, and why its rows are rejected.
type Run = (String, &'static str);

/// The current runs.
#[derive(Default)]
pub(crate) struct Rejections(RefCell<Episodes<Run>>);

impl Rejections {
    /// Counts a row. Returns how many its run has now, if the caller has to report it.
    pub(crate) fn counts(&self, topic: &str, reason: &'static str) -> Option<u64> {
        let mut runs = self.0.borrow_mut();
        let mut run = (topic.to_owned(), reason);
        if runs.len() >= TOPICS_MAX && !runs.contains(&run) {
            run.0.clear();
        }
        let rows = runs.count(run);
        (10_u64.pow(rows.ilog10()) == rows).then_some(rows)
    }

    pub(crate) fn report_over(&self) {
        report(self.end(|run| run.quiet() > QUIET));
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
        let seconds = super::outage::rounded(run.latest - run.since);
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn a_run_has_one_beginning_and_one_end() {
        let rejections = Rejections::default();
        assert_eq!(rejections.counts("events.order", "invalid-record"), Some(1));
        for _ in 0..9 {
            advance(QUIET).await;
            _ = rejections.counts("events.order", "invalid-record");
            assert_eq!(rejections.end(|run| run.quiet() > QUIET), []);
        }
        let other = rejections.counts("events.order", "record-too-large");
        assert_eq!(other, Some(1), "another reason is another run");
        advance(QUIET * 2).await;
        let ended = rejections.end(|run| run.quiet() > QUIET);
        assert_eq!(ended.len(), 1, "a single row is not reported again");
        let ((topic, reason), run) = &ended[0];
        assert_eq!((topic.as_str(), *reason, run.times), ("events.order", "invalid-record", 10));
        assert_eq!(run.latest - run.since, QUIET * 9);
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
        assert_eq!((0..1_000).filter(begins).count(), TOPICS_MAX + 1);
        let ended = rejections.end(|_| true);
        assert_eq!(ended.len(), 1);
        let ((topic, _), run) = &ended[0];
        assert_eq!((topic.as_str(), run.times), ("", 1_000 - TOPICS_MAX as u64));
    }
}
