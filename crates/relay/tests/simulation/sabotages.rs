//! Tests of the simulator itself. Each world here breaks one rule, and the simulator must detect it within a number of
//! schedules. The number is chosen so that about five of them detect it. If only one did, an unrelated change of the
//! random numbers could hide it.

use super::explore::first_broken;
use super::plan::{Disaster, Plan, Sabotage};
use super::run::run;
use std::time::Duration;

/// Runs the schedules of a plan with this rule broken until the expected promise is broken. The same schedules must not
/// break any promise if the rule is followed.
pub fn must_be_caught(rule: Sabotage, plan: fn(u64) -> Plan, schedules: u64, how: &str) {
    let look = |seed| {
        let broken = run(seed, &plan(seed).breaking(rule), false).outcome.err()?;
        broken.contains(how).then_some(broken)
    };
    let caught = first_broken(1, schedules, look);
    let (seed, promise) =
        caught.unwrap_or_else(|| panic!("{rule:?} was not caught in {schedules} schedules"));
    println!("{rule:?} was caught by schedule {seed}: {promise}");
    let sound = first_broken(1, schedules, |seed| run(seed, &plan(seed), false).outcome.err());
    assert!(sound.is_none(), "a schedule breaks a promise without {rule:?}: {sound:?}");
}

/// Rows were published out of commit order.
pub const ORDER: &str = "was published before";
/// Rows count as sent although Kafka does not have them.
const SETTLED: &str = "was settled without an acknowledgement";
const DUPLICATES: &str = "are allowed";
const REAPED: &str = "was reaped before it was sent";
pub const PAUSED: &str = "was paused before its claim";
const HIDDEN: &str = "is hidden by the block of a later event";
const INNOCENT: &str = "was rejected although it is valid";
const MANY_REJECTED: &str = "valid events were rejected";

/// Long transactions next to short ones.
fn long_transactions(seed: u64) -> Plan {
    let traffic = Plan { transactions: 10, writing: Duration::from_secs(5), ..Plan::busy(seed) };
    Plan { relays: 1, keys: 3, long_transaction: 200, prepares: 0, rolls_back: 50, ..traffic }
}

/// Connections break and settlements fail.
fn faults_of_postgres(seed: u64) -> Plan {
    Plan { postgres_breaks: 40, commit_answer_lost: 60, ..long_transactions(seed) }
}

/// Commits are lost and ids issued again.
fn failovers(seed: u64) -> Plan {
    let kinds = &[Disaster::FailsOver];
    Plan { relays: 1, postgres_breaks: 40, commit_answer_lost: 300, disasters: 4, kinds, ..Plan::busy(seed) }
}

/// Ids start again at 1, several times.
fn restarted_ids(seed: u64) -> Plan {
    Plan { disasters: 3, kinds: &[Disaster::IdsRestart], ..long_transactions(seed) }
}

/// Requests fail, lose their answer, or find no leader.
fn faults_of_kafka(seed: u64) -> Plan {
    Plan { request_refused: 300, request_answer_lost: 100, session_fatal: 50, ..Plan::busy(seed) }
}

/// Events that Kafka refuses together with all rows of the same request.
fn bad_rows(seed: u64) -> Plan {
    Plan { poison: 100, request_refused: 200, ..Plan::busy(seed) }
}

/// Sessions end while requests are refused for a moment, or their answers are lost.
fn partitions_that_are_stuck(seed: u64) -> Plan {
    let kinds = &[Disaster::PartitionStuck];
    let faults = Plan { request_refused: 500, request_answer_lost: 100, ..Plan::busy(seed) };
    Plan { keys: 4, disasters: 12, kinds, ..faults }
}

fn topics_that_are_deleted_and_created(seed: u64) -> Plan {
    let kinds = &[Disaster::TopicDeleted, Disaster::TopicFlickers];
    Plan { request_refused: 200, disasters: 5, kinds, ..Plan::busy(seed) }
}

fn freezes(seed: u64) -> Plan {
    Plan { disasters: 4, kinds: &[Disaster::FreezeLong], ..Plan::busy(seed) }
}

