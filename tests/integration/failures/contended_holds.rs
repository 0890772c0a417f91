//! An operator's open transaction prevents holds from being recorded. Acknowledged rows are settled nevertheless.

use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::wait::{STALLED, wait_until};
use crate::support::writers;

async fn sent_rows_are_settled(test: &str, on_sent: &str) {
    let outbox = Outbox::create(test, 3).await;
    let keys = outbox.add_aggregates("order", 20).await;
    // Rows of the same keys, and therefore of the same lanes and batches, for a topic that does not exist.
    run(
        &outbox.client,
        "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type)
         SELECT 'missing', 'order-' || n, 'Lost' FROM generate_series(1, 20) AS n",
    )
    .await;
    writers::write(&outbox.client, &keys).await;
    let operator = outbox.database.connect().await;
    // This statement updates the version of the holds, whose row stays locked.
    run(&operator, "BEGIN; DELETE FROM app.outbox_hold").await;
    let mut relay = outbox.relay().set("outbox", "on_sent", on_sent).start().await;
    let sent = async || outbox.unsent_of("order").await == 0;
    wait_until("the acknowledged rows are settled", STALLED, sent).await;
    for _ in 0..3 {
        writers::write(&outbox.client, &keys).await;
        wait_until("later rows are settled, too", STALLED, sent).await;
    }
    assert_eq!(outbox.holds().await, [], "no hold while the operator's transaction is open");
    run(&operator, "ROLLBACK").await;
    wait_until("the topic is held", STALLED, async || {
        outbox.holds().await == [(outbox.topic("missing"), "unknown-topic".to_owned())]
    })
    .await;
    assert!(relay.stop().await.success());
    outbox.check_of("order").await.assert_exact();
    outbox.drop().await;
}

#[tokio::test]
async fn sent_rows_are_settled_while_a_hold_cannot_be_recorded() {
    sent_rows_are_settled("contended_hold", "mark").await;
}

#[tokio::test]
async fn sent_rows_are_deleted_while_a_hold_cannot_be_recorded() {
    sent_rows_are_settled("contended_hold_delete", "delete").await;
}
