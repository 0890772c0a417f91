//! Conditions that last: an outage, a held topic, a run of rejected rows. Each is reported when it begins and when it ends,
//! however often it occurs in between.

use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// One condition, from its first occurrence on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Episode {
    /// When it occurred first.
    pub(crate) since: Instant,
    /// When it occurred last.
    pub(crate) latest: Instant,
    /// How often it occurred.
    pub(crate) times: u64,
}

impl Episode {
    /// It occurs for the first time.
    pub(crate) fn begin() -> Episode {
        let now = Instant::now();
        Episode { since: now, latest: now, times: 1 }
    }

    /// It occurs again.
    pub(crate) fn again(&mut self) {
        self.latest = Instant::now();
        self.times += 1;
    }

    /// The time since its first occurrence.
    pub(crate) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// The time since its last occurrence.
    pub(crate) fn quiet(&self) -> Duration {
        self.latest.elapsed()
    }
}

/// The conditions that last now, each under its key.
#[derive(Debug)]
pub(crate) struct Episodes<K>(BTreeMap<K, Episode>);

impl<K: Ord> Episodes<K> {
    /// A condition occurs. True if that begins an episode, which is to be reported.
    pub(crate) fn begins(&mut self, key: K) -> bool {
        let mut begins = false;
        let begin = || {
            begins = true;
            Episode::begin()
        };
        self.0.entry(key).and_modify(Episode::again).or_insert_with(begin);
        begins
    }

    /// Ends the episodes for which `is_over` holds, and returns them in the order of their keys.
    pub(crate) fn end(&mut self, is_over: impl Fn(&K, &Episode) -> bool) -> Vec<(K, Episode)> {
        let (over, lasting) =
            std::mem::take(&mut self.0).into_iter().partition(|(key, episode)| is_over(key, episode));
        self.0 = lasting;
        BTreeMap::into_iter(over).collect()
    }

    /// Whether this condition lasts.
    pub(crate) fn contains(&self, key: &K) -> bool {
        self.0.contains_key(key)
    }

    /// How many last.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl<K> Default for Episodes<K> {
    fn default() -> Self {
        Episodes(BTreeMap::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn an_episode_begins_once_and_counts_its_occurrences() {
        let mut episodes = Episodes::default();
        assert!(episodes.begins("a"));
        assert!(episodes.begins("b"), "another condition");
        advance(SECOND).await;
        assert!(!episodes.begins("a"));
        advance(SECOND).await;
        let ended = episodes.end(|key, _| *key == "a");
        assert_eq!(ended.len(), 1);
        let (key, episode) = ended[0];
        assert_eq!((key, episode.times), ("a", 2));
        assert_eq!((episode.age(), episode.quiet()), (SECOND * 2, SECOND));
        assert!(!episodes.contains(&"a") && episodes.contains(&"b"));
        assert!(episodes.begins("a"), "the next episode");
    }

    #[tokio::test(start_paused = true)]
    async fn episodes_end_in_the_order_of_their_keys() {
        let mut episodes = Episodes::default();
        for key in [3, 1, 2, 4] {
            episodes.begins(key);
        }
        let ended = episodes.end(|key, _| *key != 4);
        assert_eq!(ended.iter().map(|(key, _)| *key).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(episodes.len(), 1);
    }
}