#[test]
fn lanes_without_lock() {
    must_be_caught(Sabotage::NoLaneLock, Plan::calm, 10, DUPLICATES);
}

#[test]
fn a_snapshot_older_than_the_lane_lock() {
    must_be_caught(Sabotage::SnapshotOlderThanLock, Plan::busy, 60, DUPLICATES);
}

#[test]
fn skipping_locked_rows() {
    must_be_caught(Sabotage::RowsSkipLocked, |seed| Plan { row_locks: 5, ..Plan::calm(seed) }, 30, ORDER);
}

#[test]
fn a_mark_that_waits_for_a_fixed_time() {
    must_be_caught(Sabotage::MarkLagsByTime, long_transactions, 20, ORDER);
}

#[test]
fn a_fence_without_prepared_transactions() {
    must_be_caught(
        Sabotage::PreparedUnfenced,
        |seed| Plan { prepares: 300, ..long_transactions(seed) },
        10,
        ORDER,
    );
}

#[test]
fn a_fence_without_transactions_that_have_only_drawn_an_id() {
    let plan = |seed| Plan { draws_early: 300, ..long_transactions(seed) };
    must_be_caught(Sabotage::DrawnUnfenced, plan, 20, ORDER);
}

/// Transactions that stay open until the fence passes without them.
fn open_transactions(seed: u64) -> Plan {
    Plan { draws_early: 200, long_transaction: 600, ..long_transactions(seed) }
}

#[test]
fn a_claim_that_does_not_check_whether_an_excepted_transaction_has_ended() {
    must_be_caught(Sabotage::ClaimIgnoresExcepted, open_transactions, 60, ORDER);
}

#[test]
fn a_flow_that_does_not_check_whether_an_excepted_transaction_has_ended() {
    let plan = |seed| Plan { long_transaction: 600, ..slow_flows(seed) };
    must_be_caught(Sabotage::FlowIgnoresExcepted, plan, 500, ORDER);
}

#[test]
fn an_excepted_transaction_that_counts_as_ended_while_it_is_open() {
    must_be_caught(Sabotage::ExceptedForgotten, open_transactions, 30, ORDER);
}

#[test]
fn a_mark_raised_by_the_fence() {
    must_be_caught(Sabotage::MarkRaisedByFence, faults_of_postgres, 20, ORDER);
}

#[test]
fn a_mark_raised_before_the_commit() {
    must_be_caught(Sabotage::MarkRaisedBeforeCommit, faults_of_postgres, 20, ORDER);
}

#[test]
fn a_mark_that_outlives_a_failover() {
    must_be_caught(Sabotage::MarkKeptOverFailover, failovers, 30, ORDER);
}

#[test]
fn a_mark_that_outlives_a_hold() {
    must_be_caught(
        Sabotage::MarkKeptOverHold,
        |seed| Plan { holds_by_hand: 3, ..Plan::calm(seed) },
        150,
        ORDER,
    );
}

#[test]
fn a_mark_that_outlives_only_the_end_of_a_hold() {
    let plan = |seed| Plan { holds_by_hand: 3, ..Plan::calm(seed) };
    must_be_caught(Sabotage::MarkKeptOverRemoval, plan, 150, ORDER);
}

#[test]
fn a_mark_that_outlives_a_truncated_table() {
    must_be_caught(Sabotage::MarkKeptOverTruncate, restarted_ids, 50, ORDER);
}

#[test]
fn an_acknowledged_set_that_does_not_count_new_pauses() {
    let plan = |seed| Plan {
        relays: 1,
        postgres_breaks: 40,
        commit_answer_lost: 200,
        pauses: 6,
        ..Plan::busy(seed)
    };
    let duplicates = |seed, plan: Plan| match run(seed, &plan, false).outcome {
        Ok(outcome) => (outcome.duplicates > 0).then(|| format!("{} duplicates", outcome.duplicates)),
        Err(promise) => Some(promise),
    };
    let caught =
        first_broken(1, 250, |seed| duplicates(seed, plan(seed).breaking(Sabotage::AdditionsUncounted)));
    let (seed, what) = caught.expect("AdditionsUncounted was not caught in 250 schedules");
    println!("AdditionsUncounted was caught by schedule {seed}: {what}");
    assert!(
        first_broken(1, 250, |seed| duplicates(seed, plan(seed))).is_none(),
        "duplicates without the sabotage"
    );
}

