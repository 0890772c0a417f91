//! A relation with the name of one of ours that another role has made stops each command before it is read.

use crate::operating::commands::{Ended, kafka};
use crate::support::command::binary;
use crate::support::database::{Database, run, unique};
use crate::support::outbox::Outbox;
use crate::support::rows::{self, Filling};
use crate::support::wait::{STALLED, wait_until};
use postgres::schema::migrate;
use postgres::table::Module;
use serde_json::Value;
use tempfile::{TempDir, tempdir};
use tokio_postgres::{Client, SimpleQueryMessage};

/// Raises, so that a call cannot be missed, even in a READ ONLY transaction.
const EVIL: &str = "CREATE FUNCTION public.evil() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN RAISE 'evil code ran'; END $$;
CREATE FUNCTION public.evil_trigger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'evil code ran'; END $$;";

struct World {
    database: Database,
    client: Client,
    evil: String,
    evils: Client,
    folder: TempDir,
}

impl World {
    /// A database in which `evil` may create in `public`.
    async fn new(test: &str) -> World {
        let database = Database::create(test).await;
        let client = database.connect().await;
        run(&client, "GRANT CREATE ON SCHEMA public TO PUBLIC").await;
        let (evil, evils) = database.connect_as_new_role().await;
        run(&evils, EVIL).await;
        let folder = tempdir().unwrap();
        let text = format!(
            "[postgres]\nurl = {:?}\n[kafka]\nbootstrap_servers = {:?}\n[admin]\nlisten = \"off\"\n",
            database.url(),
            kafka()
        );
        std::fs::write(folder.path().join("relay.toml"), text).unwrap();
        World { database, client, evil, evils, folder }
    }

    fn command(&self, args: &[&str]) -> Ended {
        let mut command = binary(args);
        command.arg("--config").arg(self.folder.path().join("relay.toml"));
        Ended::of(&mut command)
    }

    fn init(&self, mode: &str) -> Ended {
        let (url, role) = (self.database.url(), unique("init"));
        let mut command = binary(&["init", mode, "--database", &url, "--brokers", &kafka(), "--role", &role]);
        command.arg("--config").arg(self.folder.path().join("init.toml"));
        Ended::of(&mut command)
    }

    /// Every command stops, and names the relation and its owner. Nothing planted runs.
    fn assert_stops(&self, relation: &str, commands: &[&[&str]]) {
        for command in commands {
            let ended = self.command(command);
            ended.fails(if command[0] == "doctor" { 1 } else { 78 }, &[relation, &self.evil]);
            assert!(!ended.to_string().contains("evil code ran"), "{ended}");
        }
    }

    fn assert_init_stops(&self, relation: &str) {
        for mode in ["--dry-run", "--yes"] {
            let ended = self.init(mode);
            ended.fails(78, &[relation, &self.evil]);
            assert!(!ended.to_string().contains("evil code ran"), "{ended}");
        }
    }

    async fn drop(self) {
        drop((self.client, self.evils));
        self.database.drop(&[&self.evil]).await;
    }
}

const COMMANDS: [&[&str]; 8] = [
    &["migrate", "--status"],
    &["migrate", "--dry-run"],
    &["migrate"],
    &["status"],
    &["check-config", "--connect"],
    &["dead-letters", "list"],
    &["pause"],
    &["doctor"],
];

const TABLE: &str = "CREATE TABLE public.outbox_migration (
    number integer PRIMARY KEY, name text NOT NULL, checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now());
    GRANT ALL ON public.outbox_migration TO PUBLIC;";

