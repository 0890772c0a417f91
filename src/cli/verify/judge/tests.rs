use super::*;
use kafka::operate::reader::Fingerprint;

/// A time in the range.
const NOON: i64 = 1_000 * CLOCKS_DIFFER_US;

fn scope() -> Scope {
    let topic = |name: &str| Topic {
        name: name.to_owned(),
        compacts: Some(false),
        partitions: vec![Partition::default(); 2],
    };
    Scope {
        since_us: NOON - 100 * CLOCKS_DIFFER_US,
        unknown_until_us: NOON + CLOCKS_DIFFER_US,
        reaped_until_us: 0,
        topics: vec![topic("orders"), topic("invoices")],
    }
}

/// Event 3 has a different key from events 1, 2 and 4.
fn fingerprint(event: u8) -> Fingerprint {
    Fingerprint { key: [u8::from(event == 3); 16], value: [event; 16], headers: [event + 100; 16] }
}

fn expected(event: u8) -> Expected {
    Expected { topic: 0, partition: 1, created_us: NOON, fingerprint: fingerprint(event) }
}

fn entry(event: u8, known: Known) -> Entry {
    Entry { event_id: Uuid::from_u128(event.into()), known }
}

fn row(event: u8) -> Entry {
    entry(event, Known::Row(Row { id: event.into(), expected: Some(expected(event)) }))
}

fn record(event: u8, offset: i64) -> Record {
    Record { topic: 0, partition: 1, offset, at_us: NOON, fingerprint: fingerprint(event) }
}

fn stored(event: u8, offset: i64) -> Entry {
    entry(event, Known::Record(record(event, offset)))
}

/// Four events, whose records have the offsets 10 to 40.
fn delivery() -> Vec<Entry> {
    (1..=4).flat_map(|event| [row(event), stored(event, i64::from(event) * 10)]).collect()
}

fn judged(scope: &Scope, entries: &[Entry]) -> Findings {
    let folder = std::env::temp_dir();
    let mut sorter = Sorter::new(&folder);
    entries.iter().for_each(|entry| sorter.push(entry.encode()).unwrap());
    let mut judge = Judge::new(scope, Findings::new(10, Unjudged::default()), &folder);
    sorter.sorted().unwrap().for_each(|entry| judge.take(&entry.unwrap()).unwrap());
    judge.finish().unwrap()
}

/// The findings after a change to a perfect delivery, as kind, row and offset.
fn after(change: impl FnOnce(&mut Vec<Entry>)) -> Vec<(Kind, Option<i64>, Option<i64>)> {
    let mut entries = delivery();
    change(&mut entries);
    let findings = judged(&scope(), &entries);
    findings.shown().map(|finding| (finding.kind, finding.outbox_id, finding.offset)).collect()
}

fn change_record(entries: &mut [Entry], event: u8, change: impl Fn(&mut Record)) {
    for entry in entries.iter_mut().filter(|entry| entry.event_id == Uuid::from_u128(event.into())) {
        if let Known::Record(record) = &mut entry.known {
            change(record);
        }
    }
}

fn is_record_of(entry: &Entry, event: u8) -> bool {
    entry.event_id == Uuid::from_u128(event.into()) && matches!(entry.known, Known::Record(_))
}

#[test]
fn perfect_delivery_has_no_findings() {
    let findings = judged(&scope(), &delivery());
    let mut expected = Findings::new(10, Unjudged::default());
    expected.events = 4;
    assert_eq!(findings, expected);
    assert_eq!(findings.broken(), 0);
}

#[test]
fn event_without_a_record_is_lost() {
    let found = after(|entries| entries.retain(|entry| !is_record_of(entry, 2)));
    assert_eq!(found, [(Kind::Lost, Some(2), None)]);
}

#[test]
fn second_record_is_a_duplicate_and_does_not_affect_the_order() {
    assert_eq!(after(|entries| entries.push(stored(1, 50))), [(Kind::Duplicate, Some(1), Some(50))]);
    assert_eq!(judged(&scope(), &[delivery(), vec![stored(1, 50)]].concat()).broken(), 0);
}

#[test]
fn event_after_a_later_one_of_its_key_is_reordered() {
    let found = after(|entries| change_record(entries, 1, |record| record.offset = 25));
    assert_eq!(found, [(Kind::Reordered, Some(1), Some(25))]);
    let other_key = after(|entries| change_record(entries, 3, |record| record.offset = 45));
    assert_eq!(other_key, []);
}

#[test]
fn order_is_that_of_first_records() {
    let early = after(|entries| entries.push(stored(4, 5)));
    let expected = [
        (Kind::Reordered, Some(1), Some(10)),
        (Kind::Reordered, Some(2), Some(20)),
        (Kind::Duplicate, Some(4), Some(40)),
    ];
    assert_eq!(early, expected);
}

