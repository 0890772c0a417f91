//! Rows that operators set back to unsent.

use super::explore::explore;
use super::plan::Plan;

#[test]
fn rows_that_an_operator_puts_back_are_sent_again() {
    let plan = |seed| Plan { put_backs: 3, ..Plan::calm(seed) };
    let outcome = explore(plan, 250);
    assert!(outcome.duplicates > 0, "no row was put back");
}

/// A relay that does not know whether its settlement was committed may still have the row in its acknowledged set.
#[test]
fn rows_that_are_put_back_after_a_lost_answer_are_sent_again() {
    let outcome = explore(put_back_after_lost_answers, 250);
    assert!(outcome.duplicates > 0, "no row was put back");
}

/// The answers of commits are lost, rows stay locked, and rows are put back, also while their key is paused.
pub fn put_back_after_lost_answers(seed: u64) -> Plan {
    let faults = Plan { commit_answer_lost: 300, postgres_breaks: 40, row_locks: 4, ..Plan::busy(seed) };
    Plan { put_backs: 8, pauses: 6, deletes_sent: false, retention: None, ..faults }
}