#[tokio::test]
async fn planted_records_of_migrations_stop_every_command() {
    let world = World::new("planted").await;
    let table_with = |more: &str| format!("{TABLE}; {more}");
    let kinds = [
        (
            "VIEW",
            "CREATE VIEW public.outbox_migration AS
            SELECT 1 AS number, 'outbox'::text AS name, 'x'::text AS checksum, public.evil() AS applied_at;
            GRANT ALL ON public.outbox_migration TO PUBLIC"
                .to_owned(),
        ),
        ("TABLE", table_with("")),
        (
            "TABLE",
            table_with(
                "CREATE TRIGGER t BEFORE INSERT ON public.outbox_migration
            FOR EACH ROW EXECUTE FUNCTION public.evil_trigger()",
            ),
        ),
        (
            "TABLE",
            table_with("ALTER TABLE public.outbox_migration ALTER applied_at SET DEFAULT public.evil()"),
        ),
        (
            "TABLE",
            table_with("CREATE RULE r AS ON INSERT TO public.outbox_migration DO ALSO SELECT public.evil()"),
        ),
    ];
    for (kind, plant) in kinds {
        run(&world.evils, &plant).await;
        world.assert_stops("outbox_migration", &COMMANDS);
        world.assert_init_stops("outbox_migration");
        let sql = migrate::print(&"public.outbox".parse().unwrap(), migrate::Series::Outbox);
        let printed = world.client.batch_execute(&sql).await;
        let error = format!("{:?}", printed.expect_err("the printed script must stop"));
        assert!(error.contains("was created by another role"), "{error}");
        run(&world.evils, &format!("DROP {kind} public.outbox_migration")).await;
    }
    world.drop().await;
}

#[tokio::test]
async fn planted_records_of_modules_stop_migrate() {
    let world = World::new("planted_module").await;
    world.command(&["migrate"]).succeeds();
    run(
        &world.evils,
        "CREATE VIEW public.pg_outbox_migration AS SELECT 'inbox'::text AS module, 1 AS number, 'x'::text AS name,
             'x'::text AS checksum, public.evil() AS applied_at;
         GRANT ALL ON public.pg_outbox_migration TO PUBLIC",
    )
    .await;
    world.assert_stops("pg_outbox_migration", &COMMANDS[..3]);
    let series = migrate::Series::Module(Module::Inbox);
    let sql = migrate::print(&"public.outbox".parse().unwrap(), series);
    let records =
        "CREATE TABLE public.pg_outbox_migration (module text, number integer, name text, checksum text,
         applied_at timestamptz DEFAULT {now}(), min_relay text)";
    for replaced in ["VIEW", "TABLE"] {
        let printed = world.client.batch_execute(&sql).await;
        let error = format!("{:?}", printed.expect_err("the printed script must stop"));
        assert!(error.contains("was created by another role"), "{error}");
        run(&world.evils, &format!("DROP {replaced} public.pg_outbox_migration")).await;
        run(&world.evils, &records.replace("{now}", "public.evil")).await;
    }
    // The owner of the outbox is trusted.
    run(&world.evils, "ALTER TABLE public.pg_outbox_migration ALTER applied_at SET DEFAULT now()").await;
    run(&world.client, &format!("ALTER TABLE public.outbox OWNER TO {}", world.evil)).await;
    run(&world.client, &sql).await;
    world.drop().await;
}

#[tokio::test]
async fn outbox_of_an_application_role_is_used_by_a_superuser_until_its_tables_run_other_code() {
    let world = World::new("planted_owner").await;
    world.command(&["migrate"]).succeeds();
    let tables = "DO $$ DECLARE t record; BEGIN
        FOR t IN SELECT relname FROM pg_class WHERE relname LIKE 'outbox%' AND relkind = 'r' LOOP
            EXECUTE format('ALTER TABLE public.%I OWNER TO ', t.relname) || '{evil}';
        END LOOP;
        ALTER FUNCTION public.outbox_hold_changed OWNER TO {evil};
    END $$";
    run(&world.client, &tables.replace("{evil}", &world.evil)).await;
    world.command(&["status"]).succeeds();
    run(
        &world.evils,
        "CREATE TRIGGER t BEFORE INSERT ON public.outbox_pause FOR EACH ROW EXECUTE FUNCTION public.evil_trigger()",
    )
    .await;
    world.assert_stops(
        "outbox_pause",
        &[&["status"], &["pause"], &["doctor"], &["check-config", "--connect"]],
    );
    run(&world.evils, "DROP TRIGGER t ON public.outbox_pause").await;
    // A trigger function of ours runs as its owner, but what it changes may run other code at COMMIT, as the superuser.
    let (genuine, as_before) = {
        let of = "SELECT pg_get_functiondef('public.outbox_hold_changed'::regproc)";
        let genuine: String = world.client.query_one(of, &[]).await.unwrap().get(0);
        (genuine.replace("removals = removals", "removals = 1 + removals"), genuine)
    };
    run(&world.evils, &genuine).await;
    world.assert_stops("outbox_hold", &[&["status"], &["pause"], &["doctor"]]);
    run(&world.evils, &as_before).await;
    world.command(&["status"]).succeeds();
    run(&world.evils, "ALTER FUNCTION public.outbox_hold_changed RESET ALL").await;
    world.assert_stops("outbox_hold", &[&["status"]]);
    run(&world.evils, &as_before).await;
    // A table of the outbox that was replaced.
    let replaced = "DROP TABLE public.outbox_lane; CREATE VIEW public.outbox_lane AS
                    SELECT 1::smallint AS lane FROM (SELECT public.evil()) AS e; GRANT ALL ON public.outbox_lane TO PUBLIC";
    run(&world.evils, replaced).await;
    world.assert_stops("outbox_lane", &COMMANDS[3..]);
    world.drop().await;
}

