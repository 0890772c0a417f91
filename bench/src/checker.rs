//! Compares records with what was committed: nothing lost, nothing twice, each key in order.
//!
//! Every payload carries the number of its row. A key's events were committed in the order of their numbers, so that is
//! the order in which they have to arrive, each for the first time.

use crate::postgres::load::{HEAD, NUMBER_DIGITS, Shape};
use serde::Serialize;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};

/// Rows that were committed: how many by each stream. Of `n` streams, row `i` of stream `s` has the number `s + n * i`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed(pub Vec<u64>);

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Rows that were committed.
    pub committed: u64,
    /// Of those, how many arrived.
    pub arrived: u64,
    /// Of those, how many did not.
    pub lost: u64,
    /// Arrivals of an event that had arrived before, with the same event id.
    pub duplicates: u64,
    /// Events that arrived for the first time after a later one of their key, or in another partition than the rest of it.
    pub reordered: u64,
    /// Arrivals that are none of the committed rows as they were committed: another number, topic, key or length, or
    /// another event id than the same row had before.
    pub foreign: u64,
}

/// Takes records one by one.
pub struct Checker {
    shape: Shape,
    /// By the name of the topic, which of the kinds of the shape it is for.
    topics: HashMap<String, u64>,
    streams: Vec<u64>,
    /// By number, the fingerprint of the event id that it came with; 0 until it came.
    seen: Vec<u64>,
    /// By key, the partition of its events, and the number of the last one, plus one.
    keys: Vec<(i32, u64)>,
    verdict: Verdict,
}

/// A record, as far as it is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Its topic.
    pub topic: &'a str,
    /// Its partition.
    pub partition: i32,
    /// Its key.
    pub key: &'a [u8],
    /// Its value.
    pub payload: &'a [u8],
    /// What consumers tell duplicates by.
    pub event_id: &'a [u8],
}

impl Verdict {
    /// Everything arrived, in order, and nothing else did. Duplicates are allowed: a fault may have caused them.
    pub fn is_good(&self) -> bool {
        self.lost + self.reordered + self.foreign == 0
    }
}

impl Checker {
    /// For rows of this shape, in topics that stand in the order of [`Shape::kinds`].
    pub fn new(shape: &Shape, topics: &[String], committed: &Committed) -> Checker {
        let streams = committed.0.len() as u64;
        let most = committed.0.iter().copied().max().unwrap_or(0);
        Checker {
            shape: *shape,
            topics: topics.iter().cloned().zip(0..).collect(),
            streams: committed.0.clone(),
            seen: vec![0; (most * streams) as usize],
            keys: Vec::new(),
            verdict: Verdict { committed: committed.0.iter().sum(), ..Verdict::default() },
        }
    }

    /// The next record of its partition.
    pub fn take(&mut self, arrival: &Arrival<'_>) {
        let Some((number, key)) = self.recognise(arrival) else {
            self.verdict.foreign += 1;
            return;
        };
        let event = fingerprint(arrival.event_id);
        match &mut self.seen[number as usize] {
            known if *known == event => return self.verdict.duplicates += 1,
            known if *known != 0 => return self.verdict.foreign += 1,
            known => *known = event,
        }
        self.verdict.arrived += 1;
        if self.keys.len() <= key as usize {
            self.keys.resize(key as usize + 1, (arrival.partition, 0));
        }
        let (partition, next) = &mut self.keys[key as usize];
        if *next == 0 {
            *partition = arrival.partition;
        }
        if *partition != arrival.partition || number < *next {
            self.verdict.reordered += 1;
        }
        *next = (*next).max(number + 1);
    }

    /// What came of it, when every record has been taken.
    pub fn verdict(&self) -> Verdict {
        Verdict { lost: self.verdict.committed - self.verdict.arrived, ..self.verdict }
    }

    /// The number and the key of a committed row, if the record is what it had to become.
    fn recognise(&self, arrival: &Arrival<'_>) -> Option<(u64, u64)> {
        let key: u64 = digits(arrival.key.strip_prefix(b"order-")?)?;
        let (number, key_inside) = inside(arrival.payload)?;
        let (stream, at) = (number % self.streams.len() as u64, number / self.streams.len() as u64);
        let fits = key < self.shape.keys
            && key_inside.is_none_or(|inside| inside == key)
            && arrival.payload.len() == self.shape.payload_bytes
            && *self.topics.get(arrival.topic)? == key % self.shape.topics
            && at < self.streams[stream as usize];
        fits.then_some((number, key))
    }
}

/// The number in a payload, and the key, if there is room for it.
pub fn number(payload: &[u8]) -> Option<u64> {
    inside(payload).map(|(number, _)| number)
}

fn inside(payload: &[u8]) -> Option<(u64, Option<u64>)> {
    const KEY: &[u8] = br#"","key":""#;
    let Some(rest) = payload.strip_prefix(HEAD.as_bytes()) else {
        let text = payload.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
        return Some((digits(text)?, None));
    };
    let (text, rest) = rest.split_at_checked(NUMBER_DIGITS)?;
    let key = rest.strip_prefix(KEY)?.get(..10)?;
    Some((digits(text)?, Some(digits(key)?)))
}

fn digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 18 {
        return None;
    }
    text.iter()
        .try_fold(0, |number, digit| digit.is_ascii_digit().then(|| number * 10 + u64::from(digit - b'0')))
}

