//! The binary. The library contains the code; this file only returns its exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    outbox_bench::cli::main()
}
