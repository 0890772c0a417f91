//! The checks at startup, on a real server. Each kind of damage is detected, reported, and fixed by the proposed
//! remedy.

use postgres::access::grants::{relay_grants, writer_grants};
use postgres::columns::PayloadType;
use postgres::schema::check::check;
use postgres::schema::errors::{
    COLUMN, CheckError, GRANT_MISSING, HOLD_COUNT, LANES, MIGRATION, PENDING_INDEX, RELATION, ROW_SECURITY,
    SEQUENCE,
};
use postgres::schema::migrate;
use postgres::table::TableName;
use settings::doctor::{Code, Finding};
use tokio_postgres::Client;

use crate::support::database::{Database, run};

async fn migrated(test: &str) -> (Database, Client, TableName) {
    let database = Database::create(test).await;
    let mut client = database.connect().await;
    let outbox: TableName = "app.outbox".parse().unwrap();
    migrate::apply(&mut client, &outbox).await.unwrap();
    (database, client, outbox)
}

async fn faults(client: &Client, table: &TableName) -> Vec<Finding> {
    match check(client, table, false, None).await {
        Ok(_) => Vec::new(),
        Err(CheckError::Faults(faults) | CheckError::Older(faults)) => faults,
        Err(error) => panic!("{error}"),
    }
}

/// Runs `damage`, expects exactly one fault of this kind whose problem contains `problem`, runs its remedy, and expects
/// no fault.
async fn found_and_fixed(client: &Client, table: &TableName, damage: &str, code: &Code, problem: &str) {
    run(client, damage).await;
    let found = faults(client, table).await;
    assert_eq!(found.len(), 1, "{damage}: {found:#?}");
    assert_eq!(found[0].code, code, "{damage}: {found:#?}");
    assert!(found[0].problem.contains(problem), "{damage}: {found:#?}");
    // The text after the last semicolon is not SQL.
    for statement in found[0].remedy.split_inclusive(';').filter(|part| part.ends_with(';')) {
        run(client, statement.trim_start_matches("stop all relays, then run: ")).await;
    }
    let left = faults(client, table).await;
    assert!(left.is_empty(), "after {}: {left:#?}", found[0].remedy);
}

#[tokio::test]
async fn a_migrated_schema_passes() {
    let (database, client, outbox) = migrated("passes").await;
    let facts = check(&client, &outbox, false, None).await.unwrap();
    assert!(facts.server_version_num >= 140_000 && facts.is_superuser, "{facts:?}");
    assert_eq!(facts.payload, PayloadType::Json);

    for (name, payload) in [("jsonb", PayloadType::Jsonb), ("text", PayloadType::Text)] {
        run(&client, &format!("ALTER TABLE app.outbox ALTER payload TYPE {name} USING payload::{name}"))
            .await;
        assert_eq!(check(&client, &outbox, false, None).await.unwrap().payload, payload);
    }
    run(&client, "ALTER TABLE app.outbox ALTER payload TYPE bytea USING payload::bytea").await;
    assert_eq!(check(&client, &outbox, false, None).await.unwrap().payload, PayloadType::Bytea);
    run(&client, "ALTER TABLE app.outbox ALTER aggregate_id TYPE varchar(99)").await;
    run(&client, "ALTER INDEX app.outbox_pending RENAME TO x").await;
    check(&client, &outbox, false, None).await.unwrap();
    run(&client, "SET default_transaction_read_only = on").await;
    check(&client, &outbox, false, None).await.unwrap();
    database.drop(&[]).await;
}

