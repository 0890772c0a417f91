//! The pools of another driver, in each of its versions.

use crate::api::{Api, keyed};
use crate::database::{Database, url};

macro_rules! pool_of_sqlx_stores_and_releases {
    ($version:ident, $sqlx:ident) => {
        #[tokio::test]
        async fn $version() {
            let db = Database::new().await;
            // One connection is enough, because none is held while the handler runs.
            let options = ::$sqlx::postgres::PgPoolOptions::new().max_connections(1);
            let pool = options.connect(&url()).await.unwrap();
            let api = Api::with_pool(&db, pool, |layer| layer).await;
            assert_eq!(api.send(keyed("/status/500", "{}")).await.status, 500);
            assert_eq!(db.number("SELECT count(*) FROM {s}.idempotency_key").await, 0);
            assert!(!api.send(keyed("/plain", "{}")).await.is_replay());
            assert!(api.send(keyed("/plain", "{}")).await.is_replay());
            assert_eq!(api.outcomes(), ["Started", "Started", "Replayed"]);
            db.clean_up().await;
        }
    };
}

#[cfg(feature = "sqlx-08")]
pool_of_sqlx_stores_and_releases!(pool_of_sqlx_08_stores_and_releases, sqlx_08);
#[cfg(feature = "sqlx-09")]
pool_of_sqlx_stores_and_releases!(pool_of_sqlx_09_stores_and_releases, sqlx);
