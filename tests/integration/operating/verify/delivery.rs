//! A delivery to verify: 40 events of four keys, published by a relay, and what is done to them afterwards.

use rdkafka::ClientConfig;
use rdkafka::admin::AdminOptions;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use serde_json::Value;
use std::time::{Duration, SystemTime};
use uuid::Uuid;

use crate::support::command::Ended;
use crate::support::consumer::{Record, read_all};
use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::relay::Relay;
use crate::support::wait::STALLED;

pub const EVENTS: usize = 40;
pub const PARTITIONS: i32 = 3;
/// How long ago a record was published that `verify` judges although it has no row.
pub const EARLIER: Duration = Duration::from_secs(600);

pub struct Delivery {
    pub outbox: Outbox,
}

impl Delivery {
    pub async fn new(test: &str) -> Self {
        Self::with_payload(test, "json").await
    }

    pub async fn with_payload(test: &str, payload: &str) -> Self {
        Self::in_topic(test, payload, &[]).await
    }

    /// With these settings of the topic.
    pub async fn in_topic(test: &str, payload: &str, settings: &[(&str, &str)]) -> Self {
        let mut outbox = Outbox::without_topics(test).await;
        outbox.create_topic_with("order", PARTITIONS, settings).await;
        let delivery = Self { outbox };
        let value = if payload == "bytea" { "convert_to(text, 'UTF8')" } else { "text" };
        // The first row shows that no rows of the last hour were reaped.
        run(
            &delivery.outbox.client,
            &format!(
                "ALTER TABLE app.outbox ALTER payload TYPE {payload} USING NULL;
                 INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, created_at, sent_at)
                 VALUES ('ancient', '1', 'Placed', now() - interval '3 hours', now() - interval '2 hours');
                 INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload, headers)
                 SELECT 'order', 'k' || n % 4, 'Placed', CASE WHEN n % 5 > 0 THEN ({value})::{payload} END,
                        CASE WHEN n % 3 > 0 THEN jsonb_build_object('trace', 'ä' || n, 'empty', '') END
                 FROM generate_series(1, {EVENTS}) AS n, LATERAL (SELECT '{{\"b\":  ' || n || '}}') AS of(text)"
            ),
        )
        .await;
        delivery.deliver().await;
        delivery
    }

    /// Publishes all events with a relay, which then stops.
    pub async fn deliver(&self) {
        let mut relay = with_headers(self.outbox.relay()).start().await;
        self.outbox.wait_until_drained(STALLED).await;
        assert!(relay.stop().await.success());
    }

    /// The command as an operator runs it.
    pub fn command(&self, args: &[&str]) -> Ended {
        with_headers(self.outbox.operator()).command(args)
    }

    /// The JSON report of `verify`, which must end with this code.
    pub fn verify(&self, code: i32) -> Value {
        self.verify_with(code, &[])
    }

    pub fn verify_with(&self, code: i32, args: &[&str]) -> Value {
        let ended = self.command(&[&["verify", "--json"], args].concat());
        assert_eq!(ended.code, code, "{ended}");
        serde_json::from_str(&ended.stdout).unwrap()
    }

    /// Fails the test unless the report has exactly these findings. Returns them.
    #[track_caller]
    pub fn finds(&self, code: i32, kinds: &[&str]) -> Vec<Value> {
        let report = self.verify(code);
        let findings = report["findings"].as_array().unwrap().clone();
        let found: Vec<&str> = findings.iter().map(|finding| finding["kind"].as_str().unwrap()).collect();
        assert_eq!(found, kinds, "{report:#}");
        let names = ["lost", "reordered", "altered", "unknown", "duplicate"];
        for kind in names {
            let field = if kind == "duplicate" { "duplicates" } else { kind };
            assert_eq!(report[field], kinds.iter().filter(|found| **found == kind).count(), "{report:#}");
        }
        findings
    }

    pub fn topic(&self) -> String {
        self.outbox.topic("order")
    }

    pub async fn sql(&self, sql: &str) {
        run(&self.outbox.client, sql).await;
    }

    /// The id and event id of the row that has this place among the delivered ones, from 1.
    pub async fn row(&self, place: i64) -> (i64, Uuid) {
        let sql = "SELECT id, event_id FROM app.outbox WHERE aggregate_type = 'order' ORDER BY id OFFSET $1 LIMIT 1";
        let row = self.outbox.client.query_one(sql, &[&(place - 1)]).await.unwrap();
        (row.get(0), row.get(1))
    }

    pub async fn records(&self) -> Vec<Record> {
        read_all(&[self.topic()]).await
    }

    /// The record of an event.
    pub async fn record(&self, event_id: Uuid) -> Record {
        self.records().await.into_iter().find(|record| record.event_id() == Some(event_id)).unwrap()
    }

    /// Publishes a record as another producer would, with its partition and an age.
    pub fn publish(&self, record: &Record, age: Duration) {
        let producer: ThreadedProducer<DefaultProducerContext> =
            client(&self.outbox).set("acks", "all").create().unwrap();
        let headers = record.headers.iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
            headers.insert(Header { key, value: value.as_deref() })
        });
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap() - age;
        let mut new = BaseRecord::<[u8], [u8]>::to(&record.topic)
            .partition(record.partition)
            .timestamp(at.as_millis() as i64)
            .headers(headers);
        (new.key, new.payload) = (record.key.as_deref(), record.value.as_deref());
        producer.send(new).map_err(|(error, _)| error).unwrap();
        producer.flush(STALLED).unwrap();
    }

    /// Deletes the records before these offsets of partitions, as Kafka does with expired ones.
    pub async fn delete_records(&self, before: &[(i32, Offset)]) {
        let mut places = TopicPartitionList::new();
        for (partition, offset) in before {
            places.add_partition_offset(&self.topic(), *partition, *offset).unwrap();
        }
        let options = AdminOptions::new().request_timeout(Some(STALLED));
        self.outbox.cluster.admin().delete_records(&places, &options).await.unwrap();
    }

    pub async fn drop(self) {
        self.outbox.drop().await;
    }
}

fn with_headers(relay: Relay) -> Relay {
    relay
        .set_inner("outbox", "headers", "event_id", "{event_id}")
        .set_inner("outbox", "headers", "event_type", "{event_type}")
        .set_inner("outbox", "headers", "about", "{aggregate_type}/{aggregate_id} at {created_at}")
}

fn client(outbox: &Outbox) -> ClientConfig {
    outbox.cluster.client()
}
