//! The digests by which `verify` compares a row with its record.

use crate::headers::HeaderTemplate;
use crate::publishing::record;
use openssl::sha::Sha256;
use rdkafka::message::{BorrowedMessage, Headers, Message};
use relay::event::Event;
use relay::failure::Rejection;

/// Digests of the parts of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint {
    pub key: [u8; 16],
    /// A tombstone has a different digest from an empty value.
    pub value: [u8; 16],
    /// Names and values, in their order.
    pub headers: [u8; 16],
}

/// The fingerprint of the record that the relay publishes for a row.
pub fn of_event<E: Event>(
    event: &E,
    templates: &[HeaderTemplate],
    record_bytes_max: usize,
) -> Result<Fingerprint, Rejection> {
    let record = record::record(event, templates, record_bytes_max)?;
    Ok(fingerprint(Some(record.key), record.value, Some(&record.headers)))
}

/// The fingerprint of a record in Kafka.
pub(crate) fn of_message(message: &BorrowedMessage<'_>) -> Fingerprint {
    fingerprint(message.key(), message.payload(), message.headers())
}

fn fingerprint(key: Option<&[u8]>, value: Option<&[u8]>, headers: Option<&impl Headers>) -> Fingerprint {
    Fingerprint {
        key: digest([key]),
        value: digest([value]),
        headers: digest(
            headers
                .into_iter()
                .flat_map(Headers::iter)
                .flat_map(|header| [Some(header.key.as_bytes()), header.value]),
        ),
    }
}

/// A part that is missing differs from an empty one, and no two lists of parts have the same bytes.
fn digest<'a>(parts: impl IntoIterator<Item = Option<&'a [u8]>>) -> [u8; 16] {
    let mut hash = Sha256::new();
    for part in parts {
        let length = part.map_or(u64::MAX, |bytes| bytes.len() as u64);
        hash.update(&length.to_be_bytes());
        hash.update(part.unwrap_or_default());
    }
    let mut half = [0; 16];
    half.copy_from_slice(&hash.finish()[..16]);
    half
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdkafka::message::{Header, OwnedHeaders};

    #[test]
    fn every_difference_changes_the_digest() {
        let headers = |list: &[(&str, Option<&str>)]| {
            let all = list
                .iter()
                .fold(OwnedHeaders::new(), |all, (key, value)| all.insert(Header { key, value: *value }));
            fingerprint(None, None, Some(&all)).headers
        };
        let lists = [
            headers(&[]),
            headers(&[("a", None)]),
            headers(&[("a", Some(""))]),
            headers(&[("a", Some("b"))]),
            headers(&[("ab", Some(""))]),
            headers(&[("a", Some("b")), ("c", Some("d"))]),
            headers(&[("c", Some("d")), ("a", Some("b"))]),
        ];
        for (at, digest) in lists.iter().enumerate() {
            assert!(!lists[..at].contains(digest), "{at}");
        }
        let value = |value| fingerprint(None, value, None::<&OwnedHeaders>).value;
        assert_ne!(value(None), value(Some(b"")));
        assert_eq!(headers(&[]), fingerprint(None, None, None::<&OwnedHeaders>).headers);
    }
}
