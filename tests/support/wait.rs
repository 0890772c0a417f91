//! Waiting for a condition instead of a fixed time.

use std::time::{Duration, Instant};

/// How often a condition is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// The longest pause after a slow check.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Waits until `condition` holds, and returns how long that took. Fails the test after `within`, with `what` as the
/// condition that did not hold.
pub async fn wait_until(what: &str, within: Duration, mut condition: impl AsyncFnMut() -> bool) -> Duration {
    let begun = Instant::now();
    loop {
        let checked = Instant::now();
        if condition().await {
            return begun.elapsed();
        }
        assert!(begun.elapsed() < within, "after {within:?} this condition did not hold: {what}");
        // Counting many rows takes time. Without a pause, the checks would take CPU time from the server.
        let pause = (checked.elapsed() * 3).clamp(CHECK_INTERVAL, PAUSE_MAX);
        tokio::time::sleep(pause).await;
    }
}
