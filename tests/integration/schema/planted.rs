//! A relation with the name of one of ours that another role has made stops each command before it is read.

use crate::operating::commands::{Ended, kafka};
use crate::support::command::binary;
use crate::support::database::{Database, run, unique};
use outbox_relay::postgres::schema::migrate;
use tempfile::{TempDir, tempdir};
use tokio_postgres::Client;

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
        let printed = world.client.batch_execute(&migrate::print(&"public.outbox".parse().unwrap())).await;
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
    // A table of the outbox that was replaced.
    let replaced = "DROP TABLE public.outbox_lane; CREATE VIEW public.outbox_lane AS
                    SELECT 1::smallint AS lane FROM (SELECT public.evil()) AS e; GRANT ALL ON public.outbox_lane TO PUBLIC";
    run(&world.evils, replaced).await;
    world.assert_stops("outbox_lane", &COMMANDS[3..]);
    world.drop().await;
}
