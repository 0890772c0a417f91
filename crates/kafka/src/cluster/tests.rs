//! Tests with librdkafka's mock cluster, which fails on request.

use super::*;
use crate::headers::default_headers;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use relay::failure::FailureKind;
use relay::fixture::Row;
use relay::fixture::limits;
use relay::publisher::NotSent;
use std::collections::BTreeMap;

type Mock = MockCluster<'static, DefaultProducerContext>;

fn mock() -> Mock {
    let mock = MockCluster::new(1).unwrap();
    mock.create_topic("events.order", 1, 1).unwrap();
    mock
}

fn cluster(mock: &Mock) -> KafkaCluster {
    let kafka = Kafka {
        bootstrap_servers: mock.bootstrap_servers(),
        properties: BTreeMap::new(),
        oauth: None,
        aws: None,
    };
    KafkaCluster::new(&kafka, &default_headers(), &limits()).unwrap()
}

/// Answers as brokers do to a user without permission to write to any topic.
fn refuse_ids(mock: &Mock) {
    let refused = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED; 20];
    mock.request_errors(RDKafkaApiKey::InitProducerId, &refused);
}

#[tokio::test]
async fn an_open_producer_has_its_producer_id() {
    let mock = mock();
    let cluster = cluster(&mock);
    for _ in 0..3 {
        let producer = cluster.open().await.unwrap();
        assert!(producer.is_sound() && producer.reports().is_identified());
        producer.abandon();
    }
}

#[tokio::test]
async fn a_probe_reports_why_a_producer_gets_no_id() {
    let mock = mock();
    let cluster = cluster(&mock);
    refuse_ids(&mock);
    let failure = cluster.probe().await.unwrap_err();
    assert_eq!((failure.kind, failure.reason), (FailureKind::Cluster, "cluster-authorization"), "{failure}");
    let failure = cluster.open().await.map(drop).unwrap_err();
    assert_eq!(failure.reason, "cluster-authorization", "{failure}");
    mock.clear_request_errors(RDKafkaApiKey::InitProducerId);
    cluster.probe().await.unwrap();
}

#[tokio::test]
async fn rows_purged_by_a_fatal_error_fail_with_its_cause() {
    let mock = mock();
    let cluster = cluster(&mock);
    refuse_ids(&mock);
    let mut producer = cluster.connecting().await.unwrap();
    producer.send(0, "events.order", 0, &Row(1)).unwrap();
    producer.drained().await;
    let mut reports = Vec::new();
    producer.drain(&mut reports);
    let failure = reports.pop().unwrap().outcome.unwrap_err();
    assert_eq!((failure.kind, failure.reason), (FailureKind::Cluster, "cluster-authorization"), "{failure}");
    assert!(matches!(
        producer.send(1, "events.order", 0, &Row(2)),
        Err(NotSent::Session(failure)) if failure.reason == "cluster-authorization"
    ));
}

#[tokio::test]
async fn the_next_session_uses_the_producer_of_a_probe_unless_the_settings_changed() {
    let mock = mock();
    let cluster = cluster(&mock);
    cluster.probe().await.unwrap();
    assert!(cluster.spare.borrow().is_some());
    cluster.open().await.unwrap().abandon();
    assert!(cluster.spare.borrow().is_none());
    cluster.probe().await.unwrap();
    let settings = cluster.settings.borrow().clone();
    cluster.reconfigure(&settings, &limits());
    assert!(cluster.spare.borrow().is_none());
    let (probed, ()) = tokio::join!(cluster.probe(), async { cluster.reconfigure(&settings, &limits()) });
    probed.unwrap();
    assert!(cluster.spare.borrow().is_none(), "it was opened with the old settings");
}