#[test]
fn a_mark_that_outlives_a_pause() {
    must_be_caught(Sabotage::MarkKeptOverHold, |seed| Plan { pauses: 5, ..Plan::calm(seed) }, 150, ORDER);
}

#[test]
fn a_relay_that_caches_pauses() {
    must_be_caught(Sabotage::PausesCached, |seed| Plan { pauses: 5, ..Plan::calm(seed) }, 20, PAUSED);
}

#[test]
fn a_probe_of_a_paused_topic() {
    let plan = |seed| Plan { pauses: 6, ..topics_that_are_deleted_and_created(seed) };
    must_be_caught(Sabotage::ProbedThoughPaused, plan, 100, PAUSED);
}

/// This requires a pause while the answer to a probe is late, and a hold that is deleted before the resume.
/// tests/integration/failures/probes.rs has the same on real servers.
#[test]
fn late_acknowledgement_is_settled_during_a_pause() {
    let plan = |seed| Plan {
        relays: 1,
        pauses: 10,
        holds_by_hand: 12,
        disasters: 6,
        kinds: &[Disaster::LeaderChange],
        ..Plan::busy(seed)
    };
    must_be_caught(Sabotage::SettledLateUnlessPaused, plan, 500, DUPLICATES);
}

#[test]
fn settling_before_the_acknowledgement() {
    must_be_caught(Sabotage::SettledBeforeAcknowledged, Plan::calm, 5, SETTLED);
}

#[test]
fn recognizing_a_row_by_its_id_alone() {
    must_be_caught(Sabotage::RecognizedByIdAlone, failovers, 330, SETTLED);
}

#[test]
fn treating_unknown_as_success() {
    must_be_caught(Sabotage::UnknownIsSuccess, bad_rows, 20, SETTLED);
}

#[test]
fn treating_a_success_without_an_offset_as_success() {
    let plan = |seed| Plan { keys: 5, request_refused: 400, ..topics_that_are_deleted_and_created(seed) };
    must_be_caught(Sabotage::NoOffsetIsSuccess, plan, 200, SETTLED);
}

#[test]
fn sending_again_on_the_same_producer() {
    must_be_caught(Sabotage::ResentOnSameProducer, faults_of_kafka, 15, ORDER);
}

#[test]
fn sending_while_the_queue_is_purged() {
    must_be_caught(Sabotage::EnqueuedWhilePurged, faults_of_kafka, 400, ORDER);
}

#[test]
fn taking_back_queued_rows_while_later_ones_are_in_flight() {
    must_be_caught(Sabotage::QueueTakenBackAlone, partitions_that_are_stuck, 2_000, ORDER);
}

#[test]
fn a_topic_that_is_created_during_a_batch_of_the_same_session() {
    must_be_caught(Sabotage::TopicCreatedMidBatch, topics_that_are_deleted_and_created, 250, ORDER);
}

#[test]
fn a_session_that_begins_with_several_rows() {
    must_be_caught(Sabotage::NotPrimed, faults_of_kafka, 20, ORDER);
}

#[test]
fn a_producer_that_leaves_gaps_after_a_refusal() {
    must_be_caught(Sabotage::GapsAfterRefusal, bad_rows, 50, ORDER);
}

#[test]
fn a_row_that_is_rejected_with_its_batch() {
    must_be_caught(Sabotage::RejectedWithBatch, bad_rows, 30, INNOCENT);
}

#[test]
fn a_topic_that_is_never_held_for_its_rejected_rows() {
    let plan = |seed| Plan {
        relays: 1,
        rejections_before_hold: 2,
        disasters: 2,
        kinds: &[Disaster::EventsInvalid],
        ..Plan::busy(seed)
    };
    must_be_caught(Sabotage::NeverHeld, plan, 100, MANY_REJECTED);
}

/// Rows that PostgreSQL cannot read.
fn unreadable_rows(seed: u64) -> Plan {
    Plan { unreadable: 100, ..Plan::busy(seed) }
}

