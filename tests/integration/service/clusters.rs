//! The first relay records its PostgreSQL cluster and its Kafka cluster. A relay that finds others stops, and publishes nothing.

use futures_util::future::join_all;
use postgres::access::grants::relay_grants;

use crate::support::command::Ended;
use crate::support::database::run;
use crate::support::kafka_proxy::Proxy;
use crate::support::outbox::Outbox;
use crate::support::relay::Relay;
use crate::support::rows::{self, Filling};
use crate::support::wait::{STALLED, wait_until};

const CLUSTERS: &str = "SELECT system_identifier = (SELECT system_identifier FROM pg_control_system()), kafka_cluster_id, \
                        identified_at::text, identified_by FROM app.outbox_setting";
const BOTH_RECORDED: &str =
    "SELECT count(*) FROM app.outbox_setting WHERE num_nulls(system_identifier, kafka_cluster_id) = 0";
const OTHER_DATABASE: &str = "UPDATE app.outbox_setting SET system_identifier = 4711";
const OTHER_KAFKA: &str = "UPDATE app.outbox_setting SET kafka_cluster_id = 'another-cluster'";

async fn recorded(outbox: &Outbox) -> (Option<bool>, Option<String>, Option<String>, Option<String>) {
    let row = outbox.client.query_one(CLUSTERS, &[]).await.unwrap();
    (row.get(0), row.get(1), row.get(2), row.get(3))
}

async fn command(relay: Relay, args: &'static [&str]) -> Ended {
    tokio::task::spawn_blocking(move || relay.command(args)).await.unwrap()
}

/// An outbox with recorded clusters and unsent events.
async fn recorded_outbox(test: &str) -> Outbox {
    let outbox = Outbox::create(test, 1).await;
    let mut relay = outbox.start_relay().await;
    wait_until("the clusters are recorded", STALLED, async || outbox.count(BOTH_RECORDED).await == 1).await;
    assert!(relay.stop().await.success());
    rows::insert(&outbox, "order", 10, 0..100, Filling::Nothing).await;
    outbox
}

#[tokio::test]
async fn relays_that_start_together_record_the_clusters_once() {
    let outbox = Outbox::create("clusters_race", 1).await;
    rows::insert(&outbox, "order", 10, 0..100, Filling::Nothing).await;
    let relays = join_all((0..4).map(|_| outbox.relay().start())).await;
    outbox.wait_until_drained(STALLED).await;
    let first = recorded(&outbox).await;
    assert_eq!((first.0, first.3.as_deref()), (Some(true), Some(outbox.roles.relay())));
    assert!(first.1.as_ref().is_some_and(|id| !id.is_empty()), "{first:?}");
    for mut relay in relays {
        assert!(relay.stop().await.success());
        assert!(!relay.log().contains("clusters_unrecorded"), "{}", relay.log());
    }
    assert!(outbox.start_relay().await.stop().await.success());
    assert_eq!(recorded(&outbox).await, first, "nothing is recorded again");
    outbox.check().await.assert_exact();
    outbox.drop().await;
}

#[tokio::test]
async fn relay_of_another_cluster_publishes_nothing_until_it_is_confirmed() {
    let outbox = recorded_outbox("clusters_other").await;
    let right = recorded(&outbox).await.1;
    for (damage, option, says) in [
        (OTHER_DATABASE, "--database", "another PostgreSQL cluster"),
        (OTHER_KAFKA, "--kafka", "another Kafka cluster"),
    ] {
        run(&outbox.client, damage).await;
        for args in [&["run"] as &'static [&str], &["run", "--once"]] {
            let confirm = format!("outbox-relay confirm {option}");
            command(outbox.relay(), args).await.fails(78, &[says, &confirm, "Nothing is published"]);
        }
        assert_eq!(outbox.unsent().await, 100);
        let args: &'static [&str] =
            if option == "--kafka" { &["confirm", "--kafka"] } else { &["confirm", "--database"] };
        let ended = command(outbox.operator(), args).await;
        assert!(ended.succeeds().contains("confirmed, was"), "{ended}");
        assert!(command(outbox.operator(), args).await.succeeds().contains("was already recorded"));
    }
    let last = recorded(&outbox).await;
    assert_eq!((last.0, last.1), (Some(true), right));
    command(outbox.relay(), &["run", "--once"]).await.succeeds();
    outbox.wait_until_drained(STALLED).await;
    outbox.check().await.assert_exact();
    command(outbox.relay(), &["confirm"]).await.fails(2, &["--database"]);
    outbox.drop().await;
}

/// Kafka is unreachable when the relay starts, so the clusters can be compared only later.
#[tokio::test]
async fn another_kafka_cluster_that_becomes_reachable_later_gets_nothing() {
    let outbox = recorded_outbox("clusters_later").await;
    run(&outbox.client, OTHER_KAFKA).await;
    let mut proxy = Proxy::closed();
    let mut relay = outbox.relay().set("kafka", "bootstrap_servers", proxy.address()).start().await;
    relay.wait_for_log("kafka unavailable").await;
    proxy.resume().await;
    let status = relay.ended().await;
    assert_eq!(status.code(), Some(78), "{}", relay.log());
    assert!(relay.log().contains("another Kafka cluster"), "{}", relay.log());
    assert_eq!(outbox.unsent().await, 100);
    assert_eq!(outbox.check().await.records, 0);
    outbox.drop().await;
}

