//! What an error means: asked once for each row of a batch that fails altogether.

use crate::{Part, ROWS};
use outbox_relay::kafka::failure::reason;
use outbox_relay::postgres::connection::sqlstates;
use rdkafka::error::RDKafkaErrorCode::{
    self as Code, BrokerTransportFailure, MessageSizeTooLarge, NotLeaderForPartition, PurgeQueue,
    TopicAuthorizationFailed,
};
use std::hint::black_box;

/// What a batch usually fails with.
const CODES: [Code; 5] = [
    PurgeQueue,
    NotLeaderForPartition,
    BrokerTransportFailure,
    MessageSizeTooLarge,
    TopicAuthorizationFailed,
];
const STATES: [&str; 5] = ["57P01", "40P01", "08006", "25P03", "XX000"];

/// A failed delivery report each.
pub(super) struct Codes;

impl Part for Codes {
    fn run(&mut self) {
        for code in CODES.iter().cycle().take(ROWS) {
            black_box(reason(black_box(*code)));
        }
    }
}

/// A failed statement each.
pub(super) struct Sqlstates;

impl Part for Sqlstates {
    fn run(&mut self) {
        for state in STATES.iter().cycle().take(ROWS) {
            black_box(sqlstates::entry(black_box(state)));
        }
    }
}
