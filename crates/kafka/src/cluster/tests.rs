//! Tests with librdkafka's mock cluster, which fails on request.

use super::*;
use crate::headers::default_headers;
use crate::operate::copy::Copier;
use crate::options::Property;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use relay::failure::FailureKind;
use relay::fixture::Row;
use relay::fixture::limits;
use relay::publisher::NotSent;

type Mock = MockCluster<'static, DefaultProducerContext>;

fn mock() -> Mock {
    let mock = MockCluster::new(1).unwrap();
    mock.create_topic("events.order", 1, 1).unwrap();
    mock
}

fn cluster(mock: &Mock) -> KafkaCluster {
    cluster_with(mock.bootstrap_servers(), &[])
}

fn cluster_with(bootstrap_servers: String, properties: &[(&str, &str)]) -> KafkaCluster {
    let property = |(name, value): &(&str, &str)| (name.to_string(), Property::Plain(value.to_string()));
    let properties = properties.iter().map(property).collect();
    let kafka = Kafka { bootstrap_servers, properties, oauth: None, aws: None };
    KafkaCluster::new(&kafka, &default_headers(), &limits()).unwrap()
}

#[tokio::test]
async fn a_property_by_its_other_name_replaces_the_default() {
    let own = [("compression.codec", "none"), ("queue.buffering.max.ms", "7")];
    let config = cluster_with("127.0.0.1:1".to_owned(), &own).producer_config().unwrap();
    let set = ["compression.codec", "compression.type", "queue.buffering.max.ms", "linger.ms"];
    assert_eq!(set.map(|name| config.get(name)), [None, Some("none"), None, Some("7")]);
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
    producer.all_reported().await;
    let mut reports = Vec::new();
    producer.take_reports(&mut reports);
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
    drop(cluster.open().await.unwrap());
    assert!(cluster.spare.borrow().is_none());
    cluster.probe().await.unwrap();
    let settings = cluster.settings.borrow().clone();
    cluster.reconfigure(&settings, &limits());
    assert!(cluster.spare.borrow().is_none());
    let (probed, ()) = tokio::join!(cluster.probe(), async { cluster.reconfigure(&settings, &limits()) });
    probed.unwrap();
    assert!(cluster.spare.borrow().is_none(), "it was opened with the old settings");
}

#[tokio::test]
async fn a_copy_continues_with_smaller_requests_after_two_were_refused_for_their_size() {
    let mock = mock();
    let mut copier = Copier::open(cluster(&mock), "events.order").await.unwrap();
    let refused = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE; 2];
    mock.request_errors(RDKafkaApiKey::Produce, &refused);
    copier.publish(&[&Row(1), &Row(2)]).await.unwrap();
    let second = RECORD_BYTES_MAX / 2 - BATCH_OVERHEAD;
    assert_eq!(copier.cluster.shared.limits.smallest(), second / 2);
}

/// Another relay may publish the rows.
#[tokio::test]
async fn no_row_is_judged_once_the_claim_is_lost() {
    let mock = mock();
    let cluster = cluster(&mock);
    for (checks, expected) in [(0, 0), (1, 1), (2, 3)] {
        let checked = Cell::new(0);
        let may_send = || checked.replace(checked.get() + 1) < checks;
        let rows = [&Row(1), &Row(2), &Row(3)];
        let judged = cluster.judge("events.order", 0, &rows, Duration::from_secs(15), may_send).await;
        assert!(judged.failure.is_none(), "{judged:?}");
        assert_eq!(judged.acknowledged, expected, "{checks} checks");
    }
}
