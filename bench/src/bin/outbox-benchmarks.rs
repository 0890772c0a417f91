//! The comparison with Debezium. The library contains the code; this file only returns its exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    outbox_bench::compare::main()
}
