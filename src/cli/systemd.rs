//! What systemd is told (`sd_notify(3)`); without it nothing happens.
//!
//! - A relay that waits for Postgres is still starting. It asks for more time before each attempt, and each request
//!   counts from its own message.
//! - READY when the schema is checked: from then on rows flow whenever both sides answer, which the status says.
//! - RELOADING, with the time, when the configuration is read again, and READY behind it: so the unit may be of the type
//!   notify or, from systemd 253 on, notify-reload.
//! - WATCHDOG when the scout and every busy worker have taken a step since the last one: a relay that waits for Postgres
//!   or Kafka takes steps, one that hangs does not.
//! - STOPPING asks for as long as the drain may take: the unit's TimeoutStopSec may be less, if only shutdown_timeout
//!   was raised.

use crate::relay::health::stats::Stats;
use sd_notify::NotifyState;
use std::convert::Infallible;
use std::time::Duration;

/// Longer than one attempt to reach Postgres takes at most, with the wait behind it.
const ATTEMPT_WITHIN: Duration = Duration::from_secs(120);
/// What ending takes beside what is in flight.
const END_WITHIN: Duration = Duration::from_secs(10);
const STATUS_EVERY: Duration = Duration::from_secs(1);

/// Another attempt to reach Postgres begins.
pub fn waiting() {
    notify(&[NotifyState::ExtendTimeoutUsec(microseconds(ATTEMPT_WITHIN))]);
}

/// The start is over.
pub fn ready(stats: &Stats) {
    notify(&[NotifyState::Ready, NotifyState::Status(&status(stats))]);
}

/// The configuration is read again; [`ready`] ends it.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!("could not notify systemd of the reload: {error}"),
    }
}

/// Feeds the watchdog, if the unit has one. If it is shorter than what two steps may take with this configuration, systemd
/// is told a longer one.
pub async fn feed_watchdog(stats: &Stats, longest_step: Duration) -> Infallible {
    let Some(period) = sd_notify::watchdog_enabled().filter(|period| !period.is_zero()) else {
        return std::future::pending().await;
    };
    let least = longest_step.saturating_mul(2);
    if period < least {
        tracing::info!(
            "WatchdogSec={period:?} is shorter than the configured timeouts require ({longest_step:?} per step), \
             set to {least:?}"
        );
        notify(&[NotifyState::WatchdogUsec(microseconds(least))]);
    }
    loop {
        stats.progress.by_all().await;
        notify(&[NotifyState::Watchdog]);
        // Not more often than it is of use.
        tokio::time::sleep(period / 8).await;
    }
}

/// The end begins, and takes no longer than this for what is in flight.
pub fn stopping(stats: &Stats, drain: Duration) {
    let within = microseconds(drain.saturating_add(END_WITHIN));
    notify(&[
        NotifyState::Stopping,
        NotifyState::ExtendTimeoutUsec(within),
        NotifyState::Status(&status(stats)),
    ]);
}

/// Keeps the status true: a change is told within a second.
pub async fn keep_status(stats: &Stats) -> Infallible {
    let mut told = String::new();
    loop {
        let now = status(stats);
        if now != told {
            notify(&[NotifyState::Status(&now)]);
            told = now;
        }
        tokio::time::sleep(STATUS_EVERY).await;
    }
}

/// One line: a line break would begin another assignment.
fn status(stats: &Stats) -> String {
    let relaying =
        if stats.is_paused() { "paused, run `outbox-relay resume` to continue" } else { "relaying" };
    stats.not_ready().unwrap_or_else(|| relaying.to_owned())
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!("could not notify systemd: {error}");
    }
}

fn microseconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}
