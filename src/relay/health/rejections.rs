//! Rows that can never become a record may come by the thousand: the first of a run is said, and when the run has ended,
//! how many there were. Each of them is in the database.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// A run is over when none came for so long.
const QUIET: Duration = Duration::from_secs(60);
/// So many topics are told apart; those of all others are one run for each reason.
const TOPICS_MAX: usize = 100;

/// The runs under way, by topic and reason.
#[derive(Default)]
pub struct Rejections(RefCell<HashMap<(String, &'static str), Run>>);

struct Run {
    since: Instant,
    latest: Instant,
    rows: u64,
}

/// A run that is over.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended {
    /// The topic; empty if it stands for several.
    pub topic: String,
    /// Why the rows were refused.
    pub reason: &'static str,
    /// How many there were.
    pub rows: u64,
    /// From the first to the last.
    pub lasted: Duration,
}

impl Rejections {
    /// Counts a row, and tells whether it is the first of its run.
    pub fn begins(&self, topic: &str, reason: &'static str) -> bool {
        let mut runs = self.0.borrow_mut();
        let mut key = (topic.to_owned(), reason);
        if runs.len() >= TOPICS_MAX && !runs.contains_key(&key) {
            key.0.clear();
        }
        let now = Instant::now();
        let run = runs.entry(key).or_insert(Run { since: now, latest: now, rows: 0 });
        run.latest = now;
        run.rows += 1;
        run.rows == 1
    }

    /// Forgets the runs that are over, and returns those of more than one row.
    pub fn over(&self) -> Vec<Ended> {
        self.end(|run| run.latest.elapsed() > QUIET)
    }

    /// The same of all runs, since the relay ends.
    pub fn all(&self) -> Vec<Ended> {
        self.end(|_| true)
    }

    fn end(&self, is_over: impl Fn(&Run) -> bool) -> Vec<Ended> {
        let mut runs = self.0.borrow_mut();
        let over = runs.extract_if(|_, run| is_over(run));
        let ended = over.map(|((topic, reason), run)| Ended {
            topic,
            reason,
            rows: run.rows,
            lasted: run.latest - run.since,
        });
        ended.filter(|ended| ended.rows > 1).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn a_run_has_one_beginning_and_one_end() {
        let rejections = Rejections::default();
        assert!(rejections.begins("events.order", "invalid-record"));
        for _ in 0..9 {
            advance(QUIET).await;
            assert!(!rejections.begins("events.order", "invalid-record"));
            assert_eq!(rejections.over(), []);
        }
        assert!(rejections.begins("events.order", "record-too-large"), "another reason is another run");
        advance(QUIET * 2).await;
        let ended =
            Ended { topic: "events.order".to_owned(), reason: "invalid-record", rows: 10, lasted: QUIET * 9 };
        assert_eq!(rejections.over(), [ended], "one row alone was said when it came");
        assert!(rejections.begins("events.order", "invalid-record"), "the next run");
    }

    #[tokio::test(start_paused = true)]
    async fn a_topic_for_each_row_is_no_line_for_each_row() {
        let rejections = Rejections::default();
        let begun = (0..1_000).filter(|row| rejections.begins(&format!("events.{row}"), "no-topic")).count();
        assert_eq!(begun, TOPICS_MAX + 1);
        let ended = rejections.all();
        assert_eq!(ended.len(), 1);
        assert_eq!((ended[0].topic.as_str(), ended[0].rows), ("", 1_000 - TOPICS_MAX as u64));
    }
}
