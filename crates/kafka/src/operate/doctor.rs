//! The Kafka checks of `outbox-relay doctor`. They publish nothing.

use crate::cluster::KafkaCluster;
use crate::limits;
use crate::operate::topics::{Described, Inspector, TopicSettings, Unknown};
use crate::options::{Kafka, Property, is_remote};
use relay::failure::{FailureKind, KafkaFailure};
use relay::publisher::Publisher;
use relay::reason::{CLUSTER_AUTHORIZATION, UNKNOWN_TOPIC, remedy};
use settings::codes;
use settings::doctor::{CHECK_SKIPPED, Finding, Severity, TopicInUse};

codes! {
    KAFKA_TLS_OFF = Warning, "kafka-tls-off",
        "events are sent to Kafka unencrypted";
    KAFKA_UNREACHABLE = Error, "kafka-unreachable",
        "this host cannot publish events now; topics were not checked";
    ADVERTISED = Error, "advertised-address",
        "this host cannot resolve or reach an address that a broker advertises, so events for its partitions wait";
    TOPIC_MISSING = Error, "topic-missing",
        "events for this topic wait until it exists";
    TOPIC_UNUSABLE = Error, "topic-unusable",
        "events for this topic wait until the error is resolved";
    TOPIC_HIDDEN = Note, "topic-settings-hidden",
        "the relay's Kafka user may not read the topic's settings, so they were not checked; the relay assumes Kafka's default \
         for the maximum record size";
    PARTITION_UNAVAILABLE = Error, "partition-unavailable",
        "a partition currently accepts no events: it has no leader or too few in-sync replicas";
    REPLICATION_FACTOR = Warning, "replication-factor",
        "there is one copy of each record: if its broker loses its disk, sent events are lost";
    MIN_INSYNC_TOO_HIGH = Error, "min-insync-too-high",
        "every replica must acknowledge a record, so the topic accepts nothing while one broker is down, even for a restart";
    MIN_INSYNC_TOO_LOW = Warning, "min-insync-too-low",
        "a record counts as stored when one broker has it: if that broker is lost before the others have copied it, the event \
         is lost";
    UNCLEAN_ELECTION = Warning, "unclean-leader-election",
        "a replica that lacks records can become the leader, and records that were acknowledged are then lost";
    PAYLOAD_ABOVE_TOPIC = Warning, "payload-above-topic-limit",
        "a waiting event is larger than the topic's maximum record size; unless compression makes it smaller, Kafka rejects it";
    TOPIC_ABOVE_RELAY = Warning, "topic-limit-above-relay",
        "the topic accepts larger records than the relay sends; the relay rejects an event between the two limits, although \
         Kafka would accept it";
}

/// In the commands of remedies.
const BROKER: &str = "--bootstrap-server BROKER";

/// Checks the cluster and the topics of the outbox's events.
pub async fn examine(settings: &Kafka, cluster: &KafkaCluster, topics: &[TopicInUse]) -> Vec<Finding> {
    let mut findings = Vec::from_iter(unencrypted(settings));
    if let Err(failure) = find(settings, cluster, topics, &mut findings).await {
        let (problem, remedy) = (failure.to_string(), remedy(failure.reason));
        findings.push(KAFKA_UNREACHABLE.found(&settings.bootstrap_servers, problem, remedy));
    }
    for finding in &mut findings {
        finding.remedy =
            finding.remedy.replace(BROKER, &format!("--bootstrap-server {}", settings.bootstrap_servers));
    }
    findings
}

/// Fails if Kafka is unavailable.
async fn find(
    settings: &Kafka,
    cluster: &KafkaCluster,
    topics: &[TopicInUse],
    findings: &mut Vec<Finding>,
) -> Result<(), KafkaFailure> {
    // Without permission to publish, the brokers still answer, and the topics show which permission is missing.
    let probed = cluster.probe().await;
    if probed.as_ref().is_err_and(|failure| failure.reason != CLUSTER_AUTHORIZATION.word) {
        return probed;
    }
    if let Some(failure) = cluster.unusable_addresses().await {
        findings.push(ADVERTISED.found(&settings.bootstrap_servers, failure.error, remedy(failure.reason)));
    }
    if settings.uses_tokens() {
        let problem = "the Kafka client library cannot read topic settings with token authentication";
        let remedy = "check them with kafka-configs.sh --describe --entity-type topics";
        findings.push(CHECK_SKIPPED.found("topic settings", problem, remedy));
    }
    let inspector = Inspector::new(settings, cluster).await?;
    for topic in topics {
        match inspector.describe(&topic.topic).await {
            Ok(described) => findings.extend(judge(topic, &described, cluster.record_bytes_max())),
            Err(failure) if failure.kind == FailureKind::Topic => {
                findings.extend(topic.has_events.then(|| unusable(topic, &failure)));
            }
            Err(failure) => return Err(failure),
        }
    }
    let is_explained = findings.iter().any(|finding| finding.code.severity == Severity::Error);
    if is_explained { Ok(()) } else { probed }
}

