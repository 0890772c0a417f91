//! A producer quota of the brokers.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::outbox::Outbox;
use crate::support::rows::{self, Filling};
use crate::support::topics;

const BYTES_PER_SECOND: u32 = 150_000;
const ROWS: i64 = 2_000;

/// Limits the rate of producers with this client ID.
fn set_quota(client: &str) {
    let library = std::env::var("OUTBOX_RELAY_TEST_KAFKA_LIB").unwrap();
    let output = Command::new("java")
        .args(["-cp", &format!("{library}/*"), topics::config_command(), "--bootstrap-server"])
        .args([&topics::bootstrap(), "--alter", "--entity-type", "clients", "--entity-name", client])
        .args(["--add-config", &format!("producer_byte_rate={BYTES_PER_SECOND}")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// 4 MB, which the relay sends in requests of up to 1 MB. The broker delays each for seconds.
#[tokio::test]
async fn quota_limits_the_rate_without_a_hold_or_a_duplicate() {
    let outbox = Outbox::create("quota", 3).await;
    let client = outbox.database.name().to_owned();
    set_quota(&client);
    rows::insert(&outbox, "order", 100, 0..ROWS, Filling::Random(2_000)).await;
    let relay = outbox
        .relay()
        .set("admin", "listen", "127.0.0.1:0")
        .set_kafka_property("client.id", &client)
        .set_kafka_property("compression.type", "none");
    let mut relay = relay.start().await;
    let begun = Instant::now();
    let mut throttled = false;
    while outbox.unsent().await > 0 {
        assert!(begun.elapsed() < Duration::from_secs(120), "{} rows are unsent", outbox.unsent().await);
        let (status, ready) = relay.get("/readyz").await.unwrap();
        assert_eq!(status, 200, "{ready}");
        throttled |= ready.contains("throttled by a quota");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    println!("{ROWS} rows of 2 KB took {:?}", begun.elapsed());
    assert!(throttled, "/readyz names the quota");
    assert_eq!(relay.metric("outbox_relay_holds_total").await, Some(0.0), "{}", relay.log());
    rows::insert(&outbox, "order", 100, ROWS..ROWS + 200, Filling::Random(2_000)).await;
    outbox.wait_until_drained(Duration::from_secs(60)).await;
    assert_eq!(relay.metric("outbox_relay_holds_total").await, Some(0.0), "{}", relay.log());
    assert!(relay.stop().await.success());
    println!("{}", outbox.check().await.assert_exact());
    outbox.drop().await;
}
