//! Critical lines of librdkafka, for instance that it gets no thread. Each producer repeats them at each attempt, and nothing
//! tells when their cause is gone: so each is said once in a while.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What was said is not said again before this.
const SAID_EVERY: Duration = Duration::from_secs(600);

/// What was said when, by all producers of a cluster.
#[derive(Default)]
pub(super) struct Complaints(Mutex<HashMap<String, Said>>);

struct Said {
    at: Instant,
    unsaid: u64,
}

impl Complaints {
    /// Says it, unless something of this kind was said lately.
    pub(super) fn hear(&self, kind: &str, message: &str) {
        match self.unsaid(kind, Instant::now()) {
            None => tracing::debug!(target: "librdkafka", "{kind}: {message}"),
            Some(unsaid) => tracing::error!(
                target: "librdkafka", unsaid,
                "{kind}: {message}. What to do: look whether the host lacks threads, files or memory; if events of a topic \
                 wait after that, restart the relay"
            ),
        }
    }

    /// How many were not said since the last one that was; `None` if this one is one of them.
    fn unsaid(&self, kind: &str, now: Instant) -> Option<u64> {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match said.get_mut(kind) {
            Some(said) if now.duration_since(said.at) < SAID_EVERY => {
                said.unsaid += 1;
                None
            }
            _ => {
                let before = said.insert(kind.to_owned(), Said { at: now, unsaid: 0 });
                Some(before.map_or(0, |before| before.unsaid))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_at_each_attempt_is_said_every_ten_minutes() {
        let complaints = Complaints::default();
        let begun = Instant::now();
        assert_eq!(complaints.unsaid("THREAD", begun), Some(0));
        for second in 1..600 {
            assert_eq!(complaints.unsaid("THREAD", begun + Duration::from_secs(second)), None);
        }
        assert_eq!(complaints.unsaid("INIT", begun), Some(0), "another kind");
        assert_eq!(complaints.unsaid("THREAD", begun + SAID_EVERY), Some(599));
    }
}