fn unusable(topic: &TopicInUse, failure: &KafkaFailure) -> Finding {
    let waiting = match topic.waiting {
        0 => String::new(),
        1 => "; one of the oldest waiting rows is for this topic".to_owned(),
        rows => format!("; {rows} of the oldest waiting rows are for this topic"),
    };
    let place = format!("topic {}", topic.topic);
    // The failure may already begin with the place.
    let failure_text = failure.to_string();
    let problem = failure_text.trim_start_matches(&format!("{place}: ")).to_owned() + &waiting;
    if failure.reason == UNKNOWN_TOPIC.word {
        let create = format!("kafka-topics.sh --bootstrap-server BROKER --create --topic {}", topic.topic);
        return TOPIC_MISSING.found(place, problem, create);
    }
    TOPIC_UNUSABLE.found(place, problem, remedy(failure.reason))
}

fn judge(topic: &TopicInUse, described: &Described, record_bytes_max: usize) -> Vec<Finding> {
    let Described { replicas, in_sync, settings } = *described;
    let name = &topic.topic;
    let place = format!("topic {name}");
    let alter = |setting: &str| {
        format!(
            "kafka-configs.sh --bootstrap-server BROKER --alter --entity-type topics --entity-name {name} --add-config {setting}"
        )
    };
    let mut findings = Vec::new();
    if replicas == 1 {
        let remedy =
            "run kafka-reassign-partitions.sh with a plan that has three replicas for each partition";
        findings.push(REPLICATION_FACTOR.found(&place, "its replication factor is 1", remedy));
    }
    let TopicSettings { min_insync, request_bytes_max, unclean_election } = match settings {
        Ok(settings) => settings,
        Err(unknown) => {
            if unknown == Unknown::Hidden {
                let remedy = "grant the relay's Kafka user DescribeConfigs on the topic";
                findings.push(TOPIC_HIDDEN.found(&place, "its settings are not readable", remedy));
            }
            if in_sync == 0 {
                findings.push(unavailable(&place, in_sync, 1));
            }
            return findings;
        }
    };
    let wanted = min_insync.unwrap_or(1);
    if in_sync < wanted.max(1) {
        findings.push(unavailable(&place, in_sync, wanted));
    }
    if let Some(min_insync) = min_insync.filter(|min| *min > replicas || *min == replicas && replicas > 1) {
        let problem = format!("min.insync.replicas is {min_insync}, and the topic has {replicas} replicas");
        let remedy = alter(&format!("min.insync.replicas={}", (replicas - 1).max(1)));
        findings.push(MIN_INSYNC_TOO_HIGH.found(&place, problem, remedy));
    }
    if min_insync == Some(1) && replicas > 2 {
        let problem = format!("min.insync.replicas is 1, and the topic has {replicas} replicas");
        findings.push(MIN_INSYNC_TOO_LOW.found(&place, problem, alter("min.insync.replicas=2")));
    }
    if min_insync == Some(1) && replicas == 2 {
        let problem = "min.insync.replicas is 1, the only choice with two replicas";
        let remedy = "run kafka-reassign-partitions.sh with a plan that has three replicas for each partition, then \
        set min.insync.replicas=2";
        findings.push(MIN_INSYNC_TOO_LOW.found(&place, problem, remedy));
    }
    if unclean_election {
        let problem = "unclean.leader.election.enable is true";
        findings.push(UNCLEAN_ELECTION.found(&place, problem, alter("unclean.leader.election.enable=false")));
    }
    findings.extend(above_relay(&place, request_bytes_max, record_bytes_max));
    if topic.largest_bytes > request_bytes_max {
        let problem = format!(
            "max.message.bytes is {request_bytes_max}, and the largest waiting event has {}",
            topic.largest_bytes
        );
        let enough = alter(&format!("max.message.bytes={}", topic.largest_bytes.saturating_add(65_536)));
        findings.push(PAYLOAD_ABOVE_TOPIC.found(&place, problem, enough));
    }
    findings
}

/// Kafka's default limit is slightly above that of the client library, which is no finding.
fn above_relay(place: &str, request_bytes_max: i64, record_bytes_max: usize) -> Option<Finding> {
    let is_above = request_bytes_max > limits::DEFAULT.max(record_bytes_max) as i64;
    is_above.then(|| {
        let problem = format!(
            "max.message.bytes is {request_bytes_max}, but message.max.bytes in [kafka.properties] is {record_bytes_max}"
        );
        let remedy = format!("set [kafka.properties] \"message.max.bytes\" = \"{request_bytes_max}\", and restart the relays");
        TOPIC_ABOVE_RELAY.found(place, problem, remedy)
    })
}

