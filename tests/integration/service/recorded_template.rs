//! Each relay records its topic template when it starts, so that applications can compare theirs. No relay depends on it.

use std::time::{Duration, Instant};

use postgres::access::grants::relay_grants;
use postgres::schema::migrate;

use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::rows::{self, Filling};
use crate::support::wait::{STALLED, assert_within, wait_until};

const RECORDED: &str = "SELECT app.outbox_template()";

/// The schema before the second migration.
const FORMER_SCHEMA: &str = "DROP FUNCTION app.outbox_template;
                             DROP TABLE app.outbox_setting, app.outbox_reaper;
                             DROP FUNCTION app.outbox_act_recorded, app.outbox_record_act CASCADE;
                             ALTER TABLE app.outbox_act DROP COLUMN login; DELETE FROM app.outbox_migration WHERE number >= 2";

async fn recorded(outbox: &Outbox) -> Option<String> {
    outbox.client.query_one(RECORDED, &[]).await.unwrap().get(0)
}

async fn row(outbox: &Outbox) -> (String, String) {
    let sql = "SELECT role, recorded_at::text FROM app.outbox_setting";
    let row = outbox.client.query_one(sql, &[]).await.unwrap();
    (row.get(0), row.get(1))
}

#[tokio::test]
async fn relay_records_its_template_once() {
    let outbox = Outbox::without_topics("template").await;
    assert_eq!(recorded(&outbox).await, None);
    let mut relay = outbox.start_relay().await;
    assert_eq!(recorded(&outbox).await, Some(outbox.topic("{aggregate_type}")));
    assert!(relay.stop().await.success());
    let first = row(&outbox).await;
    assert_eq!(first.0, outbox.roles.relay());

    let mut again = outbox.start_relay().await;
    assert!(again.stop().await.success());
    assert_eq!(row(&outbox).await, first, "the same template is not recorded again");
    for log in [relay.log(), again.log()] {
        assert!(!log.contains("topic_template"), "{log}");
    }
    outbox.drop().await;
}

#[tokio::test]
async fn relay_that_disagrees_with_the_last_one_reports_what_it_replaces() {
    let outbox = Outbox::without_topics("template_differs").await;
    let mut one = outbox.start_relay().await;
    let mut two = outbox.relay().set("outbox", "topic", "elsewhere.{aggregate_type}").start().await;
    let log = two.log();
    let warning = log.lines().find(|line| line.contains("topic_template_changed"));
    let warning = warning.unwrap_or_else(|| panic!("{log}"));
    for part in [
        "WARN",
        "elsewhere.{aggregate_type}",
        &outbox.topic("{aggregate_type}"),
        outbox.roles.relay(),
        &one.name,
    ] {
        assert!(warning.contains(part), "{part}: {warning}");
    }
    assert_eq!(recorded(&outbox).await.as_deref(), Some("elsewhere.{aggregate_type}"));
    assert!(one.stop().await.success() && two.stop().await.success());
    outbox.drop().await;
}

#[tokio::test]
async fn relays_that_start_together_record_the_template_once() {
    let outbox = Outbox::without_topics("template_race").await;
    let relays = (0..4).map(|_| outbox.relay().start());
    let relays = futures_util::future::join_all(relays).await;
    for mut relay in relays {
        assert!(!relay.log().contains("topic_template"), "{}", relay.log());
        assert!(relay.stop().await.success());
    }
    assert_eq!(recorded(&outbox).await, Some(outbox.topic("{aggregate_type}")));
    outbox.drop().await;
}

/// Lets each relay write only after both have found that no template is recorded.
const MEET: &str = "
    CREATE SEQUENCE app.writer;
    CREATE FUNCTION app.meet() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
    BEGIN
        PERFORM nextval('app.writer');
        WHILE (SELECT last_value FROM app.writer) < 2 LOOP
            PERFORM pg_sleep(0.01);
        END LOOP;
        RETURN NEW;
    END $$;
    CREATE TRIGGER meet BEFORE INSERT ON app.outbox_setting FOR EACH ROW EXECUTE FUNCTION app.meet()";

#[tokio::test]
async fn one_of_two_relays_that_start_together_reports_that_they_disagree() {
    let outbox = Outbox::without_topics("template_disagree").await;
    run(&outbox.client, MEET).await;
    let relays = ["one", "two"].map(|topic| outbox.relay().set("outbox", "topic", topic).start());
    let relays = futures_util::future::join_all(relays).await;
    let recorded = recorded(&outbox).await.unwrap();
    let mut changed = Vec::new();
    for (mut relay, topic) in relays.into_iter().zip(["one", "two"]) {
        let log = relay.log();
        assert!(!log.contains("topic_template_unrecorded"), "{log}");
        changed.extend(log.contains("topic_template_changed").then_some(topic));
        assert!(relay.stop().await.success());
    }
    assert_eq!(changed, [&recorded], "only the second one has replaced another template");
    outbox.drop().await;
}

