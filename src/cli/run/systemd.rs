//! Notifies systemd (`sd_notify(3)`). Does nothing without systemd.
//!
//! - A relay that waits for Postgres or a migration is still starting. It extends the start timeout before each attempt.
//! - READY after the schema check. From then on, the status shows whether Kafka and Postgres answer.
//! - RELOADING, with the time, before a reload, and READY after it. The unit may therefore be of the type notify or, since
//!   systemd 253, notify-reload.
//! - WATCHDOG after the scout and every busy worker have taken a step since the last one. A relay that waits for Postgres
//!   or Kafka takes steps; one that hangs does not.
//! - STOPPING extends the stop timeout to the time that the drain may take, because TimeoutStopSec may be shorter than
//!   shutdown_timeout.

use relay::health::stats::Stats;
use sd_notify::NotifyState;
use std::convert::Infallible;
use std::time::Duration;

/// Longer than the wait between two attempts to reach Postgres.
const ATTEMPT_AGAIN_WITHIN: Duration = Duration::from_secs(15);
/// How long the shutdown takes in addition to the drain.
const END_WITHIN: Duration = Duration::from_secs(10);
const STATUS_EVERY: Duration = Duration::from_secs(1);

/// An attempt to reach Postgres takes at most `longest_attempt`.
pub(crate) fn waiting(longest_attempt: Duration) {
    let within = microseconds(longest_attempt.saturating_add(ATTEMPT_AGAIN_WITHIN));
    notify(&[NotifyState::ExtendTimeoutUsec(within)]);
}

pub(crate) fn ready(stats: &Stats) {
    notify(&[NotifyState::Ready, NotifyState::Status(&status(stats))]);
}

pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!("could not notify systemd of the reload: {error}"),
    }
}

/// Feeds the watchdog, if the unit has one. Makes its timeout longer if two steps may take longer with the configuration, which a
/// reload can change.
pub(crate) async fn feed_watchdog(stats: &Stats, longest_step: impl Fn() -> Duration) -> Infallible {
    let Some(period) = sd_notify::watchdog_enabled().filter(|period| !period.is_zero()) else {
        return std::future::pending().await;
    };
    let mut granted = period;
    loop {
        let (step, least) = (longest_step(), longest_step().saturating_mul(2));
        if granted < least {
            tracing::info!(
                "WatchdogSec={granted:?} is shorter than the configured timeouts require ({step:?} per step), extended to {least:?}"
            );
            notify(&[NotifyState::WatchdogUsec(microseconds(least))]);
            granted = least;
        }
        stats.progress.by_all().await;
        notify(&[NotifyState::Watchdog]);
        // There is no point in feeding it more often.
        tokio::time::sleep(period / 8).await;
    }
}

/// The shutdown may wait for events in flight for `drain`.
pub(crate) fn stopping(stats: &Stats, drain: Duration) {
    let within = microseconds(drain.saturating_add(END_WITHIN));
    notify(&[
        NotifyState::Stopping,
        NotifyState::ExtendTimeoutUsec(within),
        NotifyState::Status(&status(stats)),
    ]);
}

/// Keeps the status up to date, with a delay of at most a second.
pub(crate) async fn keep_status(stats: &Stats) -> Infallible {
    let mut shown = String::new();
    loop {
        let now = status(stats);
        if now != shown {
            notify(&[NotifyState::Status(&now)]);
            shown = now;
        }
        tokio::time::sleep(STATUS_EVERY).await;
    }
}

/// A single line, because a line break would begin another assignment.
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
