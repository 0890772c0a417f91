//! Whatever a role may create in a schema of the search path, no statement of the relay and of the commands calls it.

use crate::schema::migrate::psql_with;
use crate::support::command::{Ended, binary};
use crate::support::database::{run, unique};
use crate::support::outbox::Outbox;
use crate::support::relay::Relay;
use crate::support::wait::{STALLED, wait_until};
use tempfile::tempdir;

/// What every trap raises.
const TRAPPED: &str = "a trap was called";

/// Exact matches of calls for which `pg_catalog` has only a match with a cast. A role with CREATE on `public` makes them.
const EXACT_MATCHES: &str = "
CREATE FUNCTION public.pg_column_size(jsonb) RETURNS integer LANGUAGE plpgsql AS $$ BEGIN RAISE 'a trap was called'; END $$;
CREATE FUNCTION public.hashtextextended(text, integer) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RAISE 'a trap was called'; END $$;
CREATE FUNCTION public.power(integer, integer) RETURNS float8 LANGUAGE plpgsql AS $$ BEGIN RAISE 'a trap was called'; END $$;
CREATE FUNCTION public.same(oid, regclass) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'a trap was called'; END $$;
CREATE OPERATOR public.= (LEFTARG = oid, RIGHTARG = regclass, FUNCTION = public.same);
";

/// A twin of each function and operator of the server, in a schema that the search path of the database names first.
const TWINS: &str = "
CREATE SCHEMA trap;
GRANT USAGE ON SCHEMA trap TO PUBLIC;
DO $do$
DECLARE
    twin record;
    body text := 'LANGUAGE plpgsql AS $$ BEGIN RAISE ''a trap was called: %'', ';
BEGIN
    FOR twin IN
        SELECT p.proname, oidvectortypes(p.proargtypes) AS args, p.oid::regprocedure::text AS name,
               CASE WHEN p.proretset THEN 'SETOF ' ELSE '' END || format_type(p.prorettype, NULL) AS result
        FROM pg_proc AS p JOIN pg_type AS t ON t.oid = p.prorettype
        WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND p.provariadic = 0
          AND (t.typtype <> 'p' OR t.typname = 'void')
          AND NOT EXISTS (SELECT FROM unnest(p.proargtypes) AS a JOIN pg_type AS t ON t.oid = a WHERE t.typtype = 'p')
    LOOP
        EXECUTE format('CREATE FUNCTION trap.%I(%s) RETURNS %s %s%L; END $$', twin.proname, twin.args, twin.result, body,
                       twin.name);
    END LOOP;
    FOR twin IN
        SELECT o.oprname, o.oid::regoperator::text AS name, 'operator_' || o.oid AS function,
               nullif(o.oprleft, 0)::regtype AS l, o.oprright::regtype AS r, o.oprresult::regtype AS result
        FROM pg_operator AS o JOIN pg_type AS r ON r.oid = o.oprright LEFT JOIN pg_type AS l ON l.oid = o.oprleft
        WHERE o.oprnamespace = 'pg_catalog'::regnamespace AND o.oprcode <> 0
          AND r.typtype <> 'p' AND l.typtype IS DISTINCT FROM 'p' AND o.oprresult <> 0
    LOOP
        EXECUTE format('CREATE FUNCTION trap.%I(%s) RETURNS %s %s%L; END $$', twin.function,
                       concat_ws(', ', twin.l, twin.r), twin.result, body, twin.name);
        EXECUTE format('CREATE OPERATOR trap.%s (%sRIGHTARG = %s, FUNCTION = trap.%I)', twin.oprname,
                       'LEFTARG = ' || twin.l || ', ', twin.r, twin.function);
    END LOOP;
    EXECUTE format('ALTER DATABASE %I SET search_path = trap, pg_catalog, public', current_database());
END $do$;
";

const INSERT: &str = "
INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload, headers)
SELECT kind, n::text, 'Placed', '{}', '{\"trace\": \"1\"}' FROM unnest(ARRAY['order', 'later']) AS kind, generate_series(1, 3) AS n";

/// Publishes, holds, probes, waits and reaps, as the relay.
async fn publish_and_reap(outbox: &mut Outbox) {
    let mut relay = outbox
        .relay()
        .set("reaper", "interval", "1s")
        .set("reaper", "retention", "1s")
        .set("log", "level", "debug")
        .start()
        .await;
    run(&outbox.client, INSERT).await;
    wait_until("the topic is held", STALLED, async || outbox.holds().await.len() == 1).await;
    outbox.create_topic("later", 1).await;
    outbox.wait_until_drained(STALLED).await;
    run(&outbox.client, INSERT).await;
    outbox.wait_until_drained(STALLED).await;
    wait_until("sent events are deleted", STALLED, async || {
        outbox.count("SELECT count(*) FROM app.outbox").await == 0
    })
    .await;
    assert!(relay.stop().await.success());
    let log = relay.log();
    assert!(!log.contains(TRAPPED), "{log}");
}

