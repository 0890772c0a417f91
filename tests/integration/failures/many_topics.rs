//! Thousands of missing topics at once, for example because a writer puts an ID into the aggregate type.

use std::time::{Duration, Instant};

use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::relay::RelayProcess;
use crate::support::rows::{self, Filling};
use crate::support::wait::{STALLED, assert_within, wait_until};

const TOPICS: i64 = 3_000;
const HELD: &str = "SELECT count(*) FROM app.outbox_hold";

/// The CPU time of the process so far.
fn cpu(relay: &RelayProcess) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", relay.pid().as_raw_nonzero())).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

#[tokio::test]
async fn thousands_of_missing_topics_cost_little_and_delay_no_other_topic() {
    let mut outbox = Outbox::create("manymissing", 3).await;
    let missing = format!(
        "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type)
         SELECT 'tenant-' || n, n::text, 'Created' FROM generate_series(1, {TOPICS}) AS n"
    );
    run(&outbox.client, &missing).await;
    rows::insert(&outbox, "order", 1_000, 0..1_000, Filling::Nothing).await;
    let mut relay = outbox.start_relay().await;
    let began = Instant::now();
    outbox.wait_until_sent("order", STALLED).await;
    assert_within("1,000 rows behind missing topics", began.elapsed(), Duration::from_secs(15));
    wait_until("all missing topics are held", STALLED, async || outbox.count(HELD).await == TOPICS).await;

    let status: serde_json::Value =
        serde_json::from_str(&outbox.operator().command(&["status", "--json"]).stdout).unwrap();
    assert_eq!(status["held_topics_total"], TOPICS, "{}", status["verdict"]);
    assert_eq!(status["held_topics"].as_array().unwrap().len(), 100);

    // Each hold is probed several times in this time.
    let probes = "SELECT sum(probes) FROM app.outbox_hold";
    let (before, used, begun) = (outbox.count(probes).await, cpu(&relay), Instant::now());
    wait_until("each topic was probed again", Duration::from_secs(120), async || {
        outbox.count(probes).await >= before + TOPICS
    })
    .await;
    let share = (cpu(&relay) - used).as_secs_f64() / begun.elapsed().as_secs_f64();
    println!("an idle relay with {TOPICS} held topics used {:.1} % of a core", 100.0 * share);
    assert!(share < 0.15, "an idle relay used {:.1} % of a core", 100.0 * share);

    rows::insert(&outbox, "order", 1_000, 1_000..21_000, Filling::Nothing).await;
    let sent = outbox.wait_until_sent("order", STALLED).await;
    println!("20,000 rows of another topic took {sent:?}");
    outbox.create_topic("tenant-7", 1).await;
    let released =
        "SELECT count(*) FROM app.outbox WHERE aggregate_type = 'tenant-7' AND sent_at IS NOT NULL";
    let took =
        wait_until("one of the topics is released", STALLED, async || outbox.count(released).await == 1)
            .await;
    assert_within("one of the topics is released", took, Duration::from_secs(30));
    assert!(relay.stop().await.success());
    println!("{}", outbox.check_of("order").await.assert_exact());
    outbox.drop().await;
}
