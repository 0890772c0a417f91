//! Lasting conditions: an outage, a held topic, a run of rejected rows. Each is reported once when it begins and once when
//! it ends.

use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// One condition, from its first occurrence on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Episode {
    pub(crate) since: Instant,
    pub(crate) latest: Instant,
    pub times: u64,
}

impl Episode {
    pub(crate) fn begin() -> Episode {
        let now = Instant::now();
        Episode { since: now, latest: now, times: 1 }
    }

    pub(crate) fn again(&mut self) {
        self.latest = Instant::now();
        self.times += 1;
    }

    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// The time since its last occurrence.
    pub(crate) fn quiet(&self) -> Duration {
        self.latest.elapsed()
    }
}

/// The current conditions by key.
#[derive(Debug)]
pub struct Episodes<K>(BTreeMap<K, Episode>);

impl<K: Ord> Episodes<K> {
    /// Counts an occurrence. Returns true if it begins an episode, which the caller reports.
    pub fn begins(&mut self, key: K) -> bool {
        self.count(key) == 1
    }

    /// Counts an occurrence, and returns how many of its episode there are.
    pub(crate) fn count(&mut self, key: K) -> u64 {
        self.0.entry(key).and_modify(Episode::again).or_insert_with(Episode::begin).times
    }

    /// Ends the episodes for which `is_over` is true, and returns them in the order of their keys.
    pub fn end(&mut self, is_over: impl Fn(&K, &Episode) -> bool) -> Vec<(K, Episode)> {
        let (over, lasting) =
            std::mem::take(&mut self.0).into_iter().partition(|(key, episode)| is_over(key, episode));
        self.0 = lasting;
        BTreeMap::into_iter(over).collect()
    }

    pub(crate) fn contains(&self, key: &K) -> bool {
        self.0.contains_key(key)
    }

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
