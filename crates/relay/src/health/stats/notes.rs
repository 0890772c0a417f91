//! What `/readyz`, `status` and `doctor` add while the relay is ready.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long a change of the number of partitions is shown, and how many of them are.
const CHANGES_SHOWN_FOR: Duration = Duration::from_secs(3_600);
const CHANGES_SHOWN: usize = 3;
/// How long a quota counts after its last report. The client reports once in ten seconds, and a request may be delayed for longer.
const THROTTLED_FOR: Duration = Duration::from_secs(60);

/// The notes of one process.
#[derive(Default)]
pub struct Notes {
    changes: Mutex<VecDeque<(Instant, String)>>,
    /// When the brokers last delayed requests because of a quota, and for how long.
    throttled: Mutex<Option<(Instant, Duration)>>,
}

impl Notes {
    /// Records that a topic has another number of partitions.
    pub(crate) fn partitions_changed(&self, topic: &str, before: u32, now: u32) {
        let text = format!("topic {topic} has {now} partitions instead of {before}");
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        changes.truncate(CHANGES_SHOWN - 1);
        changes.push_front((Instant::now(), text));
    }

    /// Records that a broker has delayed requests for this long, because of a quota.
    pub fn throttled(&self, delay: Duration) {
        *self.throttled.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), delay));
    }

    /// For how long a broker has delayed requests recently, because of a quota.
    pub(crate) fn throttle(&self) -> Option<Duration> {
        let throttled = *self.throttled.lock().unwrap_or_else(PoisonError::into_inner);
        throttled.filter(|(at, _)| at.elapsed() < THROTTLED_FOR).map(|(_, delay)| delay)
    }

    /// "ready", and the notes on the same line.
    pub(crate) fn ready(&self) -> String {
        let mut text = "ready".to_owned();
        if let Some(delay) = self.throttle() {
            text += &format!("; throttled by a quota of the brokers, for up to {delay:.1?} per request");
        }
        for (at, change) in &*self.changes.lock().unwrap_or_else(PoisonError::into_inner) {
            let age = at.elapsed();
            if age < CHANGES_SHOWN_FOR {
                text += &format!("; {change} (noticed {} min ago)", age.as_secs() / 60);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn the_latest_changes_are_shown_for_an_hour() {
        let notes = Notes::default();
        assert_eq!(notes.ready(), "ready");
        for partitions in 2..10 {
            notes.partitions_changed("a", partitions - 1, partitions);
        }
        advance(Duration::from_secs(150)).await;
        assert_eq!(notes.ready().matches("instead of").count(), CHANGES_SHOWN);
        let latest = "ready; topic a has 9 partitions instead of 8 (noticed 2 min ago)";
        assert!(notes.ready().starts_with(latest), "{}", notes.ready());
        advance(CHANGES_SHOWN_FOR).await;
        assert_eq!(notes.ready(), "ready");
    }

    #[tokio::test(start_paused = true)]
    async fn a_quota_is_shown_until_a_minute_after_its_last_report() {
        let notes = Notes::default();
        notes.throttled(Duration::from_millis(9_800));
        assert_eq!(notes.ready(), "ready; throttled by a quota of the brokers, for up to 9.8s per request");
        advance(THROTTLED_FOR).await;
        assert_eq!((notes.throttle(), notes.ready().as_str()), (None, "ready"));
    }
}
