//! Keeps the memory of the process, which contains secrets and payloads, out of core dumps.

use std::env;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// Set to `1` to allow core dumps and debuggers.
pub const CORE_VARIABLE: &str = "OUTBOX_RELAY_ALLOW_CORE_DUMPS";

/// Makes the process not dumpable: the kernel writes no core dump, and other processes of the same user can neither attach a
/// debugger nor read `/proc/PID/mem` and `/proc/PID/environ`. A program that it starts is dumpable again.
pub fn hide() {
    if env::var_os(CORE_VARIABLE).is_some_and(|value| value == "1") {
        return;
    }
    // It fails only if a filter of system calls forbids it. The limit of the service, LimitCORE=0, remains.
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        eprintln!("warning: cannot disable core dumps, which contain secrets: {error}");
    }
}
