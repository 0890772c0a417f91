//! The promises, tested over many schedules.

use super::explore::{each, explore};
use super::plan::{CALM, Disaster, Plan};
use super::run::run;
use std::time::Duration;

#[test]
fn whatever_fails_nothing_is_lost_and_first_occurrences_stay_in_order() {
    let outcome = explore(Plan::storm, 20_000);
    let repeats_one = std::env::var("SCHEDULES").is_ok_and(|schedules| schedules == "1");
    assert!(repeats_one || (outcome.duplicates > 0 && outcome.dead > 0), "nothing went wrong: {outcome:?}");
}

#[test]
fn without_a_fault_every_event_arrives_once_and_in_order() {
    let outcome = explore(Plan::calm, 500);
    assert_eq!((outcome.duplicates, outcome.dead), (0, 0), "duplicates or dead letters without a fault");
}

#[test]
fn rows_that_an_operator_puts_back_are_sent_again() {
    let plan = |seed| Plan { put_backs: 3, ..Plan::calm(seed) };
    let outcome = explore(plan, 250);
    assert!(outcome.duplicates > 0, "no row was put back");
}

#[test]
fn holds_that_change_while_claims_are_open_hide_no_row() {
    let plan = |seed| Plan {
        relays: 1,
        workers: 2,
        topics: 2,
        keys: 4,
        lanes: 2,
        writers: 3,
        transactions: 8,
        request_refused: 300,
        holds_by_hand: 6,
        answer_slow: 50,
        ..Plan::calm(seed)
    };
    let outcome = explore(plan, 250);
    assert_eq!((outcome.duplicates, outcome.dead), (0, 0), "duplicates or dead letters");
}

#[test]
fn paused_rows_are_not_claimed_and_are_published_in_order_after_resume() {
    let plan = |seed| Plan { pauses: 6, request_refused: 100, answer_slow: 50, ..Plan::calm(seed) };
    let outcome = explore(plan, 500);
    assert_eq!((outcome.duplicates, outcome.dead), (0, 0), "duplicates or dead letters");
}

/// Rows that were acknowledged but not settled before a pause are recognized after it.
#[test]
fn with_one_relay_pauses_and_broken_connections_cause_no_duplicates() {
    none_is_duplicated(|seed| Plan {
        relays: 1,
        postgres_breaks: 40,
        commit_answer_lost: 200,
        pauses: 6,
        ..Plan::busy(seed)
    });
}

#[test]
fn pauses_with_holds_blocked_keys_and_failovers_lose_and_reorder_nothing() {
    const KINDS: &[Disaster] = &[Disaster::FailsOver, Disaster::TopicDenied, Disaster::FreezeLong];
    let plan = |seed| Plan { pauses: 6, holds_by_hand: 2, poison: 60, requeues: 2, ..strikes(seed, KINDS) };
    explore(plan, 500);
}

#[test]
fn failovers_with_late_answers_lose_and_reorder_nothing() {
    let plan = |seed| Plan {
        workers: 2,
        lanes: 2,
        keys: 4,
        answer_slow: 100,
        disasters: 4,
        kinds: &[Disaster::FailsOver],
        ..Plan::busy(seed)
    };
    explore(plan, 250);
}

/// Ids are drawn again. Marks, H and the fence come from relays that have already read higher ids.
#[test]
fn restarted_ids_lose_and_reorder_nothing_and_cause_no_duplicates() {
    none_is_duplicated(|seed| Plan {
        transactions: 8,
        writing: Duration::from_secs(5),
        answer_slow: 50,
        ..strikes(seed, &[Disaster::IdsRestart])
    });
}

#[test]
fn a_claim_is_kept_alive_while_it_waits_for_kafka() {
    const KINDS: &[Disaster] =
        &[Disaster::KafkaAway, Disaster::LeaderChange, Disaster::PartitionStuck, Disaster::CutFromKafka];
    let outcome = explore(|seed| Plan { disasters: 3, kinds: KINDS, ..Plan::busy(seed) }, 250);
    assert!(outcome.interruptions > 0, "no claim had to wait");
}

#[test]
fn with_one_relay_a_topic_that_is_denied_while_connections_break_costs_no_duplicate() {
    none_is_duplicated(|seed| Plan {
        relays: 1,
        postgres_breaks: 40,
        commit_answer_lost: 200,
        ..strikes(seed, &[Disaster::TopicDenied])
    });
}

#[test]
fn with_one_relay_locked_rows_cause_no_duplicates() {
    none_is_duplicated(|seed| Plan { relays: 1, row_locks: 8, ..Plan::busy(seed) });
}