/// Only the record at offset 45 is left of event 1, after those of events 2 and 4.
fn late_remainder() -> Vec<Entry> {
    let mut entries = delivery();
    change_record(&mut entries, 1, |record| record.offset = 45);
    entries
}

#[test]
fn order_is_not_judged_if_the_first_record_may_be_gone() {
    let counts = |scope: &Scope, entries: &[Entry]| {
        let findings = judged(scope, entries);
        (findings.count(Kind::Reordered), findings.unjudged.order, findings.broken())
    };
    assert_eq!(counts(&scope(), &late_remainder()), (1, 0, 1), "nothing is gone");
    let with = |change: fn(&mut Topic)| {
        let mut scope = scope();
        change(&mut scope.topics[0]);
        counts(&scope, &late_remainder())
    };
    let compacted = |topic: &mut Topic| {
        topic.compacts = Some(true);
        topic.partitions[1].has_gaps = true;
    };
    assert_eq!(with(compacted), (0, 1, 0));
    assert_eq!(with(|topic| topic.compacts = Some(true)), (1, 0, 1), "nothing is missing");
    assert_eq!(with(|topic| topic.partitions[1].expired_until_us = Some(NOON)), (0, 1, 0));
    let older = with(|topic| topic.partitions[1].expired_until_us = Some(NOON - 2 * CLOCKS_DIFFER_US));
    assert_eq!(older, (1, 0, 1), "only older records are gone");
    let replayed = [late_remainder(), vec![entry(1, Known::Replay)]].concat();
    assert_eq!(counts(&scope(), &replayed), (0, 1, 0), "the record may be that of the replay");
    let both = [replayed, vec![stored(1, 60)]].concat();
    assert_eq!(counts(&scope(), &both), (1, 0, 1), "the replay has another record");
}

/// What is left of event 2 was stored before event 1, so its first record was too.
#[test]
fn remaining_record_proves_that_an_earlier_event_came_too_late() {
    let mut entries = delivery();
    change_record(&mut entries, 2, |record| record.offset = 5);
    entries.push(entry(2, Known::Replay));
    let findings = judged(&scope(), &entries);
    let found: Vec<_> = findings.shown().map(|finding| (finding.kind, finding.outbox_id)).collect();
    assert_eq!((found, findings.unjudged.order), (vec![(Kind::Reordered, Some(1))], 0));
}

#[test]
fn each_changed_part_is_named() {
    type Change = fn(&mut Record);
    let changes: [(&str, Change); 5] = [
        ("topic", |record| record.topic = 1),
        ("partition", |record| record.partition = 0),
        ("key", |record| record.fingerprint.key = [9; 16]),
        ("value", |record| record.fingerprint.value = [9; 16]),
        ("headers", |record| record.fingerprint.headers = [9; 16]),
    ];
    for (part, change) in changes {
        let mut entries = delivery();
        change_record(&mut entries, 2, change);
        let findings = judged(&scope(), &entries);
        let parts: Vec<_> = findings.shown().map(|finding| (finding.kind, &*finding.parts)).collect();
        assert_eq!(parts, [(Kind::Altered, &[part][..])]);
        assert_eq!(findings.broken(), 1);
    }
}

#[test]
fn record_without_an_event_is_unknown() {
    assert_eq!(after(|entries| entries.push(stored(9, 50))), [(Kind::Unknown, None, Some(50))]);
    let later = entry(9, Known::Record(Record { at_us: NOON + CLOCKS_DIFFER_US, ..record(9, 50) }));
    assert_eq!(after(|entries| entries.push(later)), [], "its row may be newer than the read");
    let other_row = entry(9, Known::Row(Row { id: 9, expected: None }));
    assert_eq!(after(|entries| entries.extend([other_row, stored(9, 50)])), [], "a row outside the range");
}

#[test]
fn record_whose_row_may_have_been_reaped_is_not_judged() {
    let scope = Scope { reaped_until_us: NOON, ..scope() };
    let findings = judged(&scope, &[delivery(), vec![stored(9, 50)]].concat());
    assert_eq!((findings.broken(), findings.unjudged.reaped), (0, 1));
}

