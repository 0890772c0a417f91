//! Why the server ended a session. The client library passes that error only to the task that drives the connection.
//! Every later statement on the connection fails without it.

use relay::failure::PostgresFault;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The error of the client library for a statement on a connection that has ended.
const CLOSED: &str = "connection closed";
/// A claim notices the end of its session at the latest when it is kept alive.
const RECENT: Duration = Duration::from_secs(30);

/// The error with which the server last ended a session of this process, until a fault is explained by it.
#[derive(Clone, Default)]
pub(crate) struct Ending(Arc<Mutex<Option<(Instant, String)>>>);

impl Ending {
    /// Notes that the server has ended a session with this error.
    pub(crate) fn note(&self, error: String) {
        *self.latest() = Some((Instant::now(), error));
    }

    /// Replaces the message "connection closed" of a fault by the error with which the server has just ended a session.
    pub(crate) fn explain(&self, fault: PostgresFault) -> PostgresFault {
        if fault.message != CLOSED {
            return fault;
        }
        match self.latest().take().filter(|(at, _)| at.elapsed() <= RECENT) {
            Some((_, error)) => PostgresFault {
                message: format!("the server ended one of this relay's sessions: {error}"),
                ..fault
            },
            None => fault,
        }
    }

    fn latest(&self) -> MutexGuard<'_, Option<(Instant, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::fault::unavailable;
    use tokio::time::advance;

    fn explained(ending: &Ending, message: &str) -> String {
        ending.explain(unavailable("testing", message)).message
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_session_explains_one_fault() {
        let ending = Ending::default();
        assert_eq!(explained(&ending, CLOSED), CLOSED);
        ending.note("timeout (SQLSTATE 25P03)".to_owned());
        assert_eq!(explained(&ending, "disk full"), "disk full", "a fault with its own error");
        assert_eq!(
            explained(&ending, CLOSED),
            "the server ended one of this relay's sessions: timeout (SQLSTATE 25P03)"
        );
        assert_eq!(explained(&ending, CLOSED), CLOSED, "it is explained once");
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_end_of_a_session_explains_nothing() {
        let ending = Ending::default();
        ending.note("timeout (SQLSTATE 25P03)".to_owned());
        advance(RECENT + Duration::from_millis(1)).await;
        assert_eq!(explained(&ending, CLOSED), CLOSED);
    }
}