/// Its owner may have triggers on it. They run with the rights of the role that changes a row.
#[tokio::test]
async fn superuser_changes_no_row_of_an_outbox_that_runs_code_of_another_role() {
    let world = World::new("planted_outbox").await;
    world.command(&["migrate"]).succeeds();
    run(&world.client, &format!("ALTER TABLE public.outbox OWNER TO {}", world.evil)).await;
    run(
        &world.evils,
        "CREATE TRIGGER t BEFORE INSERT OR UPDATE OR DELETE ON public.outbox FOR EACH ROW EXECUTE FUNCTION public.evil_trigger()",
    )
    .await;
    world.command(&["status"]).succeeds();
    world.assert_stops(
        "outbox",
        &[
            &["dead-letters", "requeue", "--all", "--yes"],
            &["replay", "--all", "--yes"],
            &["reap"],
            &["run", "--once"],
            &["check-config", "--connect"],
        ],
    );
    run(&world.evils, "DROP TRIGGER t ON public.outbox").await;
    let function =
        "CREATE FUNCTION public.evil_text(text) RETURNS text IMMUTABLE LANGUAGE sql AS $$ SELECT $1 $$";
    run(&world.evils, function).await;
    // The planner of a SELECT runs it.
    for (plant, drop) in [
        (
            "CREATE STATISTICS public.s ON (public.evil_text('x') || event_type) FROM public.outbox",
            "DROP STATISTICS public.s",
        ),
        ("CREATE INDEX i ON public.outbox ((public.evil_text('x') || event_type))", "DROP INDEX public.i"),
        (
            "ALTER TABLE public.outbox ADD CONSTRAINT c CHECK (public.evil_text('x') <> event_type)",
            "ALTER TABLE public.outbox DROP CONSTRAINT c",
        ),
    ] {
        world.command(&["status"]).succeeds();
        run(&world.evils, plant).await;
        let stopped: [&[&str]; 4] =
            [&["status"], &["dead-letters", "list"], &["doctor"], &["check-config", "--connect"]];
        world.assert_stops("evil_text", &stopped);
        run(&world.evils, drop).await;
    }
    run(&world.evils, "CREATE TABLE public.events AS SELECT 1::bigint AS id; \
                       CREATE TRIGGER t BEFORE UPDATE ON public.events FOR EACH ROW EXECUTE FUNCTION public.evil_trigger()")
        .await;
    let mut adopt = binary(&["migrate", "--adopt", "public.events", "--apply", "--existing-rows", "sent"]);
    adopt.arg("--config").arg(world.folder.path().join("relay.toml"));
    adopt.env("OUTBOX_RELAY__OUTBOX__TABLE", "public.events");
    Ended::of(&mut adopt).fails(78, &["evil_trigger", &world.evil, "as a superuser"]);
    world.drop().await;
}

