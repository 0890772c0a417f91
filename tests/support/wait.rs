//! Waiting for what a test is about, never for a time.

use std::time::{Duration, Instant};

/// How often a condition is checked.
const CHECK_EVERY: Duration = Duration::from_millis(10);
/// The longest pause after a check that took long.
const PAUSE_AT_MOST: Duration = Duration::from_millis(100);

/// Checks until `condition` holds, and returns how long that took. Fails the test after `within`, naming `what` did not
/// happen.
pub async fn wait_until(what: &str, within: Duration, mut condition: impl AsyncFnMut() -> bool) -> Duration {
    let begun = Instant::now();
    loop {
        let checked = Instant::now();
        if condition().await {
            return begun.elapsed();
        }
        assert!(begun.elapsed() < within, "after {within:?} this was still not so: {what}");
        // A count of many rows takes a while: checked without a pause, it would take the server from what it waits for.
        let pause = (checked.elapsed() * 3).clamp(CHECK_EVERY, PAUSE_AT_MOST);
        tokio::time::sleep(pause).await;
    }
}
