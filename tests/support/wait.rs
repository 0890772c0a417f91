//! Waiting for what a test is about, never for a time.

use std::time::{Duration, Instant};

/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Looks until `condition` holds, and returns how long that took. Fails the test after `within`, saying `what` did not
/// come about.
pub async fn wait_until(what: &str, within: Duration, mut condition: impl AsyncFnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !condition().await {
        assert!(begun.elapsed() < within, "after {within:?} this was still not so: {what}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    begun.elapsed()
}
