//! A key goes to the partition that Kafka's own producer, the Java client, chooses for it.

use std::process::Command;

use crate::support::consumer;
use crate::support::outbox::Outbox;
use crate::support::wait::STALLED;

/// The partitions that the Java client chooses.
fn as_java_chooses(partitions: u32, keys: &[String]) -> Vec<u32> {
    let jars = std::env::var("OUTBOX_RELAY_TEST_KAFKA_LIB").expect("run `eval \"$(scripts/services env)\"`");
    let hex = |key: &String| key.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    let output = Command::new("java")
        .args(["-XX:TieredStopAtLevel=1", "-cp", &format!("{jars}/*")])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/java/PartitionForKey.java"))
        .arg(partitions.to_string())
        .args(keys.iter().map(hex))
        .output()
        .expect("Java 17 is required: run scripts/prerequisites");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(|line| line.parse().unwrap()).collect()
}

/// Keys in ASCII and other scripts, of each length that the hash handles differently, and the empty key.
fn keys() -> Vec<String> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut keys: Vec<String> = ["", " ", "42", "-1", "order-1", "\u{e4}", "\u{20ac}\u{1f980}", "\u{fffd}"]
        .map(str::to_owned)
        .to_vec();
    for length in 1..40 {
        keys.push((0..length).map(|_| random.alphanumeric()).collect());
        keys.push((0..length).map(|_| random.char('\u{1}'..)).collect());
    }
    keys
}

#[tokio::test]
async fn record_is_in_the_partition_that_the_java_client_chooses() {
    const PARTITIONS: u32 = 12;
    let outbox = Outbox::create("partition", PARTITIONS as i32).await;
    let keys = keys();
    let insert = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type)
                  SELECT 'order', key, 'Keyed' FROM unnest($1::text[]) AS key";
    outbox.client.execute(insert, &[&keys]).await.unwrap();
    let mut relay = outbox.start_relay().await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());

    let records = consumer::read_all(&outbox.topics()).await;
    assert_eq!(records.len(), keys.len());
    for (key, partition) in keys.iter().zip(as_java_chooses(PARTITIONS, &keys)) {
        let record = records.iter().find(|record| record.key.as_deref() == Some(key.as_bytes())).unwrap();
        assert_eq!(record.partition as u32, partition, "{key:?}");
    }
    outbox.drop().await;
}

#[test]
fn partitions_match_the_golden_values_of_the_java_client() {
    let golden = [("", 9), ("abc", 3), ("\u{e9}", 3)];
    for (key, partition) in golden {
        assert_eq!(relay::partition::of(key.as_bytes(), 12), partition, "{key:?}");
    }
    let keys = keys();
    for partitions in [1, 2, 3, 7, 64, 1_000] {
        let ours: Vec<u32> =
            keys.iter().map(|key| relay::partition::of(key.as_bytes(), partitions)).collect();
        assert_eq!(ours, as_java_chooses(partitions, &keys), "{partitions} partitions");
    }
}
