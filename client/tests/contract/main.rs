//! The behavior that every driver has to have, on a real server: one suite that each driver runs. The name of a test
//! contains the driver, as in `sqlx::a_rollback_leaves_nothing`.

#![allow(clippy::unwrap_used)] // also in shared code

mod drivers;
mod errors;
mod idempotency;
mod inbox;
mod once;
mod outbox;
mod proxy;
mod round_trips;
mod testing;
mod transaction_only;
mod version;

#[path = "../integration/database.rs"]
#[allow(dead_code)] // shared with the integration tests
mod database;
#[path = "../modules/database.rs"]
#[allow(dead_code)] // shared with the tests of the modules
mod modules;

/// Turns each function of the suite into a test for one driver.
macro_rules! contract {
    ($connection:ty) => {
        contract! { $connection,
            outbox {
                a_commit_makes_the_events_visible
                a_rollback_leaves_nothing
                an_event_is_stored_unchanged
                a_batch_keeps_its_order_and_its_columns
                ten_thousand_events_are_inserted_by_one_call
                an_empty_batch_sends_nothing
                json_and_bytea_keep_every_byte
                a_jsonb_column_accepts_the_same_events
                another_column_type_is_refused_by_name
                a_changed_column_type_fails_at_most_one_transaction
                a_hostile_table_name_is_quoted
            }
            errors {
                a_bad_event_is_refused_before_the_database
                a_missing_table_names_the_command_that_creates_it
                a_table_that_drops_rows_is_an_error
                an_error_shows_no_payload
                a_violated_constraint_is_named
                a_deadlock_may_be_retried
                a_serialization_failure_may_be_retried
                a_lock_timeout_may_be_retried
                a_statement_after_an_error_is_not_retried
                a_lost_connection_leaves_the_outcome_unknown
            }
            inbox {
                an_event_is_first_once
                a_rollback_removes_the_mark
                the_second_of_two_waits_and_is_a_duplicate_if_the_first_commits
                the_second_of_two_waits_and_is_first_if_the_first_rolls_back
                a_batch_returns_receipts_in_the_order_of_its_input
                invalid_input_is_refused_without_aborting_the_transaction
                a_missing_inbox_names_the_command_that_creates_it
            }
            once {
                a_key_is_claimed_once_and_a_rollback_frees_it
                a_key_is_free_after_it_has_expired
            }
            version {
                an_update_from_an_old_version_is_a_conflict
            }
            testing {
                an_enqueued_event_is_found_and_drained_after_its_commit
            }
            idempotency {
                a_request_is_started_in_progress_and_then_replayed
                another_request_with_the_key_is_a_mismatch
                a_late_finish_is_refused_with_its_business_change
                a_release_lets_a_retry_begin_immediately
                a_retry_continues_after_the_last_phase
                a_phase_after_a_takeover_is_refused
                an_abandoned_request_can_be_taken_over
            }
            round_trips {
                each_prepared_call_is_one_round_trip
            }
        }
    };
    ($connection:ty, $($subject:ident { $($test:ident)* })*) => {
        $($(
            #[tokio::test]
            async fn $test() {
                crate::$subject::$test::<$connection>().await;
            }
        )*)*
    };
}

#[cfg(feature = "deadpool-postgres")]
mod deadpool_postgres {
    contract!(crate::drivers::deadpool_postgres::Connection);
}

#[cfg(feature = "diesel-async")]
mod diesel_async {
    mod refusals;
    contract!(diesel_async::AsyncPgConnection);
}

#[cfg(feature = "sea-orm")]
mod sea_orm {
    mod backends;
    contract!(sea_orm::DatabaseConnection);
}

#[cfg(feature = "sqlx")]
mod sqlx {
    mod clients;
    contract!(sqlx::PgConnection);
}

#[cfg(feature = "tokio-postgres")]
mod tokio_postgres {
    contract!(tokio_postgres::Client);
}
