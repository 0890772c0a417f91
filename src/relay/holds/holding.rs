//! Which topics this relay has said to be held: several workers meet the same fault, and another relay or a person may end
//! a hold.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// The topics that were said to be held, and since when.
#[derive(Default)]
pub struct Holding(RefCell<HashMap<String, Instant>>);

impl Holding {
    /// A hold of this topic was recorded. True if that is to be said.
    pub fn begins(&self, topic: &str) -> bool {
        let mut said = self.0.borrow_mut();
        let begins = !said.contains_key(topic);
        if begins {
            said.insert(topic.to_owned(), Instant::now());
        }
        begins
    }

    /// This relay has lifted the hold. How long it lasted, if its beginning was said.
    pub fn ends(&self, topic: &str) -> Option<Duration> {
        self.0.borrow_mut().remove(topic).map(|since| since.elapsed())
    }

    /// These are all topics that were held at a moment after `asked`: the others that began before are held no longer.
    pub fn left(&self, asked: Instant, held: &[(String, String)]) -> Vec<(String, Duration)> {
        let mut said = self.0.borrow_mut();
        let gone = said.extract_if(|topic, since| {
            *since < asked && !held.iter().any(|(held_topic, _)| held_topic == topic)
        });
        gone.map(|(topic, since)| (topic, since.elapsed())).collect()
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
