//! Critical log lines of librdkafka, for example that it cannot start a thread. Each producer repeats them at each attempt,
//! and nothing reports when their cause is gone, so each kind is logged at most every ten minutes.

use relay::health::availability::Episodes;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const LOGGED_EVERY: Duration = Duration::from_secs(600);

/// The critical lines of all producers of a cluster.
#[derive(Default)]
pub(crate) struct CriticalLogs(Mutex<Episodes<String>>);

impl CriticalLogs {
    /// Logs the line, unless one of this kind was logged recently.
    pub(crate) fn log(&self, kind: &str, message: &str) {
        match self.suppressed(kind) {
            None => tracing::debug!(target: "librdkafka", "{kind}: {message}"),
            Some(suppressed) => tracing::error!(
                target: "librdkafka", code = "librdkafka_critical", suppressed,
                "{kind}: {message}. Check whether the host has run out of threads, file descriptors or memory. If \
                 events of a topic still wait afterwards, restart the relay"
            ),
        }
    }

    /// How many lines were suppressed since the last logged one. `None` if this line is suppressed too.
    fn suppressed(&self, kind: &str) -> Option<u64> {
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = kinds.end(|logged, episode| logged == kind && episode.age() >= LOGGED_EVERY).pop();
        kinds.begins(kind.to_owned()).then(|| before.map_or(0, |(_, before)| before.times - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn a_repeated_line_is_logged_every_ten_minutes() {
        let critical_logs = CriticalLogs::default();
        assert_eq!(critical_logs.suppressed("THREAD"), Some(0));
        for _ in 1..600 {
            advance(Duration::from_secs(1)).await;
            assert_eq!(critical_logs.suppressed("THREAD"), None);
        }
        assert_eq!(critical_logs.suppressed("INIT"), Some(0), "another kind");
        advance(Duration::from_secs(1)).await;
        assert_eq!(critical_logs.suppressed("THREAD"), Some(599));
    }
}