/// Rows that are deleted with a row of ours run triggers, before PostgreSQL 18 as the role that deletes ours.
#[tokio::test]
async fn foreign_keys_of_another_role_stop_commands_and_relays() {
    let outbox = Outbox::create("planted_key", 1).await;
    let (evil, evils) = outbox.database.connect_as_new_role().await;
    run(&outbox.client, &format!("GRANT USAGE, CREATE ON SCHEMA app TO {evil}")).await;
    for table in ["outbox", "outbox_pause"] {
        run(&outbox.client, &format!("GRANT REFERENCES, SELECT (id) ON app.{table} TO {evil}")).await;
        run(
            &evils,
            &format!("CREATE TABLE app.mine (id bigint REFERENCES app.{table} (id) ON DELETE CASCADE)"),
        )
        .await;
        let says = [
            format!("app.mine of the role {evil}"),
            format!("REVOKE REFERENCES ON \"app\".\"{table}\" FROM"),
        ];
        let says: Vec<&str> = says.iter().map(String::as_str).collect();
        let superuser = || outbox.operator().set("postgres", "url", outbox.database.url());
        let commands: [&'static [&str]; 3] =
            [&["reap"], &["resume", "--all"], &["check-config", "--connect"]];
        for args in &commands[usize::from(table != "outbox")..] {
            let relay = superuser();
            if table == "outbox" && args[0] == "resume" {
                continue; // it deletes no event
            }
            let args = *args;
            let ended = tokio::task::spawn_blocking(move || relay.command(args)).await.unwrap();
            ended.fails(78, &says);
        }
        let relay = outbox.relay();
        let ended = tokio::task::spawn_blocking(move || relay.command(&["run", "--once"])).await.unwrap();
        ended.fails(78, &says);
        run(&evils, "DROP TABLE app.mine").await;
    }
    let relay = outbox.relay();
    tokio::task::spawn_blocking(move || relay.command(&["run", "--once"])).await.unwrap().succeeds();
    drop(evils);
    outbox.drop_database().await;
}

/// Default privileges of the role that migrates would give other roles the tables.
#[tokio::test]
async fn default_privileges_give_nobody_a_new_outbox() {
    let world = World::new("planted_defaults").await;
    let defaults = format!(
        "ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO {0}, PUBLIC; ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO {0};
         ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO {0}",
        world.evil
    );
    run(&world.client, &defaults).await;
    world.command(&["migrate"]).succeeds();
    let granted = "SELECT coalesce(string_agg(DISTINCT c.relname, ', '), '') FROM pg_class AS c, aclexplode(c.relacl) AS a
                   WHERE c.relnamespace = 'public'::regnamespace AND c.relname LIKE 'outbox%' AND a.grantee <> c.relowner
                     AND c.relname !~ '_id_seq$' OR c.relname = 'outbox_id_seq' AND a.grantee <> c.relowner";
    let of_others: String = world.client.query_one(granted, &[]).await.unwrap().get(0);
    assert_eq!(of_others, "");
    let denied = "SELECT public.outbox_record_act('replay', '{}', '{}', '{}', '{}', NULL)";
    let error = world.evils.batch_execute(denied).await.unwrap_err();
    assert_eq!(error.code().map(|code| code.code().to_owned()).as_deref(), Some("42501"), "{error}");
    // Of an outbox that was created before the migration.
    run(&world.client, &format!("GRANT ALL ON public.outbox, public.outbox_act TO {}", world.evil)).await;
    let ended = world.command(&["doctor"]);
    let code = "outbox-privileges";
    for said in
        [code, &world.evil, "outbox_act (DELETE)", "outbox (REFERENCES)", "outbox_act_id_seq (UPDATE)"]
    {
        assert!(ended.stdout.contains(said), "{said} is missing in {ended}");
    }
    run(&world.client, &defaults.replace("GRANT", "REVOKE").replace(" TO ", " FROM ")).await;
    world.drop().await;
}

/// The owner of the schema can replace a table of a running relay. Where the server has the setting, a view runs nothing.
#[tokio::test]
async fn view_that_replaces_a_table_of_a_running_relay_runs_nothing() {
    let outbox = Outbox::create("planted_running", 3).await;
    let has_setting = "SELECT count(*) FROM pg_settings WHERE name = 'restrict_nonsystem_relation_kind'";
    assert_eq!(outbox.count(has_setting).await, 1, "the newest minor version of each server has it");
    let mut relay = outbox.start_relay().await;
    rows::insert(&outbox, "order", 10, 0..100, Filling::Nothing).await;
    outbox.wait_until_drained(STALLED).await;
    let (evil, evils) = outbox.database.connect_as_new_role().await;
    run(&outbox.client, &format!("ALTER SCHEMA app OWNER TO {evil}")).await;
    let plant =
        "CREATE FUNCTION app.evil() RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'evil code ran'; END $$;
                 CREATE TABLE app.former AS SELECT * FROM app.outbox_pause WITH NO DATA";
    run(&outbox.client, "GRANT SELECT ON app.outbox_pause TO PUBLIC").await;
    run(&evils, plant).await;
    let replace = "DROP TABLE app.outbox_pause; CREATE VIEW app.outbox_pause AS
                       SELECT f.*, app.evil() AS spy FROM app.former AS f;
                   GRANT ALL ON app.outbox_pause, app.former TO PUBLIC";
    run(&evils, replace).await;
    rows::insert(&outbox, "order", 10, 100..200, Filling::Nothing).await;
    wait_until("the relay refuses the view", STALLED, async || relay.log().contains("non-system view")).await;
    assert!(!relay.log().contains("evil code ran"), "{}", relay.log());
    relay.kill();
    drop(evils);
    outbox.drop_database().await;
}

const APPLICATION: &str = "DO $$ BEGIN
    FOR n IN 1..1000 LOOP
        EXECUTE format('CREATE FUNCTION public.f_%s() RETURNS integer LANGUAGE sql AS ''SELECT 1''', n);
        EXECUTE format('CREATE TABLE public.t_%s (id bigserial PRIMARY KEY, name text DEFAULT lower(''X'') CHECK (name > ''''))', n);
    END LOOP;
END $$; ANALYZE";

/// Relays and commands search for foreign code when they start, also next to thousands of an application's tables.
#[tokio::test]
async fn search_for_foreign_code_reads_no_catalog_again_for_each_relation() {
    let outbox = Outbox::without_topics("catalog").await;
    run(&outbox.client, APPLICATION).await;
    let search = include_str!("../../../sql/check/foreign.sql");
    run(&outbox.client, &format!("PREPARE search (text, text, text[], text[], text[], boolean) AS {search}"))
        .await;
    let names = "SELECT array_agg(relname)::text, (SELECT count(*) FROM pg_depend) FROM pg_class
                 WHERE relnamespace = 'app'::regnamespace AND relname LIKE 'outbox%' AND relkind IN ('r', 'S')";
    let found = outbox.client.query_one(names, &[]).await.unwrap();
    let (names, dependencies): (String, i64) = (found.get(0), found.get(1));
    let explain = format!(
        "EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) EXECUTE search ('app', 'outbox', '{names}', '{{}}', '{{}}', true)"
    );
    let explained = outbox.client.simple_query(&explain).await.unwrap();
    let plan = explained.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    let plan: Value = serde_json::from_str(plan.unwrap()).unwrap();
    let read = rows_read(&plan[0]["Plan"]);
    println!("{read} rows read, {dependencies} dependencies");
    assert!(read < 5 * dependencies, "{read} rows read, {dependencies} dependencies: {plan:#}");
    outbox.drop().await;
}

/// The rows that this node of a plan and those below it have read.
fn rows_read(node: &Value) -> i64 {
    let counts = ["Actual Rows", "Rows Removed by Filter", "Rows Removed by Join Filter"];
    let rows: f64 = counts.iter().filter_map(|count| node[count].as_f64()).sum();
    let below = node["Plans"].as_array().into_iter().flatten().map(rows_read).sum::<i64>();
    (rows * node["Actual Loops"].as_f64().unwrap()) as i64 + below
}
