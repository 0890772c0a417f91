//! Runs each part of the per-row path, or those whose names hold the first argument, for valgrind to count. Says which
//! it ran: "batch TAB rows TAB part". `scripts/instructions` calls it.

use microbench::{PARTS, Part, ROWS};
use std::hint::black_box;

/// The first batch of a part also pays for what is made once: buffers, tables, topics. The last one is what counts.
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

/// valgrind counts from the call to the return, on this thread alone.
#[inline(never)]
fn counted(part: &mut dyn Part) {
    one_batch(part);
    black_box(part); // Else this were a jump to the function, and no return to be seen.
}

/// At its return valgrind writes down what it has counted. It does so for no function that it was not counting when it
/// was called, so this is not the one above.
#[inline(never)]
fn one_batch(part: &mut dyn Part) {
    part.run();
    black_box(part);
}
