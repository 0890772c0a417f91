//! From a row to librdkafka's queue.

use crate::rows::{Headers, rows};
use crate::{Part, ROWS, runtime};
use outbox_relay::config::{self, HeaderTemplate, default_headers};
use outbox_relay::kafka::cluster::KafkaCluster;
use outbox_relay::kafka::publishing::producer::KafkaProducer;
use outbox_relay::kafka::publishing::record;
use outbox_relay::postgres::cycle::event::OutboxRow;
use outbox_relay::relay::event::Event;
use outbox_relay::relay::partition;
use outbox_relay::relay::publisher::Producer;
use std::hint::black_box;
use tokio::runtime::Runtime;

/// The number of partitions of the topic.
pub(super) const PARTITIONS: u32 = 12;

/// Computes the partition of each row's key.
pub(super) struct Partition(Vec<OutboxRow>);

impl Partition {
    pub(super) fn new() -> Partition {
        Partition(rows(1, ROWS, Headers::None))
    }
}

impl Part for Partition {
    fn run(&mut self) {
        for row in &self.0 {
            black_box(partition::of(black_box(row.key()), PARTITIONS));
        }
    }
}

/// Builds and drops the key, value and headers of each row's record.
pub(super) struct Record(Vec<OutboxRow>, Vec<HeaderTemplate>);

impl Record {
    pub(super) fn new(headers: Headers) -> Record {
        Record(rows(1, ROWS, headers), default_headers())
    }
}

impl Part for Record {
    fn run(&mut self) {
        for row in &self.0 {
            black_box((row.key(), row.payload()));
            let _ = black_box(record::headers(row, &self.1));
        }
    }
}

/// Sends each row to a librdkafka producer without a broker: the record is built, copied and queued.
pub(super) struct Send {
    runtime: Runtime,
    producer: KafkaProducer,
    rows: Vec<OutboxRow>,
}

impl Send {
    pub(super) fn new() -> Send {
        let runtime = runtime();
        let settings = [
            ("OUTBOX_RELAY__POSTGRES__URL", "postgres://relay@127.0.0.1/none"),
            ("OUTBOX_RELAY__KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1"),
            ("OUTBOX_RELAY__RELAY__BATCH_SIZE", "5000"),
        ];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let config = config::load(None, settings.into_iter())
            .unwrap_or_else(|findings| panic!("invalid settings: {findings}"));
        let producer = runtime.block_on(async { config.cluster()?.connecting().await });
        let producer = producer.unwrap_or_else(|failure| panic!("cannot create a producer: {failure}"));
        Send { runtime, producer, rows: rows(1, ROWS, Headers::None) }
    }
}

impl Part for Send {
    fn prepare(&mut self) {
        self.runtime.block_on(self.producer.withdraw());
        self.runtime.block_on(self.producer.drained());
        self.producer.drain(&mut Vec::new());
    }

    fn run(&mut self) {
        for (index, row) in self.rows.iter().enumerate() {
            let sent = self.producer.send(index as u32, "events.order", index as u32 % PARTITIONS, row);
            assert!(sent.is_ok(), "the producer did not accept the row: {sent:?}");
        }
    }
}