fn assert_untrapped(ended: &Ended) {
    // `doctor` and `verify` may report findings.
    assert!(matches!(ended.code, 0 | 1), "{ended}");
    let text = ended.to_string();
    assert!(!text.contains(TRAPPED) && !text.contains("SQLSTATE"), "{ended}");
}

/// Every command that connects, with and without changes.
async fn run_commands(outbox: &Outbox, user: impl Fn() -> Relay) {
    run(&outbox.client, INSERT).await;
    let topic = &*outbox.topic("order");
    for command in [
        &["status"][..],
        &["dead-letters", "list"],
        &["dead-letters", "history"],
        &["dead-letters", "requeue", "--all", "--dry-run"],
        &["dead-letters", "discard", "--all", "--dry-run"],
        &["blocked-keys", "list"],
        &["pause", "--topic", topic],
        &["pause", "--key", "order", "1"],
        &["status"],
        &["resume", "--topic", topic],
        &["resume", "--key", "order", "1"],
        &["replay", "--since", "1h", "--dry-run"],
        &["replay", "--since", "1h"],
        &["verify", "--allow-unknown"],
        &["reap", "--dry-run"],
        &["reap"],
        &["doctor"],
    ] {
        assert_untrapped(&user().command(command));
    }
    assert_untrapped(&outbox.relay().command(&["check-config", "--connect"]));
}

async fn run_as_superuser(outbox: &Outbox) {
    let user = || outbox.relay().set("postgres", "url", outbox.database.url());
    run_commands(outbox, user).await;
    for command in [
        &["check-config", "--connect"][..],
        &["migrate", "--status"],
        &["migrate", "--dry-run", "--with", "inbox"],
        &["migrate", "--with", "inbox", "--with", "idempotency", "--with", "once"],
        &["migrate", "--adopt", "app.outbox"],
        &["reap"],
    ] {
        assert_untrapped(&user().command(command));
    }
    let folder = tempdir().unwrap();
    let (database, role) = (outbox.database.url(), unique("init"));
    let mut init = binary(&["init", "--yes", "--dry-run"]);
    init.args(["--database", &database, "--table", "app.other", "--role", &role]);
    init.args(["--brokers", &outbox.cluster.bootstrap])
        .arg("--config")
        .arg(folder.path().join("config.toml"));
    assert_untrapped(&Ended::of(&mut init));
}

#[tokio::test]
async fn functions_and_operators_in_public_are_never_called() {
    let mut outbox = Outbox::create("path_public", 1).await;
    run(&outbox.client, "GRANT CREATE ON SCHEMA public TO PUBLIC").await;
    let (evil, client) = outbox.database.connect_as_new_role().await;
    run(&client, EXACT_MATCHES).await;
    publish_and_reap(&mut outbox).await;
    run_commands(&outbox, || outbox.operator()).await;
    run_as_superuser(&outbox).await;
    // With and without one transaction.
    let user = || outbox.relay().set("postgres", "url", outbox.database.url());
    let roles = user().command(&["migrate", "--print-roles", "--role", outbox.roles.relay()]);
    psql_with(&[], &outbox.database, roles.succeeds());
    psql_with(&["--single-transaction"], &outbox.database, roles.succeeds());
    let tables = user().set("outbox", "table", "app.printed").command(&["migrate", "--print"]);
    psql_with(&[], &outbox.database, tables.succeeds());
    let doctor = outbox.relay().command(&["doctor"]);
    let remedy = "REVOKE CREATE ON SCHEMA public FROM PUBLIC;";
    for text in ["schema-create", "PUBLIC may create objects", remedy] {
        assert!(doctor.succeeds().contains(text), "{doctor}");
    }
    drop(client);
    run(&outbox.client, &format!("DROP OWNED BY {evil}; DROP ROLE {evil}")).await;
    outbox.drop().await;
}

#[tokio::test]
async fn every_statement_runs_with_a_fixed_search_path() {
    let mut outbox = Outbox::create("path_twins", 1).await;
    run(&outbox.client, TWINS).await;
    publish_and_reap(&mut outbox).await;
    run_commands(&outbox, || outbox.operator()).await;
    run_as_superuser(&outbox).await;
    outbox.drop().await;
}
