//! The part of Kafka's protocol that is needed to parse a Produce request and to refuse one as a broker does.

const PRODUCE: i16 = 0;
/// From this version on, lengths are compact and structures have tags.
const FLEXIBLE: i16 = 9;
/// The versions that have the layout below.
const KNOWN: std::ops::RangeInclusive<i16> = 5..=12;

/// Error codes of brokers.
pub const NOT_LEADER_OR_FOLLOWER: i16 = 6;
pub const NOT_ENOUGH_REPLICAS: i16 = 19;
pub const OUT_OF_ORDER_SEQUENCE_NUMBER: i16 = 45;
pub const INVALID_PRODUCER_EPOCH: i16 = 47;
pub const INVALID_PRODUCER_ID_MAPPING: i16 = 49;
pub const UNKNOWN_PRODUCER_ID: i16 = 59;

/// A request to store records. librdkafka sends one request per partition, with one batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Produce {
    version: i16,
    pub correlation: i32,
    pub topic: String,
    pub partition: i32,
    pub producer_id: i64,
    /// The sequence number of the first record. A producer's first record in a partition has the number 0.
    pub first_sequence: i32,
    pub records: i32,
}

/// The correlation id of an answer.
pub fn correlation_of_answer(message: &[u8]) -> i32 {
    Bytes(message).i32()
}

impl Produce {
    /// Parses a request without its length. Returns `None` if it is not a Produce request.
    pub fn parse(message: &[u8]) -> Option<Self> {
        let mut bytes = Bytes(message);
        if bytes.i16() != PRODUCE {
            return None;
        }
        let version = bytes.i16();
        assert!(KNOWN.contains(&version), "Produce has version {version}");
        let flexible = version >= FLEXIBLE;
        let correlation = bytes.i32();
        let client_id = bytes.i16();
        bytes.take(client_id.max(0) as usize);
        if flexible {
            assert_eq!(bytes.varint(), 0, "tags in a request's header");
        }
        let transactional_id = bytes.length(flexible, 2);
        bytes.take(transactional_id);
        let _acks = bytes.i16();
        let _timeout = bytes.i32();
        assert_eq!(bytes.length(flexible, 4), 1, "topics in a request");
        let topic = bytes.length(flexible, 2);
        let topic = String::from_utf8(bytes.take(topic).to_vec()).unwrap();
        assert_eq!(bytes.length(flexible, 4), 1, "partitions in a request");
        let partition = bytes.i32();
        let length = bytes.length(flexible, 4);
        let mut batch = Bytes(bytes.take(length));
        // Base offset, length, leader's epoch, format, checksum, attributes, last offset, two timestamps.
        batch.take(8 + 4 + 4 + 1 + 4 + 2 + 4 + 8 + 8);
        let producer_id = batch.i64();
        let _epoch = batch.i16();
        let (first_sequence, records) = (batch.i32(), batch.i32());
        Some(Self { version, correlation, topic, partition, producer_id, first_sequence, records })
    }

    /// The answer of a broker that refuses the request with this code, including its length.
    pub fn refusal(&self, code: i16) -> Vec<u8> {
        let flexible = self.version >= FLEXIBLE;
        let one: &[u8] = if flexible { &[2] } else { &[0, 0, 0, 1] };
        let name_length = if flexible {
            vec![self.topic.len() as u8 + 1]
        } else {
            (self.topic.len() as i16).to_be_bytes().to_vec()
        };
        assert!(self.topic.len() < 127, "the length of {} must fit in one byte", self.topic);
        let mut answer = self.correlation.to_be_bytes().to_vec();
        if flexible {
            answer.push(0); // no tags
        }
        answer.extend([one, &name_length, self.topic.as_bytes(), one].concat());
        answer.extend(self.partition.to_be_bytes());
        answer.extend(code.to_be_bytes());
        answer.extend([0xff; 24]); // no offset, no time, no first offset
        answer.extend::<&[u8]>(match self.version {
            ..8 => &[],
            // No refused records and no message.
            8 => &[0, 0, 0, 0, 0xff, 0xff],
            // The same, and no tags of the partition and the topic.
            _ => &[1, 0, 0, 0],
        });
        answer.extend([0; 4]); // not throttled
        if flexible {
            answer.push(0);
        }
        [&(answer.len() as u32).to_be_bytes(), answer.as_slice()].concat()
    }
}

/// The rest of a message.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        taken
    }

    fn i16(&mut self) -> i16 {
        i16::from_be_bytes(self.take(2).try_into().unwrap())
    }

    fn i32(&mut self) -> i32 {
        i32::from_be_bytes(self.take(4).try_into().unwrap())
    }

    fn i64(&mut self) -> i64 {
        i64::from_be_bytes(self.take(8).try_into().unwrap())
    }

    fn varint(&mut self) -> u32 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = self.take(1)[0];
            value |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return value;
            }
        }
        unreachable!("the loop has no end")
    }

    /// The length of a string or an array. A null value counts as empty. Versions without compact lengths use this
    /// number of bytes.
    fn length(&mut self, compact: bool, bytes: usize) -> usize {
        match (compact, bytes) {
            (true, _) => self.varint().saturating_sub(1) as usize,
            (false, 2) => self.i16().max(0) as usize,
            (false, _) => self.i32().max(0) as usize,
        }
    }
}
