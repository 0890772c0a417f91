//! Which topics this relay has reported as held. Several workers may detect the same fault, and another relay or an operator
//! may end a hold.

use crate::health::episodes::Episodes;
use std::cell::RefCell;
use std::time::Duration;
use tokio::time::Instant;

/// The topics that were reported as held.
#[derive(Default)]
pub(crate) struct Holding(RefCell<Episodes<String>>);

impl Holding {
    /// Records a hold of this topic. Returns whether to report it.
    pub(crate) fn begins(&self, topic: &str) -> bool {
        self.0.borrow_mut().begins(topic.to_owned())
    }

    /// Records that this relay has released the topic. Returns how long the hold lasted, if its beginning was reported.
    pub(crate) fn ends(&self, topic: &str) -> Option<Duration> {
        self.0.borrow_mut().end(|held, _| held == topic).pop().map(|(_, hold)| hold.age())
    }

    /// `held` has all topics that were held at some time after `asked`. Ends the other holds that began before `asked`, and
    /// returns them with their durations.
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
    async fn a_hold_is_reported_once_by_several_workers_and_ends_once() {
        let holding = Holding::default();
        let listed = |topic: &str| vec![(topic.to_owned(), "stuck".to_owned())];
        let second = Duration::from_secs(1);
        assert!(holding.begins("a"));
        assert!(holding.begins("b"));
        advance(second).await;
        assert!(!holding.begins("b"), "another worker detects it");
        let asked = Instant::now();
        assert_eq!(
            holding.left(asked, &listed("a")),
            [("b".to_owned(), second)],
            "another relay or an operator has ended it"
        );
        assert_eq!(holding.ends("a"), Some(second));
        assert_eq!(holding.ends("a"), None);
        assert!(holding.begins("a"), "the next hold is another one");
        assert_eq!(holding.left(asked, &[]), [], "the query was sent before the hold began");
    }
}
