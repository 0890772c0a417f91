//! Every rule is necessary. Without it, the search finds a state that breaks an invariant. The search finds a shortest
//! path, so the length of the path is a property of the model. The tests state it, so that a change of the model is
//! noticed.

use super::configuration::Configuration;
use super::configurations::{
    BLOCKS, CALM, CUT, CYCLE, DRAWN, EXCEPTED, EXCEPTED_DRAWN, FAILOVER, FLOW, FLOW_BLOCKS, FLOW_CUT,
    FLOW_CYCLE, FLOW_EXCEPTED, FLOW_FAILOVER, FLOW_GAPS, FLOW_HOLDS, HOLDS, LATE_TOPIC, LOCKED_ROW, MARKS,
    MARKS_CYCLE, POOLER, PREPARED, REPLAY, SCANS,
};
use super::invariants::Invariant::{self, *};
use super::rules::{Rule, Rules};
use super::search::search;

/// Without the rule, this invariant breaks after at least this number of steps.
fn breaks(rule: Rule, configuration: Configuration, broken: Invariant, steps: usize) {
    let found = search(&Configuration { rules: Rules::without(rule), ..configuration });
    let Err(counterexample) = found else { panic!("no invariant breaks without {rule:?}") };
    println!("Without {rule:?}, {counterexample}");
    assert_eq!((counterexample.broken, counterexample.steps.len()), (broken, steps), "{counterexample}");
}

#[test]
fn without_the_lane_lock_rows_are_published_twice() {
    breaks(Rule::LaneLock, CALM, NoDuplicateWithoutFault, 9);
}

#[test]
fn a_snapshot_older_than_the_lane_lock_publishes_rows_twice() {
    breaks(Rule::ReadAfterLock, CALM, NoDuplicateWithoutFault, 10);
}

#[test]
fn skipping_locked_rows_lets_later_rows_overtake() {
    breaks(Rule::WholePrefix, LOCKED_ROW, Order, 7);
}

#[test]
fn reading_open_transactions_publishes_uncommitted_rows() {
    breaks(Rule::ReadCommitted, CALM, NoPhantom, 5);
}

#[test]
fn a_mark_that_waits_for_a_fixed_time_hides_a_row_that_commits_late() {
    breaks(Rule::Fence, MARKS, Order, 20);
}

#[test]
fn listing_the_writers_before_noting_the_highest_id_misses_a_writer() {
    breaks(Rule::HighestBeforeWriters, MARKS, Order, 23);
}

#[test]
fn a_fence_that_lists_only_the_lock_of_the_table_misses_a_drawn_id() {
    breaks(Rule::FenceListsSequence, DRAWN, Order, 21);
}

#[test]
fn a_read_that_ignores_the_end_of_an_excepted_transaction_misses_its_row() {
    breaks(Rule::ReadChecksExcepted, EXCEPTED, Order, 21);
}

#[test]
fn a_mark_that_stays_above_the_rows_of_an_excepted_transaction_hides_them() {
    breaks(Rule::LowerForExcepted, EXCEPTED, Order, 22);
}

#[test]
fn a_read_sent_before_an_excepted_transaction_ended_must_not_raise_the_mark() {
    breaks(Rule::ExceptedOutdate, EXCEPTED, Order, 22);
}

#[test]
fn a_transaction_excepted_before_its_id_is_known_is_not_recognized() {
    breaks(Rule::ExceptOnlyKnown, EXCEPTED_DRAWN, Order, 22);
}

#[test]
fn a_scan_sent_before_the_fence_passed_must_not_raise_the_mark() {
    breaks(Rule::ReadAfterFence, SCANS, Order, 16);
}

#[test]
fn flow_that_ignores_the_end_of_an_excepted_transaction_skips_its_row() {
    breaks(Rule::FlowChecksExcepted, FLOW_EXCEPTED, Order, 15);
}

#[test]
fn a_fence_that_compares_names_misses_a_prepared_transaction() {
    breaks(Rule::FenceCountsPrepared, PREPARED, Order, 23);
}

#[test]
fn a_read_sent_before_the_fence_passed_must_not_raise_the_mark() {
    breaks(Rule::ReadAfterFence, MARKS, Order, 16);
}

#[test]
fn a_mark_raised_before_the_commit_hides_rows_that_stay_unsent() {
    breaks(Rule::MarkAfterCommit, MARKS_CYCLE, Order, 20);
}

#[test]
fn a_mark_above_an_open_row_hides_it() {
    breaks(Rule::MarkBelowOpenRow, MARKS_CYCLE, Order, 20);
}

#[test]
fn a_mark_above_the_last_read_row_hides_unread_rows() {
    breaks(Rule::MarkUpToCut, CUT, Order, 24);
}

