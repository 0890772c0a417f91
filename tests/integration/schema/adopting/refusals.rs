//! Tables that cannot be an outbox. Each is refused with one message, and nothing is changed.

use super::adoption::catalog;
use super::world::World;
use crate::support::database::{Database, run};

const GOOD: &str = "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, aggregate_type text NOT NULL, aggregate_id text NOT NULL,
                    event_type text NOT NULL, payload jsonb";

struct Case {
    sql: String,
    names: &'static [(&'static str, &'static str)],
    expected: &'static [&'static str],
}

fn case(
    columns: &str,
    names: &'static [(&'static str, &'static str)],
    expected: &'static [&'static str],
) -> Case {
    Case { sql: format!("CREATE TABLE app.events ({columns})"), names, expected }
}

fn replaced(from: &str, to: &str, expected: &'static [&'static str]) -> Case {
    assert!(GOOD.contains(from), "{from}");
    case(&GOOD.replace(from, to), &[], expected)
}

fn cases() -> Vec<Case> {
    let id = "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY";
    vec![
        replaced(
            id,
            "id uuid PRIMARY KEY",
            &[
                "column id: the type is uuid. The relay publishes the events of a key in the order of their IDs",
                "random IDs do not follow the order of inserts",
                "ADD COLUMN seq bigint GENERATED ALWAYS AS IDENTITY",
                "--print-adapter debezium",
            ],
        ),
        case(
            &GOOD.replace(id, "nr uuid PRIMARY KEY"),
            &[("id", "nr")],
            &["column nr ([outbox.columns] id): the type is uuid"],
        ),
        replaced(
            id,
            "id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
            &["the type is integer, not bigint"],
        ),
        Case {
            sql: format!(
                "CREATE TABLE app.events ({}); ALTER TABLE app.events ALTER COLUMN id TYPE bigint USING id::bigint",
                GOOD.replace(id, "id serial PRIMARY KEY")
            ),
            names: &[],
            expected: &[
                "the sequence ends at 2147483647",
                "ALTER SEQUENCE app.events_id_seq AS bigint NO MAXVALUE;",
            ],
        },
        replaced(id, "id bigint PRIMARY KEY", &["the IDs do not come from a sequence"]),
        replaced(
            id,
            "id bigint GENERATED ALWAYS AS IDENTITY (CACHE 10) PRIMARY KEY",
            &["the sequence has CACHE 10"],
        ),
        replaced(
            &format!("{id}, "),
            "",
            &["column id: the table has no such column", "set [outbox.columns] id"],
        ),
        replaced(
            " aggregate_id text NOT NULL,",
            "",
            &[
                "column aggregate_id: the table has no such column",
                "set [outbox.columns] aggregate_id to the column that has the Kafka key",
            ],
        ),
        replaced(
            " aggregate_type text NOT NULL,",
            "",
            &["set [outbox.columns] aggregate_type to the column"],
        ),
        replaced(", payload jsonb", "", &["set [outbox.columns] payload to the column"]),
        case(
            GOOD,
            &[("sent_at", "publishd_at")],
            &[
                "column publishd_at ([outbox.columns] sent_at): the table has no such column",
                "or remove it so that a column sent_at is added",
            ],
        ),
        case(
            GOOD,
            &[("topic", "target")],
            &["column target ([outbox.columns] topic): the table has no such column"],
        ),
        replaced(
            "aggregate_id text",
            "aggregate_id integer",
            &["column aggregate_id: the type is integer, not text or character varying"],
        ),
        replaced("payload jsonb", "payload xml", &["the type is xml, not json or jsonb or bytea or text"]),
        case(
            &format!("{GOOD}, sent_at boolean"),
            &[],
            &[
                "column sent_at: the type is boolean, not timestamp with time zone",
                "ADD COLUMN outbox_sent_at timestamp with time zone;",
                "SET outbox_sent_at = now() WHERE sent_at;",
            ],
        ),
        case(
            &format!("{GOOD}, sent_at timestamp"),
            &[],
            &[
                "ADD COLUMN outbox_sent_at timestamp with time zone;",
                "SET outbox_sent_at = sent_at AT TIME ZONE 'UTC' WHERE sent_at IS NOT NULL;",
            ],
        ),
        case(
            &format!("{GOOD}, headers json"),
            &[],
            &["ALTER COLUMN headers TYPE jsonb USING headers::jsonb;"],
        ),
        case(
            &format!("{GOOD}, event_id text"),
            &[],
            &["ALTER COLUMN event_id TYPE uuid USING event_id::uuid;"],
        ),
        case(
            &format!("{GOOD}, created_at timestamp"),
            &[],
            &["ADD COLUMN outbox_created_at timestamp with time zone NOT NULL DEFAULT now();"],
        ),
        case(&format!("{GOOD}, sent_at timestamptz DEFAULT now()"), &[], &["new events would count as sent"]),
        case(&format!("{GOOD}, topic integer"), &[], &["column topic: the type is integer"]),
        case(
            &format!("{GOOD}, tenant integer NOT NULL"),
            &[],
            &["column tenant: it is NOT NULL and has no default"],
        ),
        replaced(
            "aggregate_id text NOT NULL",
            "aggregate_id text GENERATED ALWAYS AS ('k') STORED",
            &["it is generated"],
        ),
        Case {
            sql: format!(
                "CREATE TABLE app.events ({}); INSERT INTO app.events (aggregate_type, event_type, sent_at) VALUES ('a', 'b', now())",
                GOOD.replace("aggregate_id text NOT NULL", "aggregate_id text, sent_at timestamptz")
            ),
            names: &[],
            expected: &["column aggregate_id: it is NULL in some rows"],
        },
        Case {
            sql: format!(
                "CREATE TABLE app.events ({GOOD}, sent_at timestamptz); CREATE INDEX events_pending ON app.events (sent_at)"
            ),
            names: &[],
            expected: &["the index events_pending has the name of the pending index", "RENAME TO"],
        },
        Case {
            sql: format!(
                "CREATE TABLE app.events ({}) PARTITION BY RANGE (id)",
                GOOD.replace("GENERATED ALWAYS AS IDENTITY ", "")
            ),
            names: &[],
            expected: &["it is a partitioned table"],
        },
        Case {
            sql: format!("CREATE TABLE app.events ({GOOD}); CREATE TABLE app.events_pending ()"),
            names: &[],
            expected: &["its name events_pending is in use", "CREATE INDEX CONCURRENTLY another_name ON"],
        },
        Case {
            sql: format!(
                "CREATE TABLE app.events ({}, seq bigint GENERATED ALWAYS AS IDENTITY)",
                GOOD.replace(id, "id uuid NOT NULL UNIQUE")
            ),
            names: &[("id", "seq"), ("event_id", "id")],
            expected: &["its name events_id_key is in use", "CREATE UNIQUE INDEX CONCURRENTLY another_name ON"],
        },
        Case {
            sql: format!(
                "CREATE SEQUENCE app.ids; CREATE TABLE app.events ({}); ALTER SEQUENCE app.ids OWNED BY app.events.id;
                 CREATE PUBLICATION refused FOR TABLE app.events",
                GOOD.replace(id, "id bigint DEFAULT nextval('app.ids')")
            ),
            names: &[],
            expected: &["column id: it is nullable, so it cannot identify the rows", "SET NOT NULL"],
        },
        Case {
            sql: "CREATE VIEW app.events AS SELECT 1 AS id".to_owned(),
            names: &[],
            expected: &["it is a view"],
        },
        Case {
            sql: format!("CREATE UNLOGGED TABLE app.events ({GOOD})"),
            names: &[],
            expected: &["it is an unlogged table"],
        },
        Case { sql: "SELECT".to_owned(), names: &[], expected: &["the table does not exist"] },
    ]
}