#[test]
fn judging_while_kafka_fails_keeps_the_order() {
    let plan = |seed| Plan { poison: 150, session_fatal: 150, request_refused: 200, ..Plan::busy(seed) };
    let outcome = explore(plan, 500);
    assert!(outcome.dead > 0, "no row was judged");
}

#[test]
fn stopping_a_relay_causes_no_duplicates() {
    none_is_duplicated(|seed| strikes(seed, &[Disaster::Stop]));
}

/// Acks of probes arrive when their lanes are free again.
#[test]
fn stopping_a_relay_that_probes_held_topics_causes_no_duplicates() {
    none_is_duplicated(|seed| Plan {
        relays: 1,
        holds_by_hand: 4,
        brokers_slow: Duration::from_millis(300),
        disasters: 8,
        ..strikes(seed, &[Disaster::Stop])
    });
}

/// Acks of probes arrive when their lanes are free again, and then another relay reads on in them.
#[test]
fn with_several_relays_a_late_ack_of_a_probe_causes_no_duplicates() {
    none_is_duplicated(|seed| Plan {
        relays: 3,
        workers: 1,
        writers: 3,
        transactions: 40,
        writing: Duration::from_secs(40),
        topics: 3,
        lanes: 1,
        flow_window: Duration::from_secs(3),
        brokers_slow: Duration::from_millis(400),
        disasters: 12,
        ..strikes(seed, &[Disaster::TopicDenied])
    });
}

#[test]
fn changing_limits_at_runtime_causes_no_duplicates() {
    none_is_duplicated(|seed| Plan {
        disasters: 6,
        request_refused: 100,
        ..strikes(seed, &[Disaster::Reload])
    });
}

#[test]
fn with_one_relay_a_postgres_outage_causes_no_duplicates() {
    none_is_duplicated(|seed| Plan {
        relays: 1,
        postgres_breaks: 20,
        commit_answer_lost: 100,
        ..strikes(seed, &[Disaster::PostgresRestarts, Disaster::CutFromPostgres])
    });
}

#[test]
fn a_freeze_below_two_thirds_of_takeover_timeout_causes_no_duplicates() {
    none_is_duplicated(|seed| strikes(seed, &[Disaster::FreezeShort]));
}

#[test]
fn a_takeover_duplicates_at_most_the_rows_in_flight() {
    let plan = |seed| Plan { disasters: 1, kinds: &[Disaster::FreezeLong], ..Plan::calm(seed) };
    each(plan, 250, "one duplicate more than the rows in flight", |plan, outcome| {
        outcome.duplicates <= plan.workers * plan.batch_rows + 1
    });
}

#[test]
fn refused_requests_and_lost_answers_cause_no_duplicates() {
    none_is_duplicated(|seed| Plan {
        request_refused: 100,
        request_answer_lost: 60,
        ..strikes(seed, &[Disaster::LeaderChange])
    });
}

#[test]
fn a_topic_that_is_deleted_and_created_again_causes_no_duplicates() {
    none_is_duplicated(|seed| strikes(seed, &[Disaster::TopicDeleted, Disaster::TopicFlickers]));
}

fn none_is_duplicated(plan: fn(u64) -> Plan) {
    each(plan, 250, "no duplicates, no dead letters", |_, outcome| {
        (outcome.duplicates, outcome.dead) == (0, 0)
    });
}

fn strikes(seed: u64, kinds: &'static [Disaster]) -> Plan {
    Plan { disasters: 3, kinds, ..Plan::calm(seed) }
}

#[test]
fn a_killed_relay_duplicates_at_most_the_rows_in_flight() {
    let plan = |seed| Plan { disasters: 1, kinds: &[Disaster::Kill, Disaster::HostLost], ..Plan::calm(seed) };
    each(plan, 250, "no more duplicates than rows in flight", |plan, outcome| {
        outcome.duplicates <= plan.workers * plan.batch_rows
    });
}

#[test]
fn a_postgres_crash_duplicates_at_most_the_rows_of_lost_settlements() {
    let plan =
        |seed| Plan { relays: 1, disasters: 1, kinds: &[Disaster::PostgresCrashes], ..Plan::calm(seed) };
    each(plan, 250, "no more duplicates than settlements_lost", |_, outcome| {
        outcome.duplicates <= outcome.settlements_lost
    });
}

#[test]
fn a_bad_row_causes_no_duplicates_and_affects_only_itself() {
    let plan = |seed| Plan { poison: 100, unsendable: 30, requeues: 1, ..Plan::calm(seed) };
    let outcome = explore(plan, 500);
    assert!(outcome.duplicates == 0 && outcome.dead > 0, "{outcome:?}");
}

