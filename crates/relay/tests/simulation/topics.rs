//! Topics that something other than the aggregate type determines: the rows of one key go to several topics, and rows of several
//! aggregate types share a topic.

use super::explore::explore;
use super::plan::{Disaster, Plan, Sabotage, TopicsBy};
use super::sabotages::{ORDER, PAUSED, must_be_caught};
use std::time::Duration;

/// Three topics, of which each key uses all, by event type or by the column.
fn topics(seed: u64, plan: Plan) -> Plan {
    let topics_by = if seed % 4 < 2 { TopicsBy::EventType } else { TopicsBy::Column };
    Plan { topics_by, topics: 3, ..plan }
}

/// Operators hold and pause topics and keys all the time, and topics come and go.
fn held_and_paused(seed: u64) -> Plan {
    let kinds = &[Disaster::TopicDeleted, Disaster::TopicDenied, Disaster::PartitionStuck];
    topics(seed, Plan { holds_by_hand: 6, pauses: 6, disasters: 3, kinds, ..Plan::busy(seed) })
}

/// Keys that are blocked by refused rows, in topics of which some are held.
fn blocked(seed: u64) -> Plan {
    let refused = Plan { blocks_keys: true, unsendable: 100, poison: 50, ..Plan::busy(seed) };
    topics(seed, Plan { requeues: 4, holds_by_hand: 3, ..refused })
}

#[test]
fn topics_of_events_lose_and_reorder_nothing_whatever_fails() {
    let outcome = explore(|seed| topics(seed, Plan::storm(seed)), 4_000);
    assert!(outcome.duplicates > 0 && outcome.dead > 0, "nothing went wrong: {outcome:?}");
}

#[test]
fn without_a_fault_every_event_arrives_once_in_its_own_topic() {
    let outcome = explore(|seed| topics(seed, Plan::calm(seed)), 300);
    assert_eq!((outcome.duplicates, outcome.dead), (0, 0), "duplicates or dead letters without a fault");
}

#[test]
fn held_and_paused_topics_of_a_key_lose_and_reorder_nothing() {
    explore(held_and_paused, 1_000);
}

#[test]
fn flows_over_held_and_paused_topics_of_a_key_lose_and_reorder_nothing() {
    let plan = |seed| Plan {
        flow_window: Duration::from_millis(100),
        transactions: 40,
        batch_rows: 40,
        batch_bytes: 9_000,
        ..held_and_paused(seed)
    };
    let outcome = explore(plan, 500);
    assert!(outcome.flowed > 0, "{outcome:?}");
}

#[test]
fn a_blocked_key_keeps_its_order_in_every_topic() {
    explore(blocked, 1_000);
}

#[test]
fn topics_that_are_held_and_paused_by_aggregate_type_alone() {
    must_be_caught(Sabotage::TopicsByTypeAlone, held_and_paused, 50, PAUSED);
}

#[test]
fn keys_that_are_blocked_by_aggregate_type_alone() {
    must_be_caught(Sabotage::KeysByTypeAlone, blocked, 200, ORDER);
}
