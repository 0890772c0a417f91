//! Connections of sqlx and diesel can have a transaction or none, which each call checks.

#![allow(dead_code, unused_imports, unused_macros)] // only for these drivers

use std::time::Duration;

use pg_idempotency::idempotency::{self, Begun, Fingerprint, Key, PhaseError, Request, Scope};
use pg_idempotency::retry::{Classify, Verdict};
use pg_idempotency::{DatabaseError, inbox};
use pg_outbox::PostgresError;

use crate::modules::{Database, url};

fn request() -> Request {
    let scope = Scope::new("POST", "/payments", 1).unwrap();
    Request::new(scope, Key::new("k").unwrap(), Fingerprint::bytes(b""))
}

fn assert_needs_a_transaction(received: Result<inbox::Receipt, inbox::Error>) {
    let Err(inbox::Error::Database(DatabaseError::NoTransaction { source, .. })) = received else {
        panic!("{received:?}")
    };
    assert_eq!(source.sqlstate(), Some("25P01"));
}

fn assert_is_in_a_transaction(begun: Result<Begun, idempotency::Error>) {
    let Err(idempotency::Error::Database(DatabaseError::InTransaction { source, .. })) = begun else {
        panic!("{begun:?}")
    };
    assert_eq!(source.sqlstate(), Some("25001"));
}

fn assert_cannot_begin(phase: Result<i64, PhaseError<()>>) {
    let Err(PhaseError::Begin(error)) = phase else { panic!("{phase:?}") };
    assert_eq!(error.sqlstate(), Some("25001"));
}

async fn assert_has_no_mark(db: &Database) {
    assert_eq!(db.number("SELECT count(*) FROM {s}.processed_message").await, 0);
}

macro_rules! sqlx {
    ($module:ident, $sqlx:ident) => {
        mod $module {
            use ::$sqlx::postgres::PgPoolOptions;
            use ::$sqlx::{Connection, PgConnection, PgPool};

            use super::*;

            #[tokio::test]
            async fn without_an_open_transaction_nothing_is_marked() {
                let db = Database::new().await;
                let mut connection = PgConnection::connect(&url()).await.unwrap();
                assert_needs_a_transaction(db.inbox.receive(&mut connection, "a", "e").await);
                ::$sqlx::raw_sql("BEGIN").execute(&mut connection).await.unwrap(); // sqlx does not count this as a transaction
                assert_needs_a_transaction(db.inbox.receive(&mut connection, "a", "e").await);
                ::$sqlx::raw_sql("ROLLBACK").execute(&mut connection).await.unwrap();
                for commits in [true, false] {
                    let tx = connection.begin().await.unwrap();
                    if commits { tx.commit().await } else { tx.rollback().await }.unwrap();
                    assert_needs_a_transaction(db.inbox.receive(&mut connection, "a", "e").await);
                }
                drop(connection.begin().await.unwrap());
                assert_needs_a_transaction(db.inbox.receive(&mut connection, "a", "e").await);
                connection.ping().await.unwrap(); // sends the rollback, for which sqlx waits for the next statement
                assert_has_no_mark(&db).await;
                db.clean_up().await;
            }

            /// The constraint is checked by the COMMIT, so PostgreSQL has rolled back when the call fails.
            #[tokio::test]
            async fn after_a_failed_commit_nothing_is_marked() {
                let db = Database::new().await;
                let mut connection = PgConnection::connect(&url()).await.unwrap();
                let mut tx = connection.begin().await.unwrap();
                ::$sqlx::raw_sql(
                    "CREATE TEMPORARY TABLE late (n int UNIQUE DEFERRABLE INITIALLY DEFERRED);
                     INSERT INTO late VALUES (1), (1)",
                )
                .execute(&mut *tx)
                .await
                .unwrap();
                let _ = db.inbox.receive(&mut *tx, "a", "e").await.unwrap();
                tx.commit().await.unwrap_err();
                assert_needs_a_transaction(db.inbox.receive(&mut connection, "a", "e").await);
                assert_has_no_mark(&db).await;
                db.clean_up().await;
            }

            #[tokio::test]
            async fn a_pool_can_begin_a_request() {
                let db = Database::new().await;
                let pool = PgPool::connect(&url()).await.unwrap();
                let begun = db.idempotency.begin(&pool, &request()).await.unwrap();
                assert!(matches!(begun, Begun::Started(_)), "{begun:?}");
                pool.close().await;
                db.clean_up().await;
            }

            /// `&mut *tx` is a connection too, but other clients would not see a lock in the application's open transaction.
            #[tokio::test]
            async fn a_connection_with_an_open_transaction_is_rejected() {
                let db = Database::new().await;
                let mut connection = PgConnection::connect(&url()).await.unwrap();
                let mut tx = connection.begin().await.unwrap();
                assert_is_in_a_transaction(db.idempotency.begin(&mut *tx, &request()).await);
                tx.rollback().await.unwrap();
                let begun = db.idempotency.begin(&mut connection, &request()).await.unwrap();
                assert!(matches!(begun, Begun::Started(_)), "{begun:?}");
                db.clean_up().await;
            }

            #[tokio::test]
            async fn a_pool_without_a_free_connection_can_be_retried() {
                let db = Database::new().await;
                let options = PgPoolOptions::new().max_connections(1);
                let options = options.acquire_timeout(Duration::from_secs(5));
                let pool = options.connect(&url()).await.unwrap();
                let taken = pool.acquire().await.unwrap();
                let error = db.idempotency.begin(&pool, &request()).await.unwrap_err();
                assert_eq!(error.verdict(), Verdict::Again, "{error:?}");
                drop(taken);
                assert!(matches!(db.idempotency.begin(&pool, &request()).await.unwrap(), Begun::Started(_)));
                pool.close().await;
                db.clean_up().await;
            }
        }
    };
}

