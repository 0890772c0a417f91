use super::*;

fn words(
    replicas: usize,
    in_sync: usize,
    settings: Result<(usize, i64), Unknown>,
    largest_bytes: i64,
) -> Vec<&'static str> {
    let topic = TopicInUse { topic: "events.order".to_owned(), has_events: true, waiting: 1, largest_bytes };
    let settings = settings.map(|(min_insync, request_bytes_max)| TopicSettings {
        min_insync,
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
    assert_eq!(words(3, 3, Err(Unknown::Hidden), 10), ["topic-settings-hidden"]);
    assert_eq!(words(3, 0, Err(Unknown::Hidden), 10), ["topic-settings-hidden", "partition-unavailable"]);
    assert_eq!(words(3, 3, Err(Unknown::Unsupported), 10), [""; 0]);
    assert_eq!(words(1, 0, Err(Unknown::Unsupported), 10), ["replication-factor", "partition-unavailable"]);
}

#[test]
fn brokers_on_this_machine_are_distinguished_from_others() {
    for local in ["localhost:9092", "127.0.0.1:9092", "[::1]:9092", "PLAINTEXT://localhost:9092", "localhost"]
    {
        assert!(is_loopback(local), "{local}");
    }
    for other in ["kafka-1:9092", "10.0.0.1:9092", "[2001:db8::1]:9092", "0.0.0.0:9092"] {
        assert!(!is_loopback(other), "{other}");
    }
}