#[tokio::test]
async fn unsuitable_tables_are_refused_with_a_remedy_and_nothing_is_changed() {
    let world = World::with("refused", "CREATE SCHEMA app", &[]).await;
    for Case { sql, names, expected } in cases() {
        run(&world.client, &format!("DROP SCHEMA app CASCADE; CREATE SCHEMA app; {sql}")).await;
        let before = catalog(&world.client).await;
        for args in
            [&["migrate", "--adopt", "app.events"][..], &["migrate", "--adopt", "app.events", "--apply"]]
        {
            let owner = names.iter().fold(world.owner(), |owner, (standard, name)| {
                owner.set_inner("outbox", "columns", standard, *name)
            });
            let ended = owner.command(args);
            ended.fails(78, &["app.events cannot be adopted, and nothing was changed:\n  "]);
            ended.fails(78, expected);
            assert_eq!(ended.stderr.trim_end().lines().count(), 2, "one message: {sql}: {ended}");
        }
        assert_eq!(catalog(&world.client).await, before, "{sql}");
    }
    world.drop().await;
}

/// The migrations are tried before the table is changed.
#[tokio::test]
async fn names_that_are_in_use_stop_the_adoption_before_the_table_is_changed() {
    let world = World::with(
        "refused_name",
        &format!("CREATE SCHEMA app; CREATE TABLE app.events ({GOOD}); CREATE TABLE app.events_hold ()"),
        &[],
    )
    .await;
    let before = catalog(&world.client).await;
    let ended = world.migrate(&["--adopt", "app.events", "--apply"]);
    ended.fails(78, &["\"events_hold\" already exists"]);
    assert_eq!(catalog(&world.client).await, before);
    world.drop().await;
}

#[tokio::test]
async fn role_that_does_not_own_the_table_is_refused() {
    let world =
        World::with("refused_role", &format!("CREATE SCHEMA app; CREATE TABLE app.events ({GOOD})"), &[])
            .await;
    let (role, client) = world.database.connect_as_new_role().await;
    run(
        &world.client,
        &format!("GRANT USAGE, CREATE ON SCHEMA app TO {role}; GRANT ALL ON app.events TO {role}"),
    )
    .await;
    let url = world.database.url_of(&role);
    let ended =
        world.owner().set("postgres", "url", url).command(&["migrate", "--adopt", "app.events", "--apply"]);
    ended.fails(78, &["does not own the table", "connect as the owner"]);
    drop(client);
    run(&world.client, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
    world.drop().await;
}

#[tokio::test]
async fn table_in_a_database_with_another_encoding_is_refused() {
    let database = Database::create_in("refused_latin1", "LATIN1").await;
    let client = database.connect().await;
    run(&client, &format!("CREATE SCHEMA app; CREATE TABLE app.events ({GOOD})")).await;
    let relay = crate::support::relay::Relay::new()
        .set("postgres", "url", database.url())
        .set("kafka", "bootstrap_servers", "localhost:1")
        .set("outbox", "table", "app.events");
    relay.command(&["migrate", "--adopt", "app.events", "--apply"]).fails(78, &["its encoding is LATIN1"]);
    drop(client);
    database.drop(&[]).await;
}
