//! PgBouncer in transaction mode between the relays and PostgreSQL. Everything that the server does for a claim works
//! through it.

use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::pgbouncer::{self, PgBouncer};
use crate::support::postgres_server::PostgresServer;
use crate::support::rows::{self, Filling};
use crate::support::wait::STALLED;
use crate::world::{self, BATCH_SIZE, WORKERS, assert_replaced};

const KILLS: usize = 3;

async fn through_a_pooler(prepared: bool) {
    let test = if prepared { "pooler_prepared" } else { "pooler_unprepared" };
    let server = PostgresServer::start(&[]).await;
    let outbox = Outbox::create_on(&server, test, 6).await;
    let writers = world::under_load(&outbox).await;
    let pooler = PgBouncer::start(&server, outbox.roles.relay()).await;
    let url = outbox.relay_url().replace(&server.address(), &pooler.address());
    let relay = || {
        let relay = world::relay(&outbox).set("postgres", "url", url.clone());
        relay.set("postgres", "sslmode", "disable").set("postgres", "prepared_statements", prepared)
    };
    let mut relays = [relay().start().await, relay().start().await];
    for kill in 0..KILLS {
        let victim = kill % 2;
        outbox.wait_until_publishing(&relays[victim]).await;
        relays[victim].kill();
        assert_replaced(&outbox, &relays[victim], &format!("prepared {prepared}, kill {kill}")).await;
        relays[victim] = relay().start().await;
    }
    // The timeouts of the claim are set in its transaction, so they also apply to the pooler's connection.
    outbox.wait_until_publishing(&relays[0]).await;
    relays[0].freeze();
    assert_replaced(&outbox, &relays[0], &format!("prepared {prepared}, frozen")).await;
    relays[0].thaw();
    outbox.wait_until_settled(500, STALLED).await;
    writers.stop().await;
    for relay in &relays {
        assert!(!relay.log().contains("prepared statement"), "{}", relay.log());
    }
    let report =
        world::verdict(&outbox, &mut relays, &format!("through PgBouncer, prepared {prepared}")).await;
    assert!(report.duplicates <= (KILLS + 1) * WORKERS * BATCH_SIZE, "{report}");
    outbox.drop().await;
}

/// PgBouncer keeps the statements of its server connections by their text, so a relay that reconnects would get the stale plan
/// again.
async fn changed_columns() {
    let server = PostgresServer::start(&[]).await;
    let outbox = Outbox::create_on(&server, "pooler_altered", 1).await;
    let pooler = PgBouncer::start(&server, outbox.roles.relay()).await;
    let url = outbox.relay_url().replace(&server.address(), &pooler.address());
    let relay = || {
        let relay = outbox.relay().set("postgres", "url", url.clone()).set("postgres", "sslmode", "disable");
        relay.set("postgres", "prepared_statements", true)
    };
    let mut running = relay().start().await;
    let mut publishes = async |restarts: bool| {
        if restarts {
            assert!(running.stop().await.success());
            running = relay().start().await;
        }
        rows::insert(&outbox, "order", 50, 0..500, Filling::Nothing).await;
        outbox.wait_until_drained(STALLED).await;
    };
    publishes(false).await;
    for alter in ["event_type TYPE varchar(200)", "payload TYPE jsonb", "event_type TYPE varchar(300)"] {
        run(&outbox.client, &format!("ALTER TABLE app.outbox ALTER {alter}")).await;
        publishes(false).await;
        // A new process prepares the text for which the pooler may have a stale plan.
        publishes(true).await;
    }
    assert_eq!(outbox.dead_letters().await, 0);
    outbox.drop().await;
}

#[tokio::test]
async fn relays_behind_pgbouncer_publish_after_the_type_of_a_column_has_changed() {
    match pgbouncer::installed() {
        Some((_, version)) if pgbouncer::prepares(version) => changed_columns().await,
        installed => {
            println!("SKIPPED: {installed:?} does not support prepared statements, 1.21 and newer do");
        }
    }
}

#[tokio::test]
async fn relays_behind_pgbouncer_without_prepared_statements_take_over_from_each_other() {
    match pgbouncer::installed() {
        Some(_) => through_a_pooler(false).await,
        None => println!("SKIPPED: PgBouncer is not installed"),
    }
}

#[tokio::test]
async fn relays_behind_pgbouncer_with_prepared_statements_take_over_from_each_other() {
    match pgbouncer::installed() {
        Some((_, version)) if pgbouncer::prepares(version) => through_a_pooler(true).await,
        Some(version) => {
            println!("SKIPPED: {version:?} does not support prepared statements, 1.21 and newer do");
        }
        None => println!("SKIPPED: PgBouncer is not installed"),
    }
}
