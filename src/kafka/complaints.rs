//! Critical lines of librdkafka, for instance that it gets no thread. Each producer repeats them at each attempt, and nothing
//! tells when their cause is gone: so each is said once in a while.

use crate::relay::health::episodes::Episodes;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// What was said is not said again before this.
const SAID_EVERY: Duration = Duration::from_secs(600);

/// What was said when, by all producers of a cluster.
#[derive(Default)]
pub(super) struct Complaints(Mutex<Episodes<String>>);

impl Complaints {
    /// Says it, unless something of this kind was said lately.
    pub(super) fn hear(&self, kind: &str, message: &str) {
        match self.unsaid(kind) {
            None => tracing::debug!(target: "librdkafka", "{kind}: {message}"),
            Some(unsaid) => tracing::error!(
                target: "librdkafka", unsaid,
                "{kind}: {message}. Check whether the host has run out of threads, file descriptors or memory. If a \
                 topic's events wait after that, restart the relay"
            ),
        }
    }

    /// How many were not said since the last one that was; `None` if this one is one of them.
    fn unsaid(&self, kind: &str) -> Option<u64> {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = said.end(|said, episode| said == kind && episode.age() >= SAID_EVERY).pop();
        said.begins(kind.to_owned()).then(|| before.map_or(0, |(_, before)| before.times - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn what_comes_at_each_attempt_is_said_every_ten_minutes() {
        let complaints = Complaints::default();
        assert_eq!(complaints.unsaid("THREAD"), Some(0));
        for _ in 1..600 {
            advance(Duration::from_secs(1)).await;
            assert_eq!(complaints.unsaid("THREAD"), None);
        }
        assert_eq!(complaints.unsaid("INIT"), Some(0), "another kind");
        advance(Duration::from_secs(1)).await;
        assert_eq!(complaints.unsaid("THREAD"), Some(599));
    }
}
