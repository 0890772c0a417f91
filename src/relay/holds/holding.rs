//! Which topics this relay has reported as held: several workers find the same fault, and another relay or an operator may
//! end a hold.

use crate::relay::health::episodes::Episodes;
use std::cell::RefCell;
use std::time::Duration;
use tokio::time::Instant;

/// The topics that were reported as held.
#[derive(Default)]
pub(crate) struct Holding(RefCell<Episodes<String>>);

impl Holding {
    /// A hold of this topic was recorded. True if that is to be reported.
    pub(crate) fn begins(&self, topic: &str) -> bool {
        self.0.borrow_mut().begins(topic.to_owned())
    }

    /// This relay has lifted the hold. How long it lasted, if its beginning was reported.
    pub(crate) fn ends(&self, topic: &str) -> Option<Duration> {
        self.0.borrow_mut().end(|held, _| held == topic).pop().map(|(_, hold)| hold.age())
    }

    /// These are all topics that were held at a moment after `asked`: the others that began before are held no longer.
    pub(crate) fn left(&self, asked: Instant, held: &[(String, String)]) -> Vec<(String, Duration)> {
        let is_held = |topic: &String| held.iter().any(|(held_topic, _)| held_topic == topic);
        let gone = self.0.borrow_mut().end(|topic, hold| hold.since < asked && !is_held(topic));
        gone.into_iter().map(|(topic, hold)| (topic, hold.age())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn a_hold_is_said_once_however_many_workers_meet_it_and_whoever_ends_it() {
        let holding = Holding::default();
        let listed = |topic: &str| vec![(topic.to_owned(), "stuck".to_owned())];
        let second = Duration::from_secs(1);
        assert!(holding.begins("a"));
        assert!(holding.begins("b"));
        advance(second).await;
        assert!(!holding.begins("b"), "another worker meets it");
        let asked = Instant::now();
        assert_eq!(
            holding.left(asked, &listed("a")),
            [("b".to_owned(), second)],
            "somebody else has ended it"
        );
        assert_eq!(holding.ends("a"), Some(second));
        assert_eq!(holding.ends("a"), None);
        assert!(holding.begins("a"), "the next hold is another one");
        assert_eq!(holding.left(asked, &[]), [], "what was asked before the hold does not tell its end");
    }
}
