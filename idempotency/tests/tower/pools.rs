//! The pools of another driver, in each of its versions.

use tokio::task::yield_now;

use crate::api::{Api, keyed, post_to};
use crate::database::{Database, url};

macro_rules! pool_of_sqlx {
    ($sqlx:ident, $stores:ident, $dropped:ident) => {
        #[tokio::test]
        async fn $stores() {
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

        #[tokio::test]
        async fn $dropped() {
            let db = Database::new().await;
            let options = ::$sqlx::postgres::PgPoolOptions::new().max_connections(1);
            let pool = options.connect(&url()).await.unwrap();
            let api = Api::with_pool(&db, pool.clone(), |layer| layer).await;
            let taken = pool.acquire().await.unwrap();
            tokio::select! {
                biased;
                _ = api.send(keyed("/plain", "{}")) => panic!("the pool is empty"),
                () = async {
                    for _ in 0..100 {
                        yield_now().await; // the pool does not report who waits
                    }
                } => {}
            }
            drop(taken);
            // A remainder of the dropped request would get the connection first.
            let later = post_to("/plain", &[("idempotency-key", "later")], "{}");
            assert_eq!(api.send(later).await.status, 201);
            assert_eq!(api.outcomes(), ["Started"]);
            assert_eq!(db.number("SELECT count(*) FROM {s}.idempotency_key").await, 1);
            assert_eq!(db.number("SELECT count(*) FROM {s}.effect").await, 1);
            db.clean_up().await;
        }
    };
}

#[cfg(feature = "sqlx-08")]
pool_of_sqlx!(
    sqlx_08,
    pool_of_sqlx_08_stores_and_releases,
    request_that_is_dropped_while_it_waits_for_sqlx_08_has_no_effect
);
#[cfg(feature = "sqlx-09")]
pool_of_sqlx!(
    sqlx,
    pool_of_sqlx_09_stores_and_releases,
    request_that_is_dropped_while_it_waits_for_sqlx_09_has_no_effect
);