/// A new connection may lead to a restored server, and another relay may have been confirmed for another cluster.
#[tokio::test]
async fn running_relay_stops_when_the_clusters_differ() {
    let outbox = Outbox::create("clusters_running", 1).await;
    for damage in [OTHER_DATABASE, OTHER_KAFKA] {
        let mut relay = outbox.start_relay().await;
        wait_until("the clusters are recorded", STALLED, async || outbox.count(BOTH_RECORDED).await == 1)
            .await;
        run(&outbox.client, damage).await;
        let name = &relay.name;
        let reconnect = format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = '{name}'"
        );
        outbox.count(&reconnect).await;
        assert_eq!(relay.ended().await.code(), Some(78), "{}", relay.log());
        run(
            &outbox.client,
            "UPDATE app.outbox_setting SET system_identifier = NULL, kafka_cluster_id = NULL",
        )
        .await;
    }
    outbox.drop().await;
}

/// The address may lead to a restored copy after a reconnect. Its rows are those of the original.
#[tokio::test]
async fn relay_that_reconnects_to_another_cluster_publishes_nothing_there() {
    let outbox = Outbox::create("clusters_reconnect", 1).await;
    let mut relay = outbox.start_relay().await;
    rows::insert(&outbox, "order", 10, 0..10, Filling::Nothing).await;
    outbox.wait_until_drained(STALLED).await;
    // The events become visible together with the other cluster. The lock makes new connections wait for the commit.
    let switch = format!(
        "LOCK TABLE app.outbox_setting; {OTHER_DATABASE};
         INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload)
         SELECT 'order', g::text, 'E', '{{}}' FROM generate_series(1, 20) AS g;
         SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{}'",
        relay.name
    );
    run(&outbox.client, &switch).await;
    assert_eq!(relay.ended().await.code(), Some(78), "{}", relay.log());
    assert_eq!(outbox.unsent().await, 20, "{}", relay.log());
    outbox.drop_database().await;
}

#[tokio::test]
async fn relay_that_cannot_record_its_clusters_publishes_all_the_same() {
    let outbox = Outbox::create("clusters_denied", 1).await;
    let role = outbox.roles.relay().to_owned();
    for (damage, warns, n) in [
        (format!("REVOKE UPDATE ON app.outbox_setting FROM {role}"), true, 0),
        // The schema before the migration.
        (
            "ALTER TABLE app.outbox_setting DROP system_identifier, DROP kafka_cluster_id, DROP identified_at,
             DROP identified_by"
                .to_owned(),
            true,
            1,
        ),
    ] {
        run(&outbox.client, &damage).await;
        let mut relay = outbox.start_relay().await;
        rows::insert(&outbox, "order", 10, n * 100..n * 100 + 100, Filling::Nothing).await;
        outbox.wait_until_drained(STALLED).await;
        assert_eq!(relay.log().contains("clusters_unrecorded"), warns, "{damage}: {}", relay.log());
        assert!(relay.stop().await.success());
        if n == 0 {
            run(&outbox.client, &relay_grants(&"app.outbox".parse().unwrap(), &role)).await;
        }
    }
    outbox.check().await.assert_exact();
    outbox.drop().await;
}

#[tokio::test]
async fn nothing_is_published_before_the_clusters_were_compared() {
    let outbox = recorded_outbox("clusters_locked").await;
    run(&outbox.client, OTHER_KAFKA).await;
    let locker = outbox.database.connect().await;
    run(&locker, "BEGIN; LOCK TABLE app.outbox_setting").await;
    let mut relay = outbox.start_relay().await;
    relay.wait_for_log("cluster-unconfirmed").await;
    assert_eq!(outbox.unsent().await, 100);
    run(&locker, "COMMIT").await;
    assert_eq!(relay.ended().await.code(), Some(78), "{}", relay.log());
    assert_eq!(outbox.unsent().await, 100);
    outbox.drop().await;
}

#[tokio::test]
async fn commands_report_another_cluster() {
    let outbox = recorded_outbox("clusters_commands").await;
    command(outbox.relay(), &["run", "--once"]).await.succeeds();
    run(&outbox.client, &format!("{OTHER_DATABASE}; {OTHER_KAFKA}")).await;
    let doctor = command(outbox.relay(), &["doctor"]).await;
    doctor.fails(
        1,
        &["other-cluster", "another PostgreSQL cluster", "another Kafka cluster", "confirm --kafka"],
    );
    let verify = command(outbox.operator(), &["verify"]).await;
    verify.succeeds();
    assert!(verify.stderr.contains("warning: The outbox was recorded for another place"), "{verify}");
    command(outbox.operator(), &["replay", "--all"]).await.fails(78, &["another PostgreSQL cluster"]);
    assert_eq!(outbox.unsent().await, 0);
    command(outbox.operator(), &["confirm", "--database", "--kafka"]).await.succeeds();
    let doctor = command(outbox.relay(), &["doctor"]).await;
    assert!(!doctor.stdout.contains("other-cluster"), "{doctor}");
    outbox.drop().await;
}

#[tokio::test]
async fn schema_without_a_place_for_the_clusters_has_to_be_migrated_first() {
    let outbox = recorded_outbox("clusters_older").await;
    let older = "ALTER TABLE app.outbox_setting DROP COLUMN system_identifier, DROP COLUMN kafka_cluster_id,
                     DROP COLUMN identified_at, DROP COLUMN identified_by;
                 DELETE FROM app.outbox_migration WHERE number >= 5";
    run(&outbox.client, older).await;
    command(outbox.operator(), &["confirm", "--database"])
        .await
        .fails(78, &["migration 5 (identity)", "outbox-relay migrate", "Nothing was confirmed"]);
    outbox.drop().await;
}