/// A block hides its whole key, so it must not be recorded before the rows before it are settled.
#[test]
fn a_refused_row_hides_no_earlier_row_of_its_key() {
    let plan = |seed| Plan {
        blocks_keys: true,
        unsendable: 150,
        poison: 50,
        session_fatal: 50,
        request_refused: 200,
        row_locks: 4,
        requeues: 1,
        ..Plan::busy(seed)
    };
    explore(plan, 500);
}

#[test]
fn an_unreadable_row_causes_no_duplicates_and_affects_only_its_key() {
    let plan = |seed| Plan { unreadable: 60, requeues: 3, ..Plan::calm(seed) };
    let outcome = explore(plan, 500);
    assert!(outcome.duplicates == 0 && outcome.dead > 0, "{outcome:?}");
}

#[test]
fn unreadable_rows_and_postgres_faults_lose_and_reorder_nothing() {
    let plan = |seed| Plan {
        unreadable: 100,
        poison: 50,
        requeues: 2,
        put_backs: 2,
        pauses: 2,
        postgres_breaks: 20,
        commit_answer_lost: 100,
        row_locks: 3,
        ..strikes(seed, &[Disaster::FailsOver, Disaster::Kill, Disaster::TopicDenied])
    };
    explore(plan, 500);
}

#[test]
fn a_statement_timeout_that_allows_few_lanes_does_not_stop_progress() {
    let plan = |seed| Plan { lanes_in_time: 1 + seed as usize % 5, ..Plan::calm(seed) };
    let outcome = explore(plan, 250);
    assert_eq!((outcome.duplicates, outcome.dead), (0, 0), "duplicates or dead letters");
}

#[test]
fn holds_that_cannot_be_recorded_cause_no_duplicates() {
    let plan = |seed| Plan {
        relays: 1,
        hold_locks: 6,
        ..strikes(seed, &[Disaster::TopicDenied, Disaster::TopicDeleted])
    };
    each(plan, 250, "no duplicates, no dead letters", |_, outcome| {
        (outcome.duplicates, outcome.dead) == (0, 0)
    });
}

#[test]
fn a_topic_that_rejects_everything_is_held_after_a_few_rows() {
    let plan = |seed| Plan {
        rejections_before_hold: 2,
        blocks_keys: false,
        ..strikes(seed, &[Disaster::TopicRejects])
    };
    let outcome = explore(plan, 250);
    assert!(outcome.duplicates == 0 && outcome.dead > 0, "{outcome:?}");
}

#[test]
fn a_topic_whose_events_are_all_invalid_is_held_after_a_few() {
    let plan = |seed| Plan {
        rejections_before_hold: 2,
        blocks_keys: false,
        ..strikes(seed, &[Disaster::EventsInvalid])
    };
    let outcome = explore(plan, 250);
    assert!(outcome.duplicates == 0 && outcome.dead > 0, "{outcome:?}");
}

/// The probe's row is in flight without the lock of its lane if the leader takes long to answer.
#[test]
fn a_hold_that_is_deleted_during_its_probe_causes_no_duplicates() {
    none_is_duplicated(|seed| Plan {
        relays: 1,
        writers: 3,
        transactions: 8,
        holds_by_hand: 8,
        disasters: 6,
        ..strikes(seed, &[Disaster::LeaderChange])
    });
}

/// The topic is held and released again and again, because another relay reaches its leader.
#[test]
fn a_relay_cut_off_from_one_leader_loses_and_reorders_nothing() {
    let plan = |seed| Plan {
        relays: 2,
        workers: 1,
        writers: 3,
        transactions: 60,
        writing: Duration::from_secs(60),
        topics: 2,
        rolls_back: 0,
        long_transaction: 0,
        prepares: 0,
        disasters: 1,
        kinds: &[Disaster::CutFromLeader],
        ..Plan::calm(seed)
    };
    let outcome = explore(plan, 100);
    assert!(outcome.stuck > 0, "no topic was held: {outcome:?}");
    assert_eq!(outcome.dead, 0);
}

/// The output of a failure describes what happened: the same seed gives the same run, with or without a history.
#[test]
fn a_seed_repeats_its_run() {
    for seed in 1..=200 {
        let plan = Plan::storm(seed);
        let (first, second) = (run(seed, &plan, false), run(seed, &plan, true));
        assert_eq!(first.fingerprint, second.fingerprint, "seed {seed}");
        assert_eq!(first.outcome, second.outcome, "seed {seed}");
    }
    let other = run(1, &CALM, false).fingerprint;
    assert_ne!(run(2, &CALM, false).fingerprint, other, "the fingerprint ignores the events");
}
