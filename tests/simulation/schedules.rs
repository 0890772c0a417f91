//! The promises, over many schedules.

use super::explore::explore;
use super::plan::Plan;

#[test]
fn without_a_fault_every_event_arrives_once_and_in_order() {
    let outcome = explore(Plan::calm, 2_000);
    assert_eq!((outcome.duplicates, outcome.dead), (0, 0), "duplicates or dead letters without a fault");
}

#[test]
fn whatever_fails_nothing_is_lost_and_first_occurrences_stay_in_order() {
    explore(Plan::storm, 20_000);
}
