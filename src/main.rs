//! The binary. The library does everything except setting the exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    outbox_relay::cli::main()
}