#[test]
fn skipping_an_unreadable_row() {
    must_be_caught(Sabotage::UnreadableSkipped, unreadable_rows, 20, ORDER);
}

#[test]
fn a_row_that_counts_as_unreadable_but_was_not_read_alone() {
    let plan = |seed| Plan { read_errors: 300, ..Plan::busy(seed) };
    must_be_caught(Sabotage::UnreadableUnproven, plan, 20, INNOCENT);
}

#[test]
fn a_key_that_is_blocked_while_an_earlier_row_stays_unsent() {
    let plan = |seed| Plan { blocks_keys: true, unsendable: 150, ..faults_of_kafka(seed) };
    must_be_caught(Sabotage::BlockedBehindOpenRow, plan, 250, HIDDEN);
}

#[test]
fn a_frozen_relay_that_settles_after_waking() {
    must_be_caught(Sabotage::SettledAfterTakeover, freezes, 50, "without the lock of its lane");
}

#[test]
fn a_probe_without_a_lease() {
    let plan = |seed| Plan {
        holds_by_hand: 8,
        writers: 3,
        transactions: 8,
        disasters: 6,
        kinds: &[Disaster::LeaderChange],
        ..Plan::calm(seed)
    };
    must_be_caught(Sabotage::LeaseIgnored, plan, 1_000, DUPLICATES);
}

#[test]
fn a_reaper_without_its_condition() {
    let plan = |seed| Plan { retention: Some(Duration::from_millis(100)), ..Plan::calm(seed) };
    must_be_caught(Sabotage::ReapsUnsent, plan, 15, REAPED);
}

#[test]
fn a_reaper_that_does_not_recheck_rows() {
    let plan = |seed| Plan {
        retention: Some(Duration::from_millis(100)),
        put_backs: 8,
        deletes_sent: false,
        ..Plan::busy(seed)
    };
    must_be_caught(Sabotage::ReapsPutBack, plan, 500, REAPED);
}

/// Flows with several writers of a key, which begin and end transactions in mid-flow.
pub fn flows(seed: u64) -> Plan {
    let window = Duration::from_millis(200);
    let traffic = Plan { transactions: 24, writing: Duration::from_millis(800), ..Plan::busy(seed) };
    Plan {
        flow_window: window,
        keys: 3,
        batch_rows: 40,
        batch_bytes: 9_000,
        long_transaction: 250,
        ..traffic
    }
}

/// More happens during a flow, because the brokers answer slowly.
pub fn slow_flows(seed: u64) -> Plan {
    Plan { brokers_slow: Duration::from_millis(100), ..flows(seed) }
}

/// Without gaps in the ids, a flow begins although other relays have some of the lanes.
pub fn flows_without_gaps(seed: u64) -> Plan {
    let without_gaps =
        Plan { rolls_back: 0, long_transaction: 0, draws_early: 0, prepares: 0, ..slow_flows(seed) };
    Plan { relays: 3, lanes: 3, keys: 5, ..without_gaps }
}

/// Flows of several relays and lanes, and operators who hold and pause.
pub fn flows_and_operators(seed: u64) -> Plan {
    Plan { pauses: 20, holds_by_hand: 20, lanes: 3, relays: 2, ..slow_flows(seed) }
}

#[test]
fn a_flow_that_forgets_gaps() {
    must_be_caught(Sabotage::FlowForgetsGaps, flows, 20, ORDER);
}

#[test]
fn a_flow_that_forgets_a_gap_when_the_fence_passes_it() {
    must_be_caught(Sabotage::FlowForgetsFencedGaps, flows, 20, ORDER);
}

#[test]
fn a_flow_that_continues_when_a_hold_has_ended() {
    must_be_caught(Sabotage::FlowUnderAnyVersion, flows_and_operators, 200, ORDER);
}

#[test]
fn a_flow_that_publishes_the_rows_of_other_lanes() {
    must_be_caught(Sabotage::FlowReadsAllLanes, flows_without_gaps, 20, ORDER);
}

#[test]
fn a_flow_that_records_rows_before_kafka_has_them() {
    must_be_caught(Sabotage::FlowRecordsNewestRow, flows, 30, SETTLED);
}
