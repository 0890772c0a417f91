//! The pool of another driver.

use sqlx::postgres::PgPoolOptions;

use crate::api::{Api, keyed};
use crate::database::{Database, url};

#[tokio::test]
async fn pool_of_sqlx_stores_and_releases() {
    let db = Database::new().await;
    // One connection is enough, because none is held while the handler runs.
    let pool = PgPoolOptions::new().max_connections(1).connect(&url()).await.unwrap();
    let api = Api::with_pool(&db, pool, |layer| layer).await;
    assert_eq!(api.send(keyed("/status/500", "{}")).await.status, 500);
    assert_eq!(db.number("SELECT count(*) FROM {s}.idempotency_key").await, 0);
    assert!(!api.send(keyed("/plain", "{}")).await.is_replay());
    assert!(api.send(keyed("/plain", "{}")).await.is_replay());
    assert_eq!(api.outcomes(), ["Started", "Started", "Replayed"]);
    db.clean_up().await;
}
