//! Runs the parts of the per-row path whose names contain the first argument, so that valgrind can count their
//! instructions. Prints each measured batch as "batch TAB rows TAB part". `scripts/instructions` calls it.

use outbox_bench::per_row::{PARTS, Part, ROWS};
use std::hint::black_box;

/// The first batch of a part also pays for one-time allocations: buffers, tables, topics. Only the last batch counts.
const BATCHES: usize = 2;

fn main() {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    for (name, make) in PARTS.iter().filter(|(name, _)| name.contains(&wanted)) {
        let mut part = make();
        for batch in 1..=BATCHES {
            part.prepare();
            counted(part.as_mut());
            println!("{batch}\t{ROWS}\t{name}");
        }
    }
}

/// valgrind counts from the call to the return, on this thread only.
#[inline(never)]
fn counted(part: &mut dyn Part) {
    one_batch(part);
    black_box(part); // Prevents a tail call, which would have no return.
}

/// When this function returns, valgrind writes its counts. It does so only for functions that were called while it was
/// already counting, so this must not be the function above.
#[inline(never)]
fn one_batch(part: &mut dyn Part) {
    part.run();
    black_box(part);
}