#[tokio::test]
async fn missing_older_or_newer_schema_is_reported_with_the_command() {
    let database = Database::create("versions").await;
    let mut client = database.connect().await;
    let outbox: TableName = "app.outbox".parse().unwrap();
    let one = async |client: &Client, problem: &str, remedy: &str| {
        // A relay waits for a migration that is only pending, and exits in these cases.
        let Err(CheckError::Faults(found)) = check(client, &outbox, false, None).await else {
            panic!("{problem}: no faults, or only a pending migration")
        };
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(found[0].code == &MIGRATION && found[0].problem.contains(problem), "{found:#?}");
        assert!(found[0].remedy.contains(remedy), "{found:#?}");
    };
    one(&client, "does not exist", "outbox-relay migrate --config").await;
    migrate::apply(&mut client, &outbox).await.unwrap();
    run(&client, "INSERT INTO app.outbox_migration VALUES (9, 'later', 'x', now(), '0.1.0')").await;
    let facts = check(&client, &outbox, false, None).await.unwrap();
    assert!(facts.difference.is_some_and(|difference| difference.contains("migration 9 (later)")));
    run(&client, "UPDATE app.outbox_migration SET min_relay = '99.0.0' WHERE number = 9").await;
    one(&client, "migration 9 (later)", "upgrade this binary to 99.0.0 or later").await;
    run(
        &client,
        "DELETE FROM app.outbox_migration WHERE number = 9;
         UPDATE app.outbox_migration SET checksum = 'x' WHERE number = 1",
    )
    .await;
    one(&client, "with SQL that differs", "migrate --print").await;
    run(&client, "TRUNCATE app.outbox_migration").await;
    one(&client, "no migration is recorded", "another name").await;
    database.drop(&[]).await;
}

#[tokio::test]
async fn damaged_index_is_found() {
    let (database, client, outbox) = migrated("index").await;
    let found = async |damage: &str, problem: &str| {
        found_and_fixed(&client, &outbox, damage, &PENDING_INDEX, problem).await;
    };
    found("DROP INDEX app.outbox_pending", "is missing").await;
    for definition in [
        "app.outbox ((hashtext(aggregate_id) % 64), id) WHERE sent_at IS NULL",
        "app.outbox ((hashtext(aggregate_id) & 31), id) WHERE sent_at IS NULL",
        "app.outbox ((hashtext(aggregate_type) & 63), id) WHERE sent_at IS NULL",
        "app.outbox ((hashtext(aggregate_id) & 63), id)",
        "app.outbox ((hashtext(aggregate_id) & 63), id) WHERE sent_at IS NOT NULL",
        "app.outbox ((hashtext(aggregate_id) & 63), id DESC) WHERE sent_at IS NULL",
        "app.outbox ((hashtext(aggregate_id) & 63)) INCLUDE (id) WHERE sent_at IS NULL",
        "app.outbox ((hashtext(aggregate_id) & 63), created_at) WHERE sent_at IS NULL",
        "app.outbox (id, (hashtext(aggregate_id) & 63)) WHERE sent_at IS NULL",
    ] {
        let damage = format!("DROP INDEX app.outbox_pending; CREATE INDEX outbox_pending ON {definition}");
        found(&damage, "a different definition").await;
    }
    found(
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'app.outbox_pending'::regclass",
        "is not valid",
    )
    .await;
    database.drop(&[]).await;
}

#[tokio::test]
async fn damaged_rows_of_the_schema_are_found() {
    let (database, client, outbox) = migrated("rows").await;
    let found = async |damage: &str, code: &Code, problem: &str| {
        found_and_fixed(&client, &outbox, damage, code, problem).await;
    };
    found("DELETE FROM app.outbox_lane WHERE lane IN (0, 17)", &LANES, "only 62 of the 64 lanes").await;
    found("TRUNCATE app.outbox_lane", &LANES, "only 0 of the 64 lanes").await;
    run(&client, "ALTER TABLE app.outbox_lane DROP CONSTRAINT outbox_lane_lane_check").await;
    found("INSERT INTO app.outbox_lane VALUES (64)", &LANES, "not lanes from 0 to 63: 1").await;
    found("DELETE FROM app.outbox_hold_version", &HOLD_COUNT, "but has none").await;
    for counted in ["hold", "blocked_key", "pause"] {
        let damage = format!("ALTER TABLE app.outbox_{counted} DISABLE TRIGGER hold_changed");
        found(&damage, &HOLD_COUNT, "disabled").await;
    }
    // The functions still name the tables of the old schema.
    run(&client, "ALTER SCHEMA app RENAME TO moved").await;
    let Err(CheckError::Faults(found)) = check(&client, &"moved.outbox".parse().unwrap(), false, None).await
    else {
        panic!("no faults")
    };
    let faults: Vec<_> = found.iter().map(|fault| (fault.code, fault.problem.contains("renamed"))).collect();
    assert_eq!(faults, [(&HOLD_COUNT, true); 3], "{found:#?}");
    database.drop(&[]).await;
}

