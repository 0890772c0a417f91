//! Reads whole topics after a measurement and checks every record.
//!
//! Every payload contains the number of its row. The events of a key were committed in the order of their numbers.

use crate::BenchError;
use crate::checker::{Checker, Recognized, Verdict};
use crate::consume::{Consumer, Record};
use crate::load::{HEAD, NUMBER_DIGITS, Shape};
use crate::place::Route;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Reads topics from beginning to end and compares the records, which have the event id in this header. Use it after a
/// measurement, because it needs a lot of CPU.
pub async fn read(
    route: &Route<'_>,
    committed: &Committed,
    header: &'static str,
) -> Result<Verdict, BenchError> {
    let rows = Rows::new(&route.shape, &route.topics, committed);
    let (kafka, topics) = (route.place.config.kafka.clone(), route.topics.clone());
    let stop = StopOnDrop::default();
    let stopped = Arc::clone(&stop.0);
    let reading = tokio::task::spawn_blocking(move || {
        let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
        let mut consumer = Consumer::of(&kafka, &topics)?;
        let mut checker = rows.checker();
        consumer.read_to_end(&stopped, |record| checker.take(rows.recognize(&arrival(record, header))))?;
        Ok(checker.verdict())
    });
    match reading.await {
        Ok(verdict) => verdict.map_err(BenchError::Kafka),
        Err(error) => Err(BenchError::System { doing: "verifying", source: std::io::Error::other(error) }),
    }
}

fn arrival<'a>(record: &'a Record<'_>, header: &str) -> Arrival<'a> {
    Arrival {
        topic: record.topic(),
        partition: record.partition(),
        key: record.key().unwrap_or_default(),
        payload: record.payload().unwrap_or_default(),
        event_id: record.header(header).unwrap_or_default(),
    }
}

/// Tells a thread to stop when nothing waits for it any more.
#[derive(Default)]
pub(crate) struct StopOnDrop(pub(crate) Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Committed rows: the number of rows of each stream. Of `n` streams, row `i` of stream `s` has the number `s + n * i`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed(pub Vec<u64>);

/// The committed rows, and the topics where they must arrive.
pub struct Rows {
    shape: Shape,
    /// The index of a topic's kind in the shape, by topic name.
    topics: HashMap<String, u64>,
    streams: Vec<u64>,
}

/// The compared parts of a record.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    topic: &'a str,
    partition: i32,
    key: &'a [u8],
    payload: &'a [u8],
    /// What consumers use for deduplication.
    event_id: &'a [u8],
}

impl Rows {
    /// Rows of this shape, with topics in the order of [`Shape::kinds`].
    pub fn new(shape: &Shape, topics: &[String], committed: &Committed) -> Rows {
        let topics = topics.iter().cloned().zip(0..).collect();
        Rows { shape: *shape, topics, streams: committed.0.clone() }
    }

    pub fn checker(&self) -> Checker {
        let most = self.streams.iter().copied().max().unwrap_or(0);
        Checker::new(self.streams.iter().sum(), most * self.streams.len() as u64)
    }

    /// The row, if the record matches one of them.
    pub fn recognize(&self, arrival: &Arrival<'_>) -> Option<Recognized> {
        let key: u64 = digits(arrival.key.strip_prefix(b"order-")?)?;
        let (number, key_inside) = inside(arrival.payload)?;
        let (stream, at) = (number % self.streams.len() as u64, number / self.streams.len() as u64);
        let fits = key < self.shape.keys
            && key_inside.is_none_or(|inside| inside == key)
            && arrival.payload.len() == self.shape.payload_bytes
            && *self.topics.get(arrival.topic)? == key % self.shape.topics
            && at < self.streams[stream as usize];
        fits.then(|| Recognized {
            event: number,
            event_id: fingerprint(arrival.event_id),
            key,
            place: number,
            partition: arrival.partition,
            altered: false,
        })
    }
}

pub fn number(payload: &[u8]) -> Option<u64> {
    inside(payload).map(|(number, _)| number)
}

/// The number in a payload, and the key if there is room for it.
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
    }

    /// Rows 0 to 3. Rows 0, 1 and 3 have key 2.
    fn delivery() -> Vec<Row> {
        [2_u64, 2, 1, 2].into_iter().zip(0_u64..).map(|(key, number)| row(number, key)).collect()
    }

    fn row(number: u64, key: u64) -> Row {
        let head = format!("{HEAD}{number:012}\",\"key\":\"{key:010}\",\"note\":\"");
        let payload = format!("{head}{}\"}}", "x".repeat(60 - 2 - head.len()));
        Row { key: format!("order-{key}"), payload, event_id: format!("id-{number}") }
    }

    /// The verdict after a change to a perfect delivery.
    fn after(change: impl FnOnce(&mut Vec<Row>)) -> Verdict {
        let mut rows = delivery();
        change(&mut rows);
        judge(&rows, &Committed(vec![4]))
    }

    fn judge(records: &[Row], committed: &Committed) -> Verdict {
        let rows = Rows::new(&SHAPE, &["t".to_owned()], committed);
        let mut checker = rows.checker();
        for Row { key, payload, event_id } in records {
            checker.take(rows.recognize(&Arrival {
                topic: "t",
                partition: 0,
                key: key.as_bytes(),
                payload: payload.as_bytes(),
                event_id: event_id.as_bytes(),
            }));
        }
        checker.verdict()
    }

    const GOOD: Verdict =
        Verdict { committed: 4, arrived: 4, lost: 0, duplicates: 0, reordered: 0, foreign: 0, altered: 0 };

    #[test]
    fn delivered_rows_are_recognized_in_order() {
        assert_eq!(after(|_| {}), GOOD);
        assert_eq!(after(|rows| rows.swap(0, 1)), Verdict { reordered: 1, ..GOOD });
        assert_eq!(after(|rows| rows.push(row(0, 2))), Verdict { duplicates: 1, ..GOOD });
    }

    #[test]
    fn record_that_was_never_committed_is_foreign() {
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
    fn changed_key_or_length_is_foreign_and_the_row_is_lost() {
        let verdict = after(|rows| rows[0].key = "order-1".to_owned());
        assert_eq!(verdict, Verdict { arrived: 3, lost: 1, foreign: 1, ..GOOD });
        let verdict = after(|rows| rows[0].payload.push(' '));
        assert_eq!(verdict, Verdict { arrived: 3, lost: 1, foreign: 1, ..GOOD });
    }

    #[test]
    fn streams_have_separate_numbers_and_counts() {
        // Numbers 0, 2, 4 and 1.
        let committed = Committed(vec![3, 1]);
        let rows = [row(0, 0), row(1, 1), row(2, 2), row(4, 0)];
        assert_eq!(judge(&rows, &committed), GOOD);
        let beyond = [row(0, 0), row(1, 1), row(2, 2), row(3, 1)];
        assert_eq!(judge(&beyond, &committed), Verdict { arrived: 3, lost: 1, foreign: 1, ..GOOD });
    }

    #[test]
    fn short_payload_contains_only_the_number() {
        assert_eq!(inside(br#""00000042""#), Some((42, None)));
        assert_eq!(inside(b"42"), None);
        assert_eq!(number(row(7, 1).payload.as_bytes()), Some(7));
    }
}
