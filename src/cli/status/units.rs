//! Formats numbers, durations and sizes.

pub(super) use crate::cli::output::{counted, thousands};
use humantime::format_duration;
use std::fmt;
use std::time::Duration;

/// Whole milliseconds below a second, whole seconds above.
pub(super) fn span(duration: Duration) -> impl fmt::Display {
    format_duration(if duration < Duration::from_secs(1) {
        Duration::from_millis(duration.as_millis() as u64)
    } else {
        Duration::from_secs(duration.as_secs())
    })
}

/// As [`span`], for a number of seconds.
pub(super) fn seconds(seconds: f64) -> impl fmt::Display {
    span(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// In the largest unit that fits.
pub(super) fn bytes(bytes: i64) -> String {
    let (kib, mib) = (bytes / 1_024, bytes as f64 / 1_048_576.0);
    if mib < 1.0 {
        format!("{kib} KiB")
    } else if mib < 1_024.0 {
        format!("{mib:.1} MiB")
    } else {
        format!("{:.1} GiB", mib / 1_024.0)
    }
}

/// One decimal below ten, none above.
pub(super) fn rate(per_second: f64) -> String {
    if per_second < 10.0 { format!("{per_second:.1}") } else { thousands(per_second.round() as usize) }
}