/// Without the setting, the column may be missing. It is reported together with the other faults.
#[tokio::test]
async fn missing_topic_column_is_found_only_if_it_is_required() {
    let (database, client, outbox) = migrated("topic_column").await;
    run(&client, "ALTER TABLE app.outbox ALTER event_id DROP NOT NULL").await;
    let Err(CheckError::Faults(found)) = check(&client, &outbox, true, None).await else {
        panic!("no faults")
    };
    let codes: Vec<_> = found.iter().map(|fault| fault.code).collect();
    assert_eq!(codes, [&COLUMN; 2], "{found:#?}");
    run(&client, "ALTER TABLE app.outbox ALTER event_id SET NOT NULL").await;
    assert!(!check(&client, &outbox, false, None).await.unwrap().has_topic);
    run(&client, &found[0].remedy).await;
    assert!(check(&client, &outbox, true, None).await.unwrap().has_topic);
    database.drop(&[]).await;
}

#[tokio::test]
async fn damaged_table_is_found() {
    let (database, client, outbox) = migrated("table").await;
    let found = async |damage: &str, code: &Code, problem: &str| {
        found_and_fixed(&client, &outbox, damage, code, problem).await;
    };
    let alter = async |change: &str, problem: &str| {
        found(&format!("ALTER TABLE app.outbox {change}"), &COLUMN, problem).await;
    };
    alter("DROP COLUMN headers", "is missing").await;
    alter("ALTER payload TYPE varchar", "the type is character varying, not json").await;
    alter("ALTER headers TYPE json", "the type is json, not jsonb").await;
    alter("ALTER event_id DROP NOT NULL", "allows NULL").await;
    let facts = check(&client, &outbox, false, None).await.unwrap();
    if facts.server_version_num >= 180_000 {
        let damage = "ALTER TABLE app.outbox ALTER event_id DROP NOT NULL;
                      ALTER TABLE app.outbox ADD CONSTRAINT n NOT NULL event_id NOT VALID";
        found(damage, &COLUMN, "allows NULL").await;
    }
    alter("ADD COLUMN topic json", "the type is json, not text").await;
    let generated = "ADD COLUMN topic text GENERATED ALWAYS AS (aggregate_id) STORED";
    alter(&format!("DROP COLUMN topic, {generated}"), "it is generated").await;
    alter("ALTER sent_at SET DEFAULT now()", "would count as sent").await;
    alter("ALTER sent_at SET NOT NULL", "would count as sent").await;

    for (option, problem) in [("CACHE 10", "CACHE 10"), ("INCREMENT 2", "INCREMENT 2"), ("CYCLE", "CYCLE")] {
        let damage = format!("ALTER SEQUENCE app.outbox_id_seq {option}");
        found(&damage, &SEQUENCE, problem).await;
    }
    let damage =
        "ALTER TABLE app.outbox ALTER id DROP IDENTITY; CREATE SEQUENCE app.ids; SELECT setval('app.ids', 9);
                  ALTER TABLE app.outbox ALTER id SET DEFAULT nextval('app.ids')";
    found(damage, &SEQUENCE, "the sequence app.ids does not belong to the column").await;
    found("ALTER TABLE app.outbox SET UNLOGGED", &RELATION, "crash").await;

    run(&client, "DROP TABLE app.outbox_dead_letter").await;
    let missing = faults(&client, &outbox).await;
    assert!(missing.len() == 1 && missing[0].code == &RELATION, "{missing:#?}");
    run(&client, "CREATE VIEW app.outbox_dead_letter AS SELECT 1").await;
    let view = faults(&client, &outbox).await;
    assert!(view.len() == 1 && view[0].problem.contains("a view"), "{view:#?}");
    database.drop(&[]).await;
}

