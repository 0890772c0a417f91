//! Tests that the checker detects every broken guarantee.

use super::*;

fn event(key: &str, seq: i64, poison: bool) -> Committed {
    Committed {
        event_id: Uuid::from_u64_pair(key.as_bytes()[0].into(), seq as u64),
        topic: "t".into(),
        key: key.into(),
        seq,
        value: Digest([seq as u8; 32]),
        poison,
    }
}

/// Three events of key a, one valid and one poison event of key b.
fn ledger() -> Vec<Committed> {
    vec![
        event("a", 1, false),
        event("a", 2, false),
        event("a", 3, false),
        event("b", 1, false),
        event("b", 2, true),
    ]
}

fn stored(event: &Committed, offset: i64) -> Stored {
    Stored {
        topic: event.topic.to_string(),
        partition: 0,
        offset,
        appended_ms: 1_000 + offset,
        event_id: Some(event.event_id),
        key: Some(event.key.to_string()),
        value: Some(event.value),
    }
}

fn dead(event: &Committed) -> DeadLetter {
    DeadLetter { event_id: event.event_id, reason: "record-too-large".to_owned(), value: Some(event.value) }
}

/// The verdict if the events with these indices are stored in this order and the poison is in the dead letters.
fn verdict_on(order: &[usize]) -> Verdict {
    judge(order, |_| {}, &[4])
}

fn judge(order: &[usize], change: impl Fn(&mut Vec<Stored>), dead_letters: &[usize]) -> Verdict {
    let ledger = ledger();
    let mut records: Vec<Stored> =
        order.iter().enumerate().map(|(offset, index)| stored(&ledger[*index], offset as i64)).collect();
    change(&mut records);
    let mut checker = Checker::new(ledger.clone());
    records.iter().for_each(|record| checker.record(record));
    dead_letters.iter().for_each(|index| checker.dead_letter(&dead(&ledger[*index])));
    checker.finish()
}

#[test]
fn events_in_order_pass_with_other_events_between_them() {
    for order in [[0, 1, 2, 3], [3, 0, 1, 2], [0, 3, 1, 2]] {
        let verdict = verdict_on(&order);
        assert!(verdict.is_sound(), "{verdict}");
        assert_eq!((verdict.events, verdict.records, verdict.dead_lettered), (5, 4, 1));
        assert!(verdict.duplicates_ms.is_empty(), "{verdict}");
    }
}

#[test]
fn lost_event_is_found() {
    let verdict = verdict_on(&[0, 2, 3]);
    assert_eq!((verdict.lost.count, verdict.reordered.count), (1, 0));
    assert!(verdict.lost.described[0].contains("seq: 2"), "{verdict}");
    assert!(!verdict.is_sound());
}

#[test]
fn missing_poison_event_is_found() {
    let verdict = judge(&[0, 1, 2, 3], |_| {}, &[]);
    assert_eq!(verdict.lost.count, 1);
    assert!(!verdict.is_sound());
}

#[test]
fn uncommitted_record_is_found() {
    let rolled_back = |records: &mut Vec<Stored>| records.push(stored(&event("c", 1, false), 4));
    let nameless = |records: &mut Vec<Stored>| records.push(Stored { event_id: None, ..records[0].clone() });
    for verdict in [judge(&[0, 1, 2, 3], rolled_back, &[4]), judge(&[0, 1, 2, 3], nameless, &[4])] {
        assert_eq!(verdict.phantom.count, 1);
        assert!(!verdict.is_sound());
    }
}

#[test]
fn duplicates_are_counted_with_their_times_and_do_not_affect_the_order() {
    let verdict = verdict_on(&[0, 1, 0, 1, 2, 3, 3]);
    assert!(verdict.is_sound(), "{verdict}");
    assert_eq!(verdict.duplicates_ms, [1_002, 1_003, 1_006]);
}

#[test]
fn first_records_out_of_order_are_found() {
    let verdict = verdict_on(&[0, 2, 1, 2, 3]);
    assert_eq!((verdict.reordered.count, verdict.duplicates_ms.len()), (1, 1));
    assert!(verdict.reordered.described[0].contains("seq 2 after 3"), "{verdict}");
    assert!(!verdict.is_sound());
}

#[test]
fn key_that_changes_its_partition_is_found() {
    let verdict = judge(&[0, 1, 2, 3], |records| records[1].partition = 7, &[4]);
    assert_eq!(verdict.reordered.count, 1);
}

#[test]
fn changed_topic_key_or_value_of_a_duplicate_is_found() {
    let change = |records: &mut Vec<Stored>| {
        records[0].value = None;
        records[1].key = Some("b".to_owned());
        records[2].topic = "u".to_owned();
        records[4].value = Some(Digest([9; 32]));
    };
    let verdict = judge(&[0, 1, 2, 3, 3], change, &[4]);
    assert_eq!((verdict.altered.count, verdict.duplicates_ms.len()), (4, 1));
    assert!(!verdict.is_sound());
}

#[test]
fn dead_letter_that_is_not_poison_is_found() {
    let verdict = judge(&[0, 1, 2], |_| {}, &[3, 4]);
    assert_eq!((verdict.wrongly_dead.count, verdict.lost.count), (1, 0));
    assert!(!verdict.is_sound());
}

#[test]
fn repeated_and_uncommitted_dead_letters_are_found() {
    assert_eq!(judge(&[0, 1, 2, 3], |_| {}, &[4, 4]).wrongly_dead.count, 1);
    let mut checker = Checker::new([]);
    checker.dead_letter(&dead(&ledger()[4]));
    assert_eq!(checker.finish().phantom.count, 1);
}

#[test]
fn dead_letter_that_is_also_stored_is_reported_but_breaks_nothing() {
    let verdict = judge(&[0, 1, 2, 3, 4], |_| {}, &[4]);
    assert_eq!((verdict.dead_and_stored.count, verdict.duplicates_ms.len()), (1, 0));
    assert!(verdict.is_sound(), "{verdict}");
}

#[test]
#[should_panic(expected = "two writers took the same turn")]
fn ledger_with_two_writers_in_one_turn_is_rejected() {
    let twin = Committed { event_id: Uuid::from_u128(7), ..event("a", 1, false) };
    Checker::new([event("a", 1, false), twin]);
}
