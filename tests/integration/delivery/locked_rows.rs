//! Rows of the outbox that another session has locked. They delay nothing, nothing overtakes them, and they are
//! published once.

use std::time::Duration;

use crate::support::consumer::read_all;
use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::wait::{STALLED, wait_until};
use crate::support::writers;

/// Locks the first row of one of 20 keys before a relay can claim it, and keeps the lock until all other rows are
/// settled. `end` ends the transaction with the lock.
async fn locked(test: &str, on_sent: &str, lock: &str, end: &str, stops_settling: bool) {
    let outbox = Outbox::create(test, 3).await;
    let keys = outbox.add_aggregates("order", 20).await;
    let first = writers::write(&outbox.client, &keys).await[0];
    for _ in 0..9 {
        writers::write(&outbox.client, &keys).await;
    }
    let operator = outbox.database.connect().await;
    run(&operator, &format!("BEGIN; {}", lock.replace("$1", &first.to_string()))).await;

    let relay = outbox.relay().set("outbox", "on_sent", on_sent).start().await;
    let left = i64::from(stops_settling);
    wait_until("all rows but the locked one are settled", STALLED, async || outbox.unsent().await == left)
        .await;
    // More rows of the same key, while its first row is still locked.
    writers::write(&outbox.client, &keys).await;
    wait_until("later rows are published", STALLED, async || outbox.unsent().await == left).await;
    outbox.check().await.assert_exact();
    run(&operator, end).await;
    outbox.wait_until_drained(STALLED).await;
    let report = outbox.check().await;
    println!("{on_sent}, {lock}, {end}: {report}");
    report.assert_exact();

    if on_sent == "mark" {
        // The relay kept this row in memory until it was settled, and must have removed it.
        let again = format!("UPDATE app.outbox SET sent_at = NULL WHERE id = {first}");
        run(&outbox.client, &again).await;
        outbox.wait_until_drained(Duration::from_secs(35)).await;
        let records = read_all(&outbox.topics()).await;
        assert_eq!(records.len(), 20 * 11 + 1, "the row that was put back is published again");
    }
    drop(relay);
    outbox.drop().await;
}

#[tokio::test]
async fn row_locked_by_an_open_update_is_published_once_and_settled_when_it_is_free() {
    let update = "UPDATE app.outbox SET headers = '{}' WHERE id = $1";
    locked("open_update", "mark", update, "ROLLBACK", true).await;
}

#[tokio::test]
async fn row_updated_meanwhile_is_published_once_and_settled_when_it_is_free() {
    let update = "UPDATE app.outbox SET headers = '{}' WHERE id = $1";
    locked("committed_update", "mark", update, "COMMIT", true).await;
}

#[tokio::test]
async fn row_locked_by_a_foreign_key_is_published_once_and_does_not_hold_up_its_settlement() {
    let key_share = "SELECT 1 FROM app.outbox WHERE id = $1 FOR KEY SHARE";
    locked("key_share", "mark", key_share, "COMMIT", false).await;
}

#[tokio::test]
async fn row_locked_by_a_foreign_key_is_published_once_and_deleted_when_it_is_free() {
    let key_share = "SELECT 1 FROM app.outbox WHERE id = $1 FOR KEY SHARE";
    locked("key_share_delete", "delete", key_share, "COMMIT", true).await;
}

#[tokio::test]
async fn row_updated_meanwhile_is_published_once_and_deleted_when_it_is_free() {
    let update = "UPDATE app.outbox SET headers = '{}' WHERE id = $1";
    locked("update_delete", "delete", update, "COMMIT", true).await;
}

/// Writes one event for each key of a round, waits until only `left` rows are unsent, and so on. Returns the median time of a round.
async fn median(outbox: &Outbox, rounds: &[&[String]], left: i64) -> Duration {
    let mut took = Vec::new();
    for keys in rounds {
        writers::write(&outbox.client, keys).await;
        took.push(wait_until("the rows are settled", STALLED, async || outbox.unsent().await == left).await);
    }
    took.sort();
    took[took.len() / 2]
}

