//! A panic ends the process.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::PanicHookInfo;
use std::process::abort;

/// Makes every panic log its message and abort the process, because a relay with a dead task must not look healthy. Rows in
/// flight are claimed again after the restart.
pub fn abort_on_panic() {
    let unlogged = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if tracing::dispatcher::has_been_set() {
            log(panic);
        } else {
            unlogged(panic);
        }
        abort();
    }));
}

fn log(panic: &PanicHookInfo<'_>) {
    let message = panic.payload_as_str().unwrap_or("no message");
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    tracing::error!(code = "internal_error", place, "internal error, aborting: {message}");
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        tracing::error!("{backtrace}");
    }
}
