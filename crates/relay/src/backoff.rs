//! The wait before the next attempt.

use std::time::Duration;

/// Exponential backoff with full jitter: the wait is random between zero and a bound that doubles, so that relays that
/// failed together do not retry together.
pub struct Backoff {
    first: Duration,
    most: Duration,
    attempts: u32,
    random: fastrand::Rng,
}

impl Backoff {
    pub fn new(first: Duration, most: Duration, random: fastrand::Rng) -> Backoff {
        Backoff { first, most, attempts: 0, random }
    }

    pub fn next_wait(&mut self) -> Duration {
        let bound = self.first.saturating_mul(1 << self.attempts.min(20)).min(self.most);
        self.attempts = self.attempts.saturating_add(1);
        bound.mul_f64(self.random.f64())
    }

    /// Starts again with short waits after a success.
    pub(crate) fn reset(&mut self) {
        self.attempts = 0;
    }

    /// How many waits there were since the last success.
    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_bound_are_random_and_start_small_after_a_reset() {
        let most = Duration::from_secs(1);
        let mut backoff = Backoff::new(Duration::from_millis(10), most, fastrand::Rng::with_seed(7));
        let waits: Vec<_> = (0..200).map(|_| backoff.next_wait()).collect();
        assert!(waits.iter().all(|wait| *wait <= most));
        assert!(waits[100..].iter().any(|wait| *wait > most.mul_f64(0.9)));
        assert!(waits[100..].iter().any(|wait| *wait < most.mul_f64(0.1)));
        backoff.reset();
        assert!(backoff.next_wait() <= Duration::from_millis(10));
    }
}