/// A settlement waits one second for a lock and then skips the row. From then on, every worker skips it.
#[tokio::test]
async fn locked_row_does_not_slow_down_other_rows() {
    const ROUNDS: usize = 30;
    let outbox = Outbox::create("locked_flow", 3).await;
    let keys = outbox.add_aggregates("order", 200).await;
    let first = writers::write(&outbox.client, &keys).await[0];
    let operator = outbox.database.connect().await;
    let lock = format!("BEGIN; UPDATE app.outbox SET headers = NULL WHERE id = {first}");
    run(&operator, &lock).await;
    let mut relay = outbox.start_relay().await;
    wait_until("all rows but the locked one are settled", STALLED, async || outbox.unsent().await == 1).await;
    let rounds: Vec<&[String]> = vec![&keys[..100]; ROUNDS];
    let with_lock = median(&outbox, &rounds, 1).await;
    let waits = relay.log().matches("lock timeout").count();
    run(&operator, "ROLLBACK").await;
    outbox.wait_until_drained(STALLED).await;
    let without = median(&outbox, &rounds, 0).await;
    println!("with a locked row: median {with_lock:.0?}, {waits} waits; without: median {without:.0?}");
    assert!(with_lock < without + Duration::from_millis(800));
    // Every worker may be waiting for the lock when the first one notices it.
    assert!(waits <= 6, "{waits} settlements waited for a known lock");
    assert!(relay.stop().await.success());
    outbox.check().await.assert_exact();
    outbox.drop().await;
}

/// While another session has locked a row that Kafka has acknowledged, no worker waits for it: at a low rate, each event of
/// another lane is settled at once.
#[tokio::test]
async fn single_events_of_other_lanes_do_not_wait_for_a_locked_row() {
    const EVENTS: usize = 30;
    let outbox = Outbox::create("locked_single", 3).await;
    let keys = outbox.add_aggregates("order", 100).await;
    let first = writers::write(&outbox.client, &keys[..1]).await[0];
    let operator = outbox.database.connect().await;
    run(&operator, &format!("BEGIN; UPDATE app.outbox SET headers = NULL WHERE id = {first}")).await;
    let mut relay = outbox.start_relay().await;
    let mut others = Vec::new();
    for key in &keys {
        let same_lane =
            "SELECT count(*) FROM app.outbox WHERE hashtext(aggregate_id) & 63 = hashtext($1) & 63";
        let same: i64 = outbox.client.query_one(same_lane, &[key]).await.unwrap().get(0);
        if same == 0 {
            others.push(key.clone());
        }
    }
    wait_until("the locked row is in Kafka", STALLED, async || relay.log().contains("lock timeout")).await;
    let rounds: Vec<&[String]> = others.iter().cycle().take(EVENTS).map(std::slice::from_ref).collect();
    let with_lock = median(&outbox, &rounds, 1).await;
    run(&operator, "ROLLBACK").await;
    outbox.wait_until_drained(STALLED).await;
    let without = median(&outbox, &rounds, 0).await;
    println!("next to a locked row: median {with_lock:.0?}; without: {without:.0?}");
    assert!(with_lock < without + Duration::from_millis(200));
    assert!(relay.stop().await.success());
    outbox.check().await.assert_exact();
    outbox.drop().await;
}

/// A rejected event counts as a dead letter only once it is one.
#[tokio::test]
async fn rejected_row_that_stays_locked_is_neither_counted_nor_logged() {
    const INVALID: &str = "
        INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload, headers)
        VALUES ('order', 'key', 'Changed', '{}', '[1]')";
    const DEAD: &str = "outbox_relay_dead_letters_total";
    let outbox = Outbox::create("locked_rejected", 1).await;
    run(&outbox.client, INVALID).await;
    let operator = outbox.database.connect().await;
    run(&operator, "BEGIN; UPDATE app.outbox SET headers = '[2]'").await;
    let mut relay = outbox.relay().set("admin", "listen", "127.0.0.1:0").start().await;
    wait_until("the relay has tried several times", STALLED, async || {
        relay.metric("outbox_relay_claims_total").await.unwrap() >= 4.0
    })
    .await;
    assert_eq!(relay.metric(DEAD).await, Some(0.0));
    assert!(!relay.log().contains("moved to the dead letters"), "{}", relay.log());
    run(&operator, "ROLLBACK").await;
    wait_until("it is a dead letter", STALLED, async || outbox.unsent().await == 0).await;
    wait_until("it is counted", STALLED, async || relay.metric(DEAD).await == Some(1.0)).await;
    assert_eq!(relay.log().matches("moved to the dead letters").count(), 1, "{}", relay.log());
    assert!(relay.stop().await.success());
    outbox.drop().await;
}