/// With each of them, a relay would publish events out of order, or publish events that it cannot record as sent.
#[tokio::test]
async fn hazards_of_the_table_are_found() {
    let (database, client, outbox) = migrated("hazards").await;
    let found = async |damage: &str, code: &Code, problem: &str| {
        found_and_fixed(&client, &outbox, damage, code, problem).await;
    };
    for event in ["INSERT", "UPDATE", "DELETE"] {
        let damage = format!("CREATE RULE keep AS ON {event} TO app.outbox DO INSTEAD NOTHING");
        found(&damage, &RELATION, "the rule keep replaces").await;
    }
    run(&client, "CREATE PUBLICATION inserts FOR ALL TABLES WITH (publish = 'insert')").await;
    run(&client, "ALTER TABLE app.outbox REPLICA IDENTITY NOTHING").await;
    assert_eq!(faults(&client, &outbox).await, [], "only updates and deletes need a replica identity");
    found("CREATE PUBLICATION changes FOR ALL TABLES", &RELATION, "the publication changes").await;
    if check(&client, &outbox, false, None).await.unwrap().server_version_num >= 150_000 {
        let filtered = "CREATE PUBLICATION filtered FOR TABLE app.outbox WHERE (sent_at IS NULL)";
        found(filtered, &RELATION, "the publication filtered").await;
        let listed = "CREATE PUBLICATION listed FOR TABLE app.outbox (event_id, payload)";
        found(listed, &RELATION, "the publication listed").await;
        let suitable = "CREATE PUBLICATION suitable FOR TABLE app.outbox (id, event_id) WHERE (id > 0)";
        run(&client, suitable).await;
        assert_eq!(faults(&client, &outbox).await, []);
        // With the whole row as its identity, the table accepts any row filter, and no column list.
        run(&client, "ALTER PUBLICATION suitable SET TABLE app.outbox WHERE (sent_at IS NULL)").await;
        run(&client, "ALTER TABLE app.outbox REPLICA IDENTITY FULL").await;
        assert_eq!(faults(&client, &outbox).await, []);
        found("CREATE PUBLICATION listed_again FOR TABLE app.outbox (id)", &RELATION, "listed_again").await;
        run(&client, "DROP PUBLICATION suitable").await;
    }
    run(
        &client,
        "CREATE COLLATION app.ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
    )
    .await;
    for column in ["aggregate_type", "aggregate_id", "event_type"] {
        let damage = format!("ALTER TABLE app.outbox ALTER {column} TYPE text COLLATE app.ci");
        found(&damage, &COLUMN, "nondeterministic").await;
    }
    run(&client, "CREATE TABLE app.old () INHERITS (app.outbox)").await;
    let child = faults(&client, &outbox).await;
    assert!(child.len() == 1 && child[0].problem.contains("app.old inherits from it"), "{child:#?}");
    database.drop(&[]).await;
}

#[tokio::test]
async fn sequence_behind_the_highest_id_is_found() {
    let (database, client, outbox) = migrated("behind").await;
    let insert =
        "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type) VALUES ('order', '1', 'Placed')";
    run(&client, insert).await;
    run(&client, insert).await;
    assert_eq!(faults(&client, &outbox).await, []);
    for behind in ["SELECT setval('app.outbox_id_seq', 1)", "ALTER SEQUENCE app.outbox_id_seq RESTART WITH 2"]
    {
        let problem = "the next ID is 2, but the table has ID 2";
        found_and_fixed(&client, &outbox, behind, &SEQUENCE, problem).await;
        run(&client, "DELETE FROM app.outbox WHERE id > 2").await;
    }

    let set_id = |to: i64, rest: &str| {
        format!(
            "ALTER TABLE app.outbox ALTER id SET GENERATED BY DEFAULT; UPDATE app.outbox SET id = {to}, {rest} WHERE id > 1;
             ALTER TABLE app.outbox ALTER id SET GENERATED ALWAYS"
        )
    };
    let huge = set_id(i64::MAX, "sent_at = NULL");
    found_and_fixed(&client, &outbox, &huge, &SEQUENCE, "would be published before those that wait").await;
    run(&client, &set_id(i64::MAX, "sent_at = now()")).await;
    assert_eq!(faults(&client, &outbox).await, [], "a sent row");
    run(&client, &set_id(2, "sent_at = NULL")).await;

    run(&client, "ALTER TABLE app.outbox ALTER id TYPE integer; SELECT setval('app.outbox_id_seq', 1)").await;
    let narrow = faults(&client, &outbox).await;
    for problem in ["integer", "the next ID is 2"] {
        assert!(narrow.iter().any(|fault| fault.problem.contains(problem)), "{narrow:#?}");
    }
    run(&client, "ALTER TABLE app.outbox ALTER id TYPE bigint; SELECT setval('app.outbox_id_seq', 9)").await;

    run(&client, "ALTER TABLE app.outbox ALTER id SET GENERATED BY DEFAULT").await;
    run(
        &client,
        &insert.replace("(aggregate_type", "(id, aggregate_type").replace("('order'", "(50, 'order'"),
    )
    .await;
    let assigned = faults(&client, &outbox).await;
    assert!(assigned.len() == 1 && assigned[0].problem.contains("is behind"), "{assigned:#?}");
    assert!(
        assigned[0]
            .remedy
            .contains("If the application assigns IDs itself, let everything that waits be sent"),
        "{assigned:#?}"
    );
    run(&client, "UPDATE app.outbox SET id = 50000, sent_at = now() WHERE id = 50").await;
    assert_eq!(faults(&client, &outbox).await.len(), 1, "it will assign the next ones, too");
    run(&client, "TRUNCATE app.outbox").await;
    run(&client, "ALTER SEQUENCE app.outbox_id_seq INCREMENT 50").await;
    let pooled = faults(&client, &outbox).await;
    assert!(pooled.len() == 1 && pooled[0].problem.contains("Hibernate"), "{pooled:#?}");
    run(&client, "ALTER TABLE app.outbox ALTER id DROP IDENTITY").await;
    let unnumbered = faults(&client, &outbox).await;
    assert!(unnumbered.len() == 1 && unnumbered[0].remedy.contains("outbox_seq"), "{unnumbered:#?}");
    // The application's inserts work as before, with its own IDs.
    let end = unnumbered[0].remedy.find(';').unwrap();
    run(&client, &unnumbered[0].remedy[..=end][unnumbered[0].remedy.find("ALTER").unwrap()..]).await;
    run(
        &client,
        &insert.replace("(aggregate_type", "(id, aggregate_type").replace("('order'", "(51, 'order'"),
    )
    .await;
    database.drop(&[]).await;
}

