//! Named points of the cycle at which a test stops a relay, to kill it just there, or makes it panic.
//!
//! Without the feature `fail-points`, which releases do not have, a point is nothing. With it, the variable
//! `OUTBOX_RELAY_FAIL_POINT` asks for one:
//!
//! | value | |
//! |---|---|
//! | `NAME` | whoever reaches it first waits there for ever |
//! | `NAME:3` | whoever reaches it the third time |
//! | `NAME:3:panic` | panics instead |

/// A task of the relay has come to the point of this name.
#[cfg(not(feature = "fail-points"))]
pub(crate) fn reach(_name: &'static str) -> std::future::Ready<()> {
    std::future::ready(())
}

/// A task of the relay has come to the point of this name. Waits for ever if this is the one that was asked for.
#[cfg(feature = "fail-points")]
pub(crate) async fn reach(name: &'static str) {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    static ASKED: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("OUTBOX_RELAY_FAIL_POINT").ok());
    static REACHED: AtomicU32 = AtomicU32::new(0);

    let mut asked = ASKED.iter().flat_map(|asked| asked.split(':'));
    if asked.next() != Some(name) {
        return;
    }
    let time = asked.next().map_or(Ok(1), str::parse);
    if time != Ok(REACHED.fetch_add(1, Ordering::Relaxed) + 1) {
        return;
    }
    tracing::info!("fail point {name} reached");
    assert!(asked.next() != Some("panic"), "fail point {name} panics");
    std::future::pending::<()>().await;
}
