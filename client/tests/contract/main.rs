//! What every driver has to do, on a real server: one suite, run by each. A test that fails says with which driver in its
//! name, `sqlx::a_rollback_leaves_nothing`.

#![allow(clippy::unwrap_used)] // also in what the tests share

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
#[allow(dead_code)] // the outbox of a test
mod database;
#[path = "../modules/database.rs"]
#[allow(dead_code)] // the modules of a test
mod modules;

/// Makes a test of each function of the suite, for one driver.
macro_rules! contract {
    ($connection:ty) => {
        contract! { $connection,
            outbox {
                a_commit_makes_the_events_visible
                a_rollback_leaves_nothing
                an_event_is_stored_as_it_was_given
                a_batch_keeps_its_order_and_its_columns
                ten_thousand_events_are_one_call
                no_events_are_no_work
                json_and_bytea_keep_every_byte
                a_jsonb_column_takes_the_same_events
                another_column_type_is_refused_by_name
                a_column_type_that_changes_fails_one_transaction_at_most
                a_hostile_table_name_is_only_a_name
            }
            errors {
                a_bad_event_is_refused_before_the_database
                a_missing_table_names_the_command_that_creates_it
                a_table_that_swallows_rows_is_an_error
                an_error_shows_no_payload
                a_violated_constraint_is_named
                a_deadlock_may_be_tried_again
                a_serialization_failure_may_be_tried_again
                a_lock_that_is_not_to_be_had_may_be_tried_again
                what_follows_an_error_is_not_worth_another_attempt
                a_lost_connection_leaves_the_outcome_unknown
            }
            inbox {
                an_event_is_first_once
                a_rollback_forgets_the_mark
                the_second_of_two_waits_and_is_a_duplicate_if_the_first_commits
                the_second_of_two_waits_and_is_first_if_the_first_rolls_back
                a_batch_answers_in_the_order_of_its_input
                what_cannot_be_stored_is_refused_and_leaves_the_transaction_as_it_was
                a_missing_inbox_names_the_command_that_makes_it
            }
            once {
                a_key_is_claimed_once_and_a_rollback_gives_it_back
                a_key_is_free_again_when_its_time_has_passed
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
                a_release_lets_a_retry_begin_at_once
                a_retry_goes_on_behind_the_last_phase
                a_phase_after_a_takeover_is_refused
                an_abandoned_request_is_handed_over
            }
            round_trips {
                each_call_is_one_round_trip_once_it_is_prepared
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