#[tokio::test]
async fn relay_that_cannot_record_its_template_publishes_all_the_same() {
    let outbox = Outbox::create("template_denied", 1).await;
    let role = outbox.roles.relay().to_owned();
    for (damage, n) in [
        format!("REVOKE INSERT ON app.outbox_setting FROM {role}"),
        format!("REVOKE ALL ON app.outbox_setting FROM {role}"),
        "CREATE FUNCTION app.refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''refused''; END';
         CREATE TRIGGER refuse BEFORE INSERT ON app.outbox_setting EXECUTE FUNCTION app.refuse()"
            .to_owned(),
        "DROP FUNCTION app.outbox_template; DROP TABLE app.outbox_setting".to_owned(),
    ]
    .iter()
    .zip(0..)
    {
        run(&outbox.client, damage).await;
        let mut relay = outbox.start_relay().await;
        let log = relay.log();
        let warning = log.lines().find(|line| line.contains("topic_template_unrecorded"));
        assert!(warning.is_some_and(|line| line.contains("WARN")), "{damage}: {log}");
        rows::insert(&outbox, "order", 10, n * 100..n * 100 + 100, Filling::Nothing).await;
        outbox.wait_until_drained(STALLED).await;
        assert!(relay.stop().await.success());
        let grants = relay_grants(&"app.outbox".parse().unwrap(), &role);
        if n < 2 {
            run(&outbox.client, &grants).await;
        }
    }
    outbox.check().await.assert_exact();
    outbox.drop().await;
}

/// While another session has locked the settings, a starting relay waits for at most the lock timeout of its statements. It
/// records the template later.
#[tokio::test]
async fn locked_settings_do_not_keep_a_relay_from_starting() {
    let outbox = Outbox::without_topics("template_locked").await;
    let locker = outbox.database.connect().await;
    run(&locker, "BEGIN; LOCK TABLE app.outbox_setting").await;
    let begun = Instant::now();
    let mut relay = outbox.start_relay().await;
    assert_within("the start of the relay", begun.elapsed(), Duration::from_secs(5));
    assert!(relay.log().contains("topic_template_unrecorded"), "{}", relay.log());

    let waiting =
        "SELECT count(*) FROM pg_locks WHERE relation = 'app.outbox_setting'::regclass AND NOT granted";
    for expected in [1, 0] {
        wait_until("the relay tries again and gives up", STALLED, async || {
            outbox.count(waiting).await == expected
        })
        .await;
    }
    run(&locker, "COMMIT").await;
    relay.wait_for_log("topic template recorded").await;
    assert_eq!(recorded(&outbox).await, Some(outbox.topic("{aggregate_type}")));
    let log = relay.log();
    let lines = log.lines().filter(|line| line.contains("topic_template_unrecorded"));
    let levels: Vec<bool> = lines.map(|line| line.contains("WARN")).collect();
    assert_eq!(levels, [true, false], "one warning and its end: {log}");
    assert!(relay.stop().await.success());
    outbox.drop().await;
}

/// The roles are those of the former version: `--print-roles` is not applied again at first.
#[tokio::test]
async fn upgrade_from_the_former_schema_records_the_template_once_the_role_may() {
    let mut outbox = Outbox::create("template_upgrade", 1).await;
    run(&outbox.client, FORMER_SCHEMA).await;
    rows::insert(&outbox, "order", 10, 0..100, Filling::Nothing).await;
    let other = outbox.relay();
    let ended = tokio::task::spawn_blocking(move || other.command(&["run", "--once"])).await.unwrap();
    ended.fails(78, &["migration 2 (setting) is not applied", "outbox-relay migrate"]);

    let table = "app.outbox".parse().unwrap();
    let applied = migrate::apply(&mut outbox.client, &table).await.unwrap();
    assert_eq!(applied.iter().map(|applied| applied.number).collect::<Vec<_>>(), [2, 3, 4, 5, 6, 7]);
    let mut relay = outbox.start_relay().await;
    assert!(relay.log().contains("topic_template_unrecorded"), "{}", relay.log());
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    assert_eq!(recorded(&outbox).await, None);

    run(&outbox.client, &relay_grants(&table, outbox.roles.relay())).await;
    let mut relay = outbox.start_relay().await;
    assert!(relay.stop().await.success());
    assert_eq!(recorded(&outbox).await, Some(outbox.topic("{aggregate_type}")));
    // The writers were not granted anything after the migration.
    run(&outbox.client, &format!("GRANT {} TO {}", outbox.roles.writer(), outbox.roles.on_call())).await;
    let writer = outbox.database.connect_as(&outbox.roles.on_call()).await;
    run(&writer, RECORDED).await;
    outbox.check().await.assert_exact();
    outbox.drop().await;
}

#[tokio::test]
async fn outboxes_of_one_database_have_separate_templates() {
    let mut outbox = Outbox::without_topics("template_second").await;
    let second = "app.second".parse().unwrap();
    migrate::apply(&mut outbox.client, &second).await.unwrap();
    run(&outbox.client, &relay_grants(&second, outbox.roles.relay())).await;
    let mut one = outbox.start_relay().await;
    let mut two =
        outbox.relay().set("outbox", "table", "app.second").set("outbox", "topic", "second").start().await;
    assert_eq!(recorded(&outbox).await, Some(outbox.topic("{aggregate_type}")));
    let row = outbox.client.query_one("SELECT app.second_template()", &[]).await.unwrap();
    assert_eq!(row.get::<_, String>(0), "second");
    for relay in [&mut one, &mut two] {
        assert!(!relay.log().contains("topic_template"), "{}", relay.log());
        assert!(relay.stop().await.success());
    }
    outbox.drop().await;
}
