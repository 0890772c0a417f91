//! The classification of an error, which is needed for each row if a whole batch fails.

use crate::{Part, ROWS};
use outbox_relay::kafka::errors::reason;
use outbox_relay::postgres::connection::sqlstates;
use rdkafka::error::RDKafkaErrorCode::{
    self as Code, BrokerTransportFailure, MessageSizeTooLarge, NotLeaderForPartition, PurgeQueue,
    TopicAuthorizationFailed,
};
use std::hint::black_box;

/// Common errors of a batch.
const CODES: [Code; 5] = [
    PurgeQueue,
    NotLeaderForPartition,
    BrokerTransportFailure,
    MessageSizeTooLarge,
    TopicAuthorizationFailed,
];
const STATES: [&str; 5] = ["57P01", "40P01", "08006", "25P03", "XX000"];

/// One failed delivery report per row.
pub(super) struct Codes;

impl Part for Codes {
    fn run(&mut self) {
        for code in CODES.iter().cycle().take(ROWS) {
            black_box(reason(black_box(*code)));
        }
    }
}

/// One failed statement per row.
pub(super) struct Sqlstates;

impl Part for Sqlstates {
    fn run(&mut self) {
        for state in STATES.iter().cycle().take(ROWS) {
            black_box(sqlstates::entry(black_box(state)));
        }
    }
}