fn unavailable(place: &str, in_sync: usize, wanted: usize) -> Finding {
    let problem = match in_sync {
        0 => "a partition has no leader".to_owned(),
        _ => format!("a partition has {in_sync} of the {wanted} in-sync replicas that it needs"),
    };
    let remedy = "start the brokers that are down. To list the affected partitions, run `kafka-topics.sh \
    --bootstrap-server BROKER --describe --unavailable-partitions`";
    PARTITION_UNAVAILABLE.found(place, problem, remedy)
}

fn unencrypted(settings: &Kafka) -> Option<Finding> {
    let protocol = settings.properties.get("security.protocol").and_then(Property::plain);
    let protocol = protocol.unwrap_or("plaintext").to_lowercase();
    (protocol.ends_with("plaintext") && is_remote(&settings.bootstrap_servers)).then(|| {
        let problem = format!("security.protocol is {protocol}, and the brokers are remote");
        let tls = if protocol.starts_with("sasl") { "sasl_ssl" } else { "ssl" };
        let remedy = format!("set [kafka.properties] \"security.protocol\" = \"{tls}\", and ssl.ca.location");
        KAFKA_TLS_OFF.found(&settings.bootstrap_servers, problem, remedy)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(
        replicas: usize,
        in_sync: usize,
        settings: Result<(usize, i64), Unknown>,
        largest_bytes: i64,
    ) -> Vec<&'static str> {
        let topic =
            TopicInUse { topic: "events.order".to_owned(), has_events: true, waiting: 1, largest_bytes };
        let settings = settings.map(|(min_insync, request_bytes_max)| TopicSettings {
            min_insync: Some(min_insync).filter(|min| *min > 0),
            request_bytes_max,
            unclean_election: false,
        });
        let described = Described { replicas, in_sync, settings };
        judge(&topic, &described, 1_000_000).iter().map(|finding| finding.code.word).collect()
    }

    #[test]
    fn a_topic_should_survive_the_loss_of_one_broker() {
        assert_eq!(words(3, 3, Ok((2, 1_000)), 10), [""; 0]);
        assert_eq!(words(1, 1, Ok((1, 1_000)), 10), ["replication-factor"]);
        assert_eq!(words(3, 3, Ok((1, 1_000)), 10), ["min-insync-too-low"]);
        assert_eq!(words(2, 2, Ok((1, 1_000)), 10), ["min-insync-too-low"]);
        assert_eq!(words(3, 3, Ok((3, 1_000)), 10), ["min-insync-too-high"]);
        assert_eq!(words(2, 2, Ok((2, 1_000)), 10), ["min-insync-too-high"]);
        assert_eq!(
            words(1, 1, Ok((2, 1_000)), 10),
            ["replication-factor", "partition-unavailable", "min-insync-too-high"]
        );
        assert_eq!(words(3, 1, Ok((2, 1_000)), 10), ["partition-unavailable"]);
        assert_eq!(words(3, 0, Ok((2, 1_000)), 10), ["partition-unavailable"]);
        assert_eq!(words(3, 3, Ok((2, 1_000)), 1_001), ["payload-above-topic-limit"]);
        assert_eq!(words(3, 3, Ok((2, 1_048_588)), 10), [""; 0], "both defaults");
        assert_eq!(words(3, 3, Ok((2, 5_242_880)), 10), ["topic-limit-above-relay"]);
        for (replicas, in_sync, found) in
            [(3, 3, vec![]), (2, 2, vec![]), (3, 0, vec!["partition-unavailable"])]
        {
            assert_eq!(words(replicas, in_sync, Ok((0, 1_000)), 10), found, "without min.insync.replicas");
        }
        assert_eq!(words(3, 3, Err(Unknown::Hidden), 10), ["topic-settings-hidden"]);
        assert_eq!(words(3, 0, Err(Unknown::Hidden), 10), ["topic-settings-hidden", "partition-unavailable"]);
        assert_eq!(words(3, 3, Err(Unknown::Unsupported), 10), [""; 0]);
        assert_eq!(
            words(1, 0, Err(Unknown::Unsupported), 10),
            ["replication-factor", "partition-unavailable"]
        );
    }

    #[test]
    fn brokers_on_this_machine_are_distinguished_from_others() {
        for local in
            ["localhost:9092", "127.0.0.1:9092", "[::1]:9092", "PLAINTEXT://localhost:9092", "localhost"]
        {
            assert!(!is_remote(local), "{local}");
        }
        for other in ["kafka-1:9092", "10.0.0.1:9092", "[2001:db8::1]:9092", "0.0.0.0:9092"] {
            assert!(is_remote(other), "{other}");
        }
    }
}
