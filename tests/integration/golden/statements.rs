//! The SQL that `migrate` prints.

use super::Stage;
use crate::schema::adopting::world::TABLE;
use crate::support::database::{Database, run};

/// Most of them print the statements of one configuration.
const PRINTED: [&str; 13] = [
    "migrate-print",
    "migrate-print-modules",
    "migrate-print-renamed",
    "migrate-print-roles",
    "migrate-print-roles-renamed",
    "migrate-print-adapter",
    "queries",
    "queries-bytea",
    "queries-delete",
    "queries-topic-allow",
    "queries-event-type",
    "queries-constant-topic",
    "queries-renamed",
];

#[tokio::test]
async fn printed_statements_are_unchanged() {
    let database = Database::create("golden_sql").await;
    let stage = Stage::new(&database, "shop_relay").await;
    stage.play(&PRINTED).await;
    let queries = "migrate --print-queries --config FOLDER/default.toml";
    let prepared = stage.command(queries);
    let unprepared = format!("OUTBOX_RELAY__POSTGRES__PREPARED_STATEMENTS=false {queries}");
    assert!(prepared.succeeds() == stage.command(&unprepared).stdout, "the statements are the same");
    drop(stage);
    database.drop(&[]).await;
}

#[tokio::test]
async fn statements_of_adoption_are_unchanged() {
    let database = Database::create("golden_adopt").await;
    let stage = Stage::new(&database, "shop_relay").await;
    run(&stage.client, TABLE).await;
    stage.play(&["adopt-renamed", "adopt-plain"]).await;
    drop(stage);
    database.drop(&[]).await;
}