#[tokio::test]
async fn all_faults_are_reported_at_once() {
    let (database, client, outbox) = migrated("all").await;
    run(
        &client,
        "DROP INDEX app.outbox_pending; TRUNCATE app.outbox_lane; ALTER SEQUENCE app.outbox_id_seq CACHE 10;
         ALTER TABLE app.outbox DROP COLUMN headers; TRUNCATE app.outbox_hold_version",
    )
    .await;
    let codes: Vec<_> = faults(&client, &outbox).await.iter().map(|fault| fault.code).collect();
    assert_eq!(codes, [&COLUMN, &PENDING_INDEX, &SEQUENCE, &LANES, &HOLD_COUNT]);
    database.drop(&[]).await;
}

#[tokio::test]
async fn row_level_security_that_could_hide_rows_is_found() {
    let (database, admin, outbox) = migrated("rls").await;
    let (role, client) = database.connect_as_new_role().await;
    run(&admin, &relay_grants(&outbox, &role)).await;
    run(&admin, "ALTER TABLE app.outbox ENABLE ROW LEVEL SECURITY").await;
    check(&admin, &outbox, false, None).await.expect("row-level security does not apply to a superuser");
    let found = faults(&client, &outbox).await;
    assert!(found.len() == 1 && found[0].code == &ROW_SECURITY, "{found:#?}");
    run(&admin, found[0].remedy.split_inclusive(';').next().unwrap()).await;
    check(&client, &outbox, false, None).await.unwrap();
    database.drop(&[&role]).await;
}

#[tokio::test]
async fn missing_privileges_are_reported_with_their_grant() {
    let (database, admin, outbox) = migrated("grants").await;
    let (role, client) = database.connect_as_new_role().await;
    let found = faults(&client, &outbox).await;
    assert!(found.iter().all(|fault| fault.code == &GRANT_MISSING), "{found:#?}");
    let mut remedies: Vec<&str> = found.iter().map(|fault| fault.remedy.as_str()).collect();
    let all = relay_grants(&outbox, &role);
    // The relay also starts without the privileges on its settings.
    let mut grants: Vec<&str> = all.lines().filter(|grant| !grant.contains("outbox_setting")).collect();
    remedies.sort_unstable();
    grants.sort_unstable();
    assert_eq!(remedies, grants);

    for remedy in &remedies {
        run(&admin, remedy).await;
    }
    let facts = check(&client, &outbox, false, None).await.unwrap();
    assert!(!facts.is_superuser);
    for grant in grants {
        let revoke = grant.replacen("GRANT", "REVOKE", 1).replace(" TO ", " FROM ");
        run(&admin, &revoke).await;
        let found = faults(&client, &outbox).await;
        assert_eq!(found.len(), 1, "{revoke} {found:#?}");
        assert_eq!(found[0].remedy, grant, "{revoke}");
        run(&admin, grant).await;
    }
    database.drop(&[&role]).await;
}

