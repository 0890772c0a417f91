//! The binary: everything is in the library, this only gives the process its exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    outbox_relay::cli::main()
}
