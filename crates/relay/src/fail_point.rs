//! Named points of the cycle at which a test stops a relay, in order to kill it there, or makes it panic.
//!
//! Without the feature `fail-points`, which releases do not have, points compile to nothing. With it, the variable
//! `OUTBOX_RELAY_FAIL_POINT` selects a point:
//!
//! | Value | Effect |
//! |---|---|
//! | `NAME` | the first task that reaches the point waits there forever |
//! | `NAME:3` | as above, at the third time |
//! | `NAME:3:panic` | as above, but panics |

#[cfg(not(feature = "fail-points"))]
pub fn reach(_name: &'static str) -> std::future::Ready<()> {
    std::future::ready(())
}

/// Marks the point with this name. Waits forever if the point is selected.
#[cfg(feature = "fail-points")]
pub async fn reach(name: &'static str) {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    static SELECTED: LazyLock<Option<String>> =
        LazyLock::new(|| std::env::var("OUTBOX_RELAY_FAIL_POINT").ok());
    static REACHED: AtomicU32 = AtomicU32::new(0);

    let mut selected = SELECTED.iter().flat_map(|selected| selected.split(':'));
    if selected.next() != Some(name) {
        return;
    }
    let time = selected.next().map_or(Ok(1), str::parse);
    if time != Ok(REACHED.fetch_add(1, Ordering::Relaxed) + 1) {
        return;
    }
    tracing::info!("fail point {name} reached");
    assert!(selected.next() != Some("panic"), "fail point {name} panics");
    std::future::pending::<()>().await;
}