/// Never 0.
fn fingerprint(event_id: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(event_id);
    hasher.finish() | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { rows: 4, keys: 3, payload_bytes: 60, topics: 1, hot_share: 0.0 };

    struct Row {
        key: String,
        payload: String,
        event_id: String,
        partition: i32,
    }

    /// Rows 0 to 3; 0, 1 and 3 are of key 2.
    fn delivery() -> Vec<Row> {
        [2_u64, 2, 1, 2].into_iter().zip(0_u64..).map(|(key, number)| row(number, key)).collect()
    }

    fn row(number: u64, key: u64) -> Row {
        let head = format!("{HEAD}{number:012}\",\"key\":\"{key:010}\",\"note\":\"");
        let payload = format!("{head}{}\"}}", "x".repeat(60 - 2 - head.len()));
        Row { key: format!("order-{key}"), payload, event_id: format!("id-{number}"), partition: 0 }
    }

    /// The verdict after something was done to a perfect delivery.
    fn after(change: impl FnOnce(&mut Vec<Row>)) -> Verdict {
        let mut rows = delivery();
        change(&mut rows);
        judge(&rows, &Committed(vec![4]))
    }

    fn judge(rows: &[Row], committed: &Committed) -> Verdict {
        let mut checker = Checker::new(&SHAPE, &["t".to_owned()], committed);
        for Row { key, payload, event_id, partition } in rows {
            checker.take(&Arrival {
                topic: "t",
                partition: *partition,
                key: key.as_bytes(),
                payload: payload.as_bytes(),
                event_id: event_id.as_bytes(),
            });
        }
        checker.verdict()
    }

    const GOOD: Verdict =
        Verdict { committed: 4, arrived: 4, lost: 0, duplicates: 0, reordered: 0, foreign: 0 };

    #[test]
    fn a_perfect_delivery_is_good_however_keys_are_mixed() {
        assert_eq!(after(|_| {}), GOOD);
        assert_eq!(after(|rows| rows.swap(1, 2)), GOOD, "rows of different keys");
        assert!(GOOD.is_good());
    }

    #[test]
    fn a_lost_event_is_seen() {
        let verdict = after(|rows| drop(rows.remove(1)));
        assert_eq!(verdict, Verdict { arrived: 3, lost: 1, ..GOOD });
        assert!(!verdict.is_good());
        assert_eq!(after(Vec::clear), Verdict { arrived: 0, lost: 4, ..GOOD });
    }

    #[test]
    fn a_duplicate_is_counted_and_is_no_reordering() {
        let verdict = after(|rows| rows.push(row(0, 2)));
        assert_eq!(verdict, Verdict { duplicates: 1, ..GOOD });
        assert!(verdict.is_good());
    }

    #[test]
    fn a_duplicate_does_not_hide_a_lost_event() {
        let verdict = after(|rows| rows[3] = row(0, 2));
        assert_eq!(verdict, Verdict { arrived: 3, lost: 1, duplicates: 1, ..GOOD });
    }

    #[test]
    fn an_event_behind_a_later_one_of_its_key_is_seen() {
        let verdict = after(|rows| rows.swap(0, 1));
        assert_eq!(verdict, Verdict { reordered: 1, ..GOOD });
        assert!(!verdict.is_good());
        assert_eq!(after(|rows| rows.swap(1, 3)), Verdict { reordered: 1, ..GOOD });
    }

    #[test]
    fn a_key_in_two_partitions_has_no_order() {
        assert_eq!(after(|rows| rows[3].partition = 5), Verdict { reordered: 1, ..GOOD });
    }

    #[test]
    fn what_nobody_committed_is_seen() {
        for change in [
            |rows: &mut Vec<Row>| rows.push(row(4, 2)),
            |rows: &mut Vec<Row>| rows.push(Row { event_id: "another".to_owned(), ..row(0, 2) }),
            |rows: &mut Vec<Row>| rows.push(Row { payload: "{}".to_owned(), ..row(3, 2) }),
            |rows: &mut Vec<Row>| rows.push(Row { key: "order-1".to_owned(), ..row(3, 2) }),
            |rows: &mut Vec<Row>| rows.push(row(3, 7)),
        ] {
            let verdict = after(change);
            assert_eq!(verdict, Verdict { foreign: 1, ..GOOD });
            assert!(!verdict.is_good());
        }
    }

    #[test]
    fn a_changed_key_or_length_is_no_arrival() {
        let verdict = after(|rows| rows[0].key = "order-1".to_owned());
        assert_eq!(verdict, Verdict { arrived: 3, lost: 1, foreign: 1, ..GOOD });
        let verdict = after(|rows| rows[0].payload.push(' '));
        assert_eq!(verdict, Verdict { arrived: 3, lost: 1, foreign: 1, ..GOOD });
    }

    #[test]
    fn streams_have_numbers_and_counts_of_their_own() {
        // Numbers 0, 2, 4 and 1.
        let committed = Committed(vec![3, 1]);
        let rows = [row(0, 0), row(1, 1), row(2, 2), row(4, 0)];
        assert_eq!(judge(&rows, &committed), GOOD);
        let beyond = [row(0, 0), row(1, 1), row(2, 2), row(3, 1)];
        assert_eq!(judge(&beyond, &committed), Verdict { arrived: 3, lost: 1, foreign: 1, ..GOOD });
    }

    #[test]
    fn a_short_payload_is_the_number_alone() {
        assert_eq!(inside(br#""00000042""#), Some((42, None)));
        assert_eq!(inside(b"42"), None);
        assert_eq!(number(row(7, 1).payload.as_bytes()), Some(7));
    }
}
