//! Runs one suite with every driver on a real server. The name of a test contains its driver:
//! `sqlx::version_09::a_rollback_leaves_nothing`.

#![allow(clippy::unwrap_used)]
#![allow(clippy::duplicate_mod)] // the versions of a driver share their source

mod agreement;
mod drivers;
mod errors;
mod outbox;
mod proxy;
mod round_trips;
mod testing;
mod transaction_only;
mod typed;

#[path = "../integration/database.rs"]
#[allow(dead_code)] // shared with other test binaries
mod database;

/// Defines a test for each function of the suite, for one driver.
macro_rules! contract {
    ($connection:ty) => {
        suite! { asynchronous, $connection }
    };
}

/// The same for a synchronous driver.
#[cfg(any(feature = "diesel", feature = "postgres"))]
macro_rules! synchronous_contract {
    ($connection:ty) => {
        suite! { synchronous, $connection }
    };
}

macro_rules! suite {
    ($kind:ident, $connection:ty) => {
        tests! { $kind, $connection,
            outbox {
                a_commit_makes_the_events_visible
                a_rollback_leaves_nothing
                an_event_is_stored_unchanged
                a_batch_keeps_its_order_and_its_columns
                ten_thousand_events_are_inserted_by_one_call
                enqueueing_no_events_sends_no_statement
                json_and_bytea_keep_every_byte
                a_jsonb_column_accepts_the_same_events
                an_unsupported_column_type_is_an_error_with_its_name
                a_changed_column_type_fails_at_most_one_transaction
                a_hostile_table_name_is_quoted
            }
            agreement {
                a_matching_outbox_passes_and_the_relays_template_is_returned
                an_outbox_without_a_recorded_template_passes_visibly
                a_missing_table_is_named_with_the_outboxes_of_the_database
                a_table_that_migrate_has_not_created_is_named
                missing_columns_and_columns_of_another_type_are_all_named
                only_supported_payload_types_pass
                another_topic_template_is_named_if_the_application_has_set_one
                a_role_that_may_only_insert_can_check
                a_failed_check_has_the_error_of_postgres
            }
            typed {
                a_typed_event_is_stored_with_its_types_key_and_json
                a_typed_event_that_cannot_be_serialized_leaves_the_transaction_usable
            }
            errors {
                an_invalid_event_is_rejected_before_a_statement_is_sent
                the_error_for_a_missing_table_names_the_migrate_command
                a_table_that_drops_rows_is_an_error
                errors_do_not_print_the_payload
                the_error_names_a_violated_constraint
            }
            testing {
                an_enqueued_event_is_found_and_drained_after_its_commit
                a_filter_looks_at_types_and_keys
                committed_events_of_other_tests_do_not_disturb
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

#[cfg(feature = "deadpool-postgres")]
mod deadpool_postgres {
    contract!(crate::drivers::deadpool_postgres::Connection);
}

#[cfg(feature = "diesel")]
mod diesel {
    mod refusals;
    synchronous_contract!(diesel::PgConnection);
}

#[cfg(feature = "_diesel-async")]
mod diesel_async;

#[cfg(feature = "postgres")]
mod postgres {
    synchronous_contract!(postgres::Client);
}

#[cfg(feature = "_sea-orm")]
mod sea_orm;

#[cfg(feature = "_sqlx")]
mod sqlx;

#[cfg(feature = "tokio-postgres")]
mod tokio_postgres {
    contract!(tokio_postgres::Client);
}