#[tokio::test]
async fn granted_privileges_suffice_for_the_relay_and_the_writers() {
    let (database, admin, outbox) = migrated("enough").await;
    let (relay_role, relay) = database.connect_as_new_role().await;
    let (writer_role, writer) = database.connect_as_new_role().await;
    run(&admin, &relay_grants(&outbox, &relay_role)).await;
    run(&admin, &writer_grants(&outbox, &writer_role)).await;
    run(
        &admin,
        "REVOKE ALL ON SCHEMA public FROM PUBLIC; REVOKE ALL ON ALL FUNCTIONS IN SCHEMA app FROM PUBLIC",
    )
    .await;

    run(&writer, "SELECT app.outbox_enqueue('order', '1', 'Placed', '{\"total\": 12}')").await;
    run(&writer, "SELECT app.outbox_template()").await;
    run(
        &writer,
        "SELECT app.outbox_enqueue(aggregate_type => 'order', aggregate_id => '2', event_type => 'Placed')",
    )
    .await;
    run(
        &writer,
        "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type) VALUES ('order', '3', 'x')",
    )
    .await;
    let id = "00000000-0000-0000-0000-000000000001";
    let sql = format!("SELECT app.outbox_enqueue('order', '4', 'x', NULL, '{{}}', '{id}')::text");
    assert_eq!(writer.query_one(&sql, &[]).await.unwrap().get::<_, &str>(0), id);
    let sql = "SELECT app.outbox_enqueue('order', '5', 'x', event_id => NULL)::text";
    let new: String = writer.query_one(sql, &[]).await.unwrap().get(0);
    let sql = "SELECT event_id::text FROM app.outbox ORDER BY id DESC LIMIT 1";
    assert_eq!(relay.query_one(sql, &[]).await.unwrap().get::<_, String>(0), new);

    run(
        &relay,
        "BEGIN;
         SELECT lane FROM app.outbox_lane FOR UPDATE SKIP LOCKED;
         SELECT * FROM app.outbox WHERE sent_at IS NULL ORDER BY id FOR UPDATE SKIP LOCKED;
         UPDATE app.outbox SET sent_at = clock_timestamp() WHERE id = ANY ('{1, 2}');
         INSERT INTO app.outbox_dead_letter (outbox_id, event_id, aggregate_type, aggregate_id, event_type, payload,
                                             headers, created_at, topic, reason, error)
         SELECT id, event_id, aggregate_type, aggregate_id, event_type, NULL, headers, created_at, 't', 'r', 'e'
         FROM app.outbox WHERE id = 3;
         DELETE FROM app.outbox WHERE id = 3;
         INSERT INTO app.outbox_hold (topic, reason, error) VALUES ('t', 'r', 'e') ON CONFLICT (topic) DO UPDATE SET reason = 'r';
         COMMIT;
         UPDATE app.outbox_hold SET probes = probes + 1",
    )
    .await;
    let version =
        async || relay.query_one("SELECT version FROM app.outbox_hold_version", &[]).await.unwrap().get(0);
    let (before, after): (i64, i64) = (version().await, {
        run(&relay, "DELETE FROM app.outbox_hold").await;
        version().await
    });
    assert_eq!((before, after), (1, 2), "the end of a hold is counted, a probe is not");
    for (client, refused) in [
        (&relay, "UPDATE app.outbox SET payload = NULL"),
        (&relay, "UPDATE app.outbox_hold_version SET version = 0"),
        (&relay, "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type) VALUES ('a', 'b', 'c')"),
        (&writer, "SELECT * FROM app.outbox"),
        (&writer, "DELETE FROM app.outbox"),
    ] {
        let error = client.batch_execute(refused).await.expect_err(refused);
        assert_eq!(error.code(), Some(&tokio_postgres::error::SqlState::INSUFFICIENT_PRIVILEGE), "{refused}");
    }
    database.drop(&[&relay_role, &writer_role]).await;
}