#[cfg(feature = "sqlx-08")]
sqlx!(sqlx_08, sqlx_08);
#[cfg(feature = "sqlx-09")]
sqlx!(sqlx_09, sqlx);

macro_rules! diesel_async {
    ($module:ident, $diesel_async:ident) => {
        mod $module {
            use ::$diesel_async::{AnsiTransactionManager, TransactionManager};
            use ::$diesel_async::{AsyncConnection, AsyncPgConnection};

            use super::*;

            #[tokio::test]
            async fn without_an_open_transaction_nothing_is_marked() {
                let db = Database::new().await;
                let mut connection = AsyncPgConnection::establish(&url()).await.unwrap();
                assert_needs_a_transaction(db.inbox.receive(&mut connection, "a", "e").await);
                assert_has_no_mark(&db).await;
                db.clean_up().await;
            }

            #[tokio::test]
            async fn a_connection_with_an_open_transaction_is_rejected() {
                let db = Database::new().await;
                let mut connection = AsyncPgConnection::establish(&url()).await.unwrap();
                let begun = db.idempotency.begin(&mut connection, &request()).await.unwrap();
                let Begun::Started(mut guard) = begun else { panic!("{begun:?}") };
                AnsiTransactionManager::begin_transaction(&mut connection).await.unwrap();
                assert_is_in_a_transaction(db.idempotency.begin(&mut connection, &request()).await);
                let work = async |_: &mut AsyncPgConnection| Ok(1);
                assert_cannot_begin(guard.phase(&mut connection, "one", work).await);
                AnsiTransactionManager::rollback_transaction(&mut connection).await.unwrap();
                db.clean_up().await;
            }
        }
    };
}

#[cfg(feature = "diesel-async-07")]
diesel_async!(diesel_async_07, diesel_async_07);
#[cfg(feature = "diesel-async-08")]
diesel_async!(diesel_async_08, diesel_async_08);
#[cfg(feature = "diesel-async-09")]
diesel_async!(diesel_async_09, diesel_async);

#[cfg(feature = "diesel")]
#[test]
fn a_diesel_connection_with_an_open_transaction_is_rejected() {
    use diesel::{Connection, PgConnection};
    use pg_outbox::block_on;

    crate::drivers::on_this_thread(async {
        let db = Database::new().await;
        let mut connection = PgConnection::establish(&url()).unwrap();
        let begun = block_on(db.idempotency.begin(&mut connection, &request())).unwrap();
        let Begun::Started(mut guard) = begun else { panic!("{begun:?}") };
        let inside = connection.transaction(|connection| {
            let refused = block_on(db.idempotency.begin(&mut *connection, &request()));
            let phase = guard.phase_blocking(connection, "one", |_| Ok(1));
            Ok::<_, diesel::result::Error>((refused, phase))
        });
        let (refused, phase) = inside.unwrap();
        assert_is_in_a_transaction(refused);
        assert_cannot_begin(phase);
        db.clean_up().await;
    });
}
