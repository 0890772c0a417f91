use pg_outbox::{CheckError, Difference, Outbox, OutboxClient, RelayTopics};

use crate::database::{Database, url};
use crate::drivers::Connection;

fn recorded(template: &str) -> RelayTopics {
    RelayTopics::Recorded { template: template.to_owned() }
}

/// Runs statements in which `{s}` stands for the schema.
async fn run(db: &Database, sql: &str) {
    db.client.batch_execute(&sql.replace("{s}", &db.schema)).await.unwrap();
}

/// Records a template, as a relay does.
async fn record(db: &Database, template: &str) {
    run(db, &format!("INSERT INTO {{s}}.outbox_setting (topic_template) VALUES ('{template}')")).await;
}

async fn differences(outbox: &Outbox, client: impl OutboxClient) -> Vec<Difference> {
    match outbox.check(client).await {
        Err(CheckError::Differences { differences, .. }) => differences,
        other => panic!("{other:?}"),
    }
}

pub async fn a_matching_outbox_passes_and_the_relays_template_is_returned<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    record(&db, "shop.{aggregate_type}.v1").await;
    assert_eq!(db.outbox.check(connection.client()).await.unwrap(), recorded("shop.{aggregate_type}.v1"));
    let same = db.outbox.clone().topic_template("shop.{aggregate_type}.v1").unwrap();
    assert_eq!(same.check(connection.client()).await.unwrap(), recorded("shop.{aggregate_type}.v1"));
    run(&db, "ALTER TABLE {s}.outbox ALTER aggregate_id TYPE varchar(99), ADD note text").await;
    assert!(same.check(connection.client()).await.is_ok());
    // Another outbox of the database has its own template.
    let other = Database::new().await;
    record(&other, "other").await;
    assert_eq!(other.outbox.check(connection.client()).await.unwrap(), recorded("other"));
    assert!(same.check(connection.client()).await.is_ok());
    other.clean_up().await;
    db.clean_up().await;
}

pub async fn an_outbox_without_a_recorded_template_passes_visibly<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    let outbox = db.outbox.clone().topic_template("mine").unwrap();
    let found = outbox.check(connection.client()).await.unwrap();
    assert_eq!(found, RelayTopics::NotRecorded);
    assert!(found.to_string().contains("no relay has recorded"), "{found}");
    // The schema before the migration.
    run(&db, "DROP FUNCTION {s}.outbox_template; DROP TABLE {s}.outbox_setting").await;
    assert_eq!(outbox.check(connection.client()).await.unwrap(), RelayTopics::NotRecorded);
    db.clean_up().await;
}

pub async fn a_missing_table_is_named_with_the_outboxes_of_the_database<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    for table in ["nowhere.outbox".to_owned(), format!("{}.other", db.schema)] {
        let outbox = Outbox::new(&table).unwrap();
        let found = differences(&outbox, connection.client()).await;
        // Other tests create outboxes too.
        let [Difference::NoTable { outboxes: Some(outboxes) }] = &found[..] else { panic!("{found:?}") };
        assert!(outboxes.split(", ").count() <= 5 && outboxes.contains(".outbox"), "{outboxes}");
    }
    db.clean_up().await;
}

pub async fn a_table_that_migrate_has_not_created_is_named<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    run(&db, "CREATE TABLE {s}.copied (LIKE {s}.outbox INCLUDING ALL)").await;
    let outbox = Outbox::new(&format!("{}.copied", db.schema)).unwrap();
    let found = differences(&outbox, connection.client()).await;
    assert!(matches!(found[..], [Difference::NotAnOutbox { .. }]), "{found:?}");
    db.clean_up().await;
}

pub async fn missing_columns_and_columns_of_another_type_are_all_named<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    run(
        &db,
        "ALTER TABLE {s}.outbox DROP headers, DROP payload, ALTER event_type TYPE integer USING 0,
             ALTER event_id DROP DEFAULT, ALTER event_id TYPE text",
    )
    .await;
    let error = db.outbox.check(connection.client()).await.unwrap_err();
    let CheckError::Differences { differences, .. } = &error else { panic!("{error:?}") };
    assert_eq!(
        *differences,
        [
            Difference::ColumnType { column: "event_id", found: "text".to_owned(), expected: "uuid" },
            Difference::ColumnType { column: "event_type", found: "integer".to_owned(), expected: "text" },
            Difference::NoColumn { column: "headers", expected: "jsonb" },
            Difference::NoColumn { column: "payload", expected: "json" },
        ]
    );
    assert_eq!(error.to_string().lines().count(), 5, "{error}");
    db.clean_up().await;
}

pub async fn only_supported_payload_types_pass<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    for supported in ["json", "jsonb", "bytea"] {
        db.set_payload(supported).await;
        assert!(db.outbox.check(connection.client()).await.is_ok(), "{supported}");
    }
    for unsupported in ["text", "xml"] {
        db.set_payload(unsupported).await;
        let found = differences(&db.outbox, connection.client()).await;
        assert_eq!(found, [Difference::PayloadType { found: unsupported.to_owned() }]);
    }
    db.clean_up().await;
}

pub async fn another_topic_template_is_named_if_the_application_has_set_one<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    record(&db, "shop.{aggregate_type}").await;
    assert!(db.outbox.check(connection.client()).await.is_ok(), "the application has set none");
    let outbox = db.outbox.clone().topic_template("events.{aggregate_type}").unwrap();
    let expected = Difference::Topics {
        application: "events.{aggregate_type}".to_owned(),
        relay: "shop.{aggregate_type}".to_owned(),
    };
    assert_eq!(differences(&outbox, connection.client()).await, [expected]);
    db.clean_up().await;
}

/// A role with the privileges that `migrate --print-roles` grants to applications.
pub async fn a_role_that_may_only_insert_can_check<C: Connection>() {
    let db = Database::new().await;
    let role = format!("writer_of_{}", db.schema);
    record(&db, "shop.{aggregate_type}").await;
    run(&db, &format!(
        "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {{s}} TO {role};
         GRANT INSERT (event_id, aggregate_type, aggregate_id, event_type, payload, headers) ON {{s}}.outbox TO {role}"
    ))
    .await;
    let mut connection = C::connect(&url().replacen("postgres@", &format!("{role}@"), 1)).await;
    assert_eq!(db.outbox.check(connection.client()).await.unwrap(), recorded("shop.{aggregate_type}"));
    run(&db, "REVOKE EXECUTE ON FUNCTION {s}.outbox_template FROM PUBLIC").await;
    assert_eq!(db.outbox.check(connection.client()).await.unwrap(), RelayTopics::Hidden);
    drop(connection);
    run(&db, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
    db.clean_up().await;
}

pub async fn a_failed_check_has_the_error_of_postgres<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    run(
        &db,
        "CREATE OR REPLACE FUNCTION {s}.outbox_template() RETURNS text LANGUAGE plpgsql AS
         'BEGIN RAISE SQLSTATE ''40001''; END'",
    )
    .await;
    let error = db.outbox.check(connection.client()).await.unwrap_err();
    let CheckError::Postgres { source, .. } = &error else { panic!("{error:?}") };
    assert_eq!(source.sqlstate(), Some("40001"), "{source}");
    db.clean_up().await;
}