#[test]
fn a_mark_kept_over_a_failover_hides_ids_that_are_issued_again() {
    breaks(Rule::ForgetOnAnotherServer, FAILOVER, Order, 18);
}

#[test]
fn a_mark_kept_over_a_failover_behind_a_pooler_hides_ids_that_are_issued_again() {
    breaks(Rule::ForgetOnAnotherServer, POOLER, Order, 18);
}

#[test]
fn an_answer_from_an_older_epoch_raises_a_mark_above_ids_that_are_issued_again() {
    breaks(Rule::Epoch, FAILOVER, Order, 20);
}

#[test]
fn a_mark_that_outlives_a_hold_hides_the_held_rows() {
    breaks(Rule::HoldVersion, HOLDS, Order, 21);
}

#[test]
fn a_mark_that_only_new_holds_invalidate_hides_the_held_rows() {
    breaks(Rule::CountRemovals, HOLDS, Order, 21);
}

#[test]
fn without_a_sweep_a_row_that_is_put_back_stays_below_the_mark() {
    breaks(Rule::Sweep, REPLAY, NoLoss, 17);
}

#[test]
fn recognizing_rows_by_id_alone_settles_a_row_that_was_never_sent() {
    breaks(Rule::KnownByEvent, FAILOVER, SentOnlyAfterAcknowledgement, 12);
}

#[test]
fn an_acknowledged_set_that_keeps_covered_rows_swallows_a_replay() {
    breaks(Rule::ForgetCovered, REPLAY, SentOnlyAfterAcknowledgement, 15);
}

#[test]
fn an_acknowledged_set_that_keeps_covered_rows_never_becomes_empty() {
    breaks(Rule::ForgetCovered, CYCLE, Progress, 6);
}

#[test]
fn a_settlement_outside_the_claim_may_settle_an_id_that_was_issued_again() {
    breaks(Rule::SettleInClaim, FAILOVER, SentOnlyAfterAcknowledgement, 9);
}

#[test]
fn settling_unacknowledged_rows_loses_rows() {
    breaks(Rule::SettleAcknowledged, CYCLE, SentOnlyAfterAcknowledgement, 6);
}

#[test]
fn a_block_recorded_while_an_earlier_row_stays_unsent_hides_that_row() {
    breaks(Rule::BlockBehindNoUnsentRow, BLOCKS, NoLoss, 13);
}

#[test]
fn treating_unknown_as_success_loses_rows() {
    breaks(Rule::UnknownIsNoSuccess, CYCLE, SentOnlyAfterAcknowledgement, 6);
}

#[test]
fn a_session_that_continues_after_a_failure_leaves_a_gap() {
    breaks(Rule::CloseAtFirstFailure, CYCLE, Order, 8);
}

#[test]
fn sending_again_on_the_same_session_lets_a_later_row_overtake() {
    breaks(Rule::NoResend, CYCLE, Order, 11);
}

#[test]
fn a_new_session_that_begins_with_two_rows_may_store_only_the_second() {
    breaks(Rule::Priming, CYCLE, Order, 7);
}

#[test]
fn a_topic_that_is_created_during_a_batch_lets_a_later_row_overtake() {
    breaks(Rule::ClosedTopicStaysClosed, LATE_TOPIC, Order, 8);
}

#[test]
fn flow_after_a_cut_read_skips_rows() {
    breaks(Rule::FlowAfterWholeRead, FLOW_CUT, Order, 21);
}

#[test]
fn flow_without_gaps_skips_a_row_that_commits_late() {
    breaks(Rule::FlowKeepsGaps, FLOW, Order, 12);
}

#[test]
fn flow_that_forgets_a_gap_when_the_fence_passes_it_skips_its_row() {
    breaks(Rule::FlowReadsFencedGaps, FLOW, Order, 13);
}

#[test]
fn flow_that_drops_gaps_skips_a_row_that_commits_late() {
    breaks(Rule::FlowEndsAtGapLimit, FLOW_GAPS, Order, 12);
}

#[test]
fn flow_that_outlives_a_hold_skips_the_rows_that_were_held() {
    breaks(Rule::FlowUnderOneVersion, FLOW_HOLDS, Order, 10);
}

#[test]
fn flow_that_reads_on_after_a_refused_row_lets_later_rows_of_its_key_overtake() {
    breaks(Rule::FlowEndsAtFailure, FLOW_BLOCKS, Order, 11);
}

#[test]
fn seen_ids_that_outlive_a_failover_hide_rows_that_get_them_again() {
    breaks(Rule::FlowForgetsSeen, FLOW_FAILOVER, Order, 15);
}

#[test]
fn search_kept_for_the_next_claim_skips_rows_that_stayed_unsent() {
    breaks(Rule::FlowOfOneClaim, FLOW_CYCLE, Order, 10);
}