#[test]
fn lost_event_is_not_judged_if_kafka_may_have_deleted_its_record() {
    let without = |change: fn(&mut Topic)| {
        let mut scope = scope();
        change(&mut scope.topics[0]);
        let findings = judged(&scope, &[row(1)]);
        (findings.count(Kind::Lost), findings.unjudged)
    };
    for (compacts, expected) in [(Some(true), (0, 1, 0)), (None, (0, 0, 1)), (Some(false), (1, 0, 0))] {
        let in_topic = |has_gaps| {
            let mut scope = scope();
            scope.topics[0].compacts = compacts;
            scope.topics[0].partitions[1].has_gaps = has_gaps;
            let findings = judged(&scope, &[row(1)]);
            let Unjudged { compacted, may_be_compacted, .. } = findings.unjudged;
            (findings.count(Kind::Lost), compacted, may_be_compacted)
        };
        assert_eq!(in_topic(true), expected, "{compacts:?}");
        assert_eq!(in_topic(false), (1, 0, 0), "{compacts:?}: no record is missing");
    }
    let (lost, unjudged) = without(|topic| topic.partitions.clear());
    assert_eq!((lost, unjudged.topic_missing), (0, 1));
    let (lost, unjudged) = without(|topic| topic.partitions[1].expired_until_us = Some(NOON));
    assert_eq!((lost, unjudged.expired), (0, 1));
    let (lost, unjudged) =
        without(|topic| topic.partitions[1].expired_until_us = Some(NOON - 2 * CLOCKS_DIFFER_US));
    assert_eq!((lost, unjudged.expired), (1, 0), "the partition has everything since the event");
    let (lost, _) = without(|topic| topic.partitions[0].expired_until_us = Some(NOON));
    assert_eq!(lost, 1, "another partition");
}

#[test]
fn event_that_was_requeued_twice_has_two_records() {
    let requeued = entry(1, Known::Row(Row { id: 8, expected: Some(expected(1)) }));
    assert_eq!(after(|entries| entries.push(requeued)), [(Kind::Lost, Some(1), None)]);
    let again = [requeued, stored(1, 80), entry(1, Known::DeadLetter)];
    assert_eq!(after(|entries| entries.extend(again)), []);
}

#[test]
fn order_of_a_requeued_dead_letter_is_not_judged() {
    let dead = entry(1, Known::DeadLetter);
    let late = |entries: &mut Vec<Entry>| {
        change_record(entries, 1, |record| record.offset = 70);
        entries.push(dead);
    };
    assert_eq!(after(late), []);
    let findings = judged(&scope(), &[dead, stored(1, 10)]);
    assert_eq!((findings.broken(), findings.unjudged.dead_letters), (0, 1));
}

#[test]
fn replayed_event_may_have_one_more_record_for_each_replay() {
    let replay = entry(1, Known::Replay);
    assert_eq!(after(|entries| entries.extend([replay, stored(1, 50)])), []);
    let twice = after(|entries| entries.extend([replay, stored(1, 50), stored(1, 60)]));
    assert_eq!(twice, [(Kind::Duplicate, Some(1), Some(60))]);
}

/// A copy is neither altered nor a duplicate, and is no proof that the event was published to its own topic.
#[test]
fn copies_in_the_topic_to_which_an_operator_copied_are_not_judged() {
    let copy = |offset| Record { topic: 1, partition: 0, ..record(1, offset) };
    let in_other_topic = |offset| entry(1, Known::Record(copy(offset)));
    let counts = |entries: &[Entry]| {
        let findings = judged(&scope(), entries);
        (findings.shown().map(|finding| finding.kind).collect::<Vec<_>>(), findings.unjudged.copies)
    };
    let copied = [delivery(), vec![in_other_topic(3), in_other_topic(4)]].concat();
    let all = [Kind::Altered, Kind::Altered, Kind::Duplicate, Kind::Duplicate];
    assert_eq!(counts(&copied), (all.to_vec(), 0), "it was not copied");
    let known = entry(1, Known::Copy(1));
    assert_eq!(counts(&[copied.clone(), vec![known, known]].concat()), (vec![], 2));
    let elsewhere = [copied, vec![entry(1, Known::Copy(0))]].concat();
    assert_eq!(counts(&elsewhere), (all.to_vec(), 0), "it was copied to another topic");
    let lost = [row(1), known, in_other_topic(3)];
    assert_eq!(counts(&lost), (vec![Kind::Lost], 1));
    let mut changed = copy(3);
    changed.fingerprint.value = [9; 16];
    let changed = [delivery(), vec![known, entry(1, Known::Record(changed))]].concat();
    assert_eq!(counts(&changed), (vec![Kind::Altered, Kind::Duplicate], 0));
    assert_eq!(counts(&[known, in_other_topic(3)]), (vec![], 1), "its row was reaped");
}

#[test]
fn findings_beyond_the_limit_are_counted() {
    let mut findings = Findings::new(1, Unjudged::default());
    for offset in 0..3 {
        unknown(&scope(), None, &record(9, offset), &mut findings);
    }
    assert_eq!((findings.count(Kind::Unknown), findings.shown().count()), (3, 1));
}
