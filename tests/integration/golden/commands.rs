//! The text, the JSON and the exit code of each command, on a fixed database.

use super::Stage;
use crate::support::database::{Database, run, unique};
use crate::support::outbox::Outbox;
use crate::support::topics;

#[tokio::test]
async fn output_of_commands_on_a_new_database_is_unchanged() {
    let database = Database::create("golden_new").await;
    let role = unique("relay");
    let stage = Stage::new(&database, &role).await;
    stage.play(&["init", "migrate", "completions"]).await;
    drop(stage);
    topics::delete(&format!("{}.order", database.name())).await;
    let roles = ["", "_operator", "_monitor", "_writer"].map(|suffix| format!("{role}{suffix}"));
    database.drop(&roles.each_ref().map(String::as_str)).await;
}

#[tokio::test]
async fn output_of_commands_is_unchanged() {
    let mut outbox = Outbox::without_topics("golden").await;
    for kind in ["order", "invoice", "copy"] {
        // The records have the time of their events, so Kafka would delete them.
        outbox.create_topic_with(kind, 1, &[("retention.ms", "-1")]).await;
    }
    let stage = Stage::new(&outbox.database, outbox.roles.relay()).await;
    stage.script("sent.sql").await;
    stage.command("run --once").succeeds();
    run(&stage.client, "UPDATE app.outbox SET sent_at = created_at + interval '2 seconds'").await;
    stage.play(&["healthy", "configuration", "usage", "verify", "confirm"]).await;
    stage.script("troubled.sql").await;
    stage.play(&["troubled", "dead-letters", "blocked-keys", "pauses", "replay", "reap"]).await;
    stage.script("damaged.sql").await;
    stage.play(&["damaged"]).await;
    drop(stage);
    outbox.drop().await;
}
