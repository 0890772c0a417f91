//! Runs one suite with every driver on a real server. The name of a test contains its driver:
//! `sqlx_09::a_rollback_removes_the_mark`. The connections of the drivers are those of the suite of pg-outbox.

#![allow(clippy::unwrap_used)]
#![allow(clippy::duplicate_mod)] // the versions of a driver share their source

mod errors;
mod idempotency;
mod inbox;
mod once;
mod phased;
mod phases;
mod refusals;
mod round_trips;
mod version;

#[path = "../../../client/tests/integration/database.rs"]
#[allow(dead_code)] // shared with other test binaries
mod database;
#[path = "../../../client/tests/contract/drivers/mod.rs"]
mod drivers;
#[path = "../modules/database.rs"]
#[allow(dead_code)] // shared with other test binaries
mod modules;
#[path = "../../../client/tests/contract/proxy.rs"]
mod proxy;

/// Defines a test for each function of the suite, for one driver.
macro_rules! contract {
    ($connection:ty) => {
        in_turn! { asynchronous, $connection }
        tests! { asynchronous, $connection,
            errors {
                a_deadlock_can_be_retried
            }
            inbox {
                the_second_of_two_waits_and_is_a_duplicate_if_the_first_commits
                the_second_of_two_waits_and_is_first_if_the_first_rolls_back
            }
        }
    };
}

/// The same for a synchronous driver. One thread cannot wait for itself, so tests in which calls wait for each other are left out.
#[cfg(any(feature = "diesel", feature = "postgres"))]
macro_rules! synchronous_contract {
    ($connection:ty) => {
        in_turn! { synchronous, $connection }
    };
}

/// Tests in which no call waits for another one.
macro_rules! in_turn {
    ($kind:ident, $connection:ty) => {
        tests! { $kind, $connection,
            errors {
                a_serialization_failure_can_be_retried
                a_lock_timeout_can_be_retried
                statements_after_an_error_are_not_retried
                rejected_events_are_not_retried
                a_lost_connection_leaves_the_outcome_unknown
            }
            inbox {
                an_event_is_first_once
                a_rollback_removes_the_mark
                a_batch_returns_receipts_in_the_order_of_its_input
                invalid_ids_are_rejected_and_the_transaction_stays_usable
                the_error_for_a_missing_inbox_names_the_migrate_command
            }
            once {
                a_key_is_claimed_once_and_a_rollback_releases_it
                an_expired_key_can_be_claimed_again
            }
            version {
                an_update_from_an_old_version_is_a_conflict
            }
            idempotency {
                a_request_is_started_then_in_progress_then_replayed
                a_different_request_with_the_same_key_is_a_mismatch
                a_late_finish_rolls_back_the_business_change
                a_retry_can_begin_after_a_release
                a_retry_resumes_after_the_last_phase
                a_phase_after_a_takeover_fails
                no_phase_runs_after_a_commit_whose_outcome_is_unknown
                an_abandoned_request_is_taken_over_once
            }
            round_trips {
                each_prepared_call_is_one_round_trip
            }
        }
    };
}

macro_rules! tests {
    ($kind:ident, $connection:ty, $($subject:ident { $($test:ident)* })*) => {
        $($($kind! { $connection, $subject, $test })*)*
    };
}

macro_rules! asynchronous {
    ($connection:ty, $subject:ident, $test:ident) => {
        #[tokio::test]
        async fn $test() {
            crate::$subject::$test::<$connection>().await;
        }
    };
}

#[cfg(any(feature = "diesel", feature = "postgres"))]
macro_rules! synchronous {
    ($connection:ty, $subject:ident, $test:ident) => {
        #[test]
        fn $test() {
            crate::drivers::on_this_thread(crate::$subject::$test::<$connection>());
        }
    };
}

#[cfg(feature = "tokio-postgres")]
mod tokio_postgres {
    contract!(tokio_postgres::Client);
}

#[cfg(feature = "deadpool-postgres")]
mod deadpool_postgres {
    contract!(crate::drivers::deadpool_postgres::Connection);
}

#[cfg(feature = "postgres")]
mod postgres {
    synchronous_contract!(postgres::Client);
}

#[cfg(feature = "sqlx-08")]
mod sqlx_08 {
    contract!(sqlx_08::PgConnection);

    mod connection {
        contract!(crate::drivers::sqlx::version_08::Connected);
    }
}

#[cfg(feature = "sqlx-09")]
mod sqlx_09 {
    contract!(sqlx::PgConnection);

    mod connection {
        contract!(crate::drivers::sqlx::version_09::Connected);
    }
}

#[cfg(feature = "sea-orm-1")]
mod sea_orm_1 {
    contract!(sea_orm_1::DatabaseConnection);
}

#[cfg(feature = "sea-orm-2")]
mod sea_orm_2 {
    contract!(sea_orm::DatabaseConnection);
}

#[cfg(feature = "diesel-async-07")]
mod diesel_async_07 {
    contract!(diesel_async_07::AsyncPgConnection);
}

#[cfg(feature = "diesel-async-08")]
mod diesel_async_08 {
    contract!(diesel_async_08::AsyncPgConnection);
}

#[cfg(feature = "diesel-async-09")]
mod diesel_async_09 {
    contract!(diesel_async::AsyncPgConnection);
}

#[cfg(feature = "diesel")]
mod diesel {
    synchronous_contract!(diesel::PgConnection);
}
