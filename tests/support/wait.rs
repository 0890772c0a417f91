//! Waiting for a condition instead of a fixed time.

use std::time::{Duration, Instant};

/// The longest time that a test waits for something that must happen. It is much longer than necessary, because the
/// tests run many servers on few cores.
pub const STALLED: Duration = Duration::from_secs(180);
/// How often a condition is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// The longest pause after a slow check.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Set by `make recovery`, which runs one test at a time on an otherwise idle machine.
const ALONE: &str = "OUTBOX_RELAY_TEST_ALONE";
/// How many times longer something may take while other tests use the same cores.
const NEXT_TO_OTHERS: u32 = 6;

/// How many times longer something may take now than on an otherwise idle machine.
pub fn allowance() -> u32 {
    if std::env::var_os(ALONE).is_some() { 1 } else { NEXT_TO_OTHERS }
}

/// Fails the test if `what` took longer than `limit`. The limit is for an otherwise idle machine.
pub fn assert_within(what: &str, took: Duration, limit: Duration) {
    let limit = limit * allowance();
    println!("{what}: {took:.2?}, allowed {limit:?}");
    assert!(took < limit, "{what}: {took:?}, allowed {limit:?}");
}

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
