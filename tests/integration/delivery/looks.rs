//! The statement with which a relay looks for new events.

use std::rc::Rc;
use std::sync::Arc;

use outbox_relay::config;
use postgres::columns::PayloadType;
use postgres::connection::pool::Database;
use postgres::cycle::scout::PostgresScoutQueries;
use postgres::cycle::statements::Statements;
use relay::health::stats::Stats;
use relay::lanes::Lane;
use relay::lanes::scout::Look;
use relay::lanes::scout::ScoutQueries;

use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::rows::{self, Filling};
use crate::support::wait::{STALLED, wait_until};

const INSERT: &str =
    "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type) VALUES ('order', '1', 'x')";

/// The queries of a scout with the role of the relay.
fn queries(outbox: &Outbox, prepared: bool) -> PostgresScoutQueries {
    let settings = [
        ("POSTGRES__URL", outbox.relay_url()),
        ("POSTGRES__PREPARED_STATEMENTS", prepared.to_string()),
        ("KAFKA__BOOTSTRAP_SERVERS", "none:1".to_owned()),
        ("OUTBOX__TABLE", "app.outbox".to_owned()),
    ];
    let settings = settings.map(|(name, value)| (format!("OUTBOX_RELAY__{name}"), value));
    let config = config::load(None, settings.into_iter()).unwrap();
    let table = &config.outbox.table;
    let statements = Statements::new(
        table,
        PayloadType::Json,
        config.outbox.on_sent,
        config.outbox.topic.clone(),
        1_000_000,
    );
    let database = Database::new(&config.postgres, 1, Arc::new(Stats::new())).unwrap();
    PostgresScoutQueries::new(database, Rc::new(statements))
}

fn above(id: i64, gaps: &[i64]) -> Look {
    Look { above: Some(id), gaps: gaps.to_vec() }
}

#[tokio::test]
async fn look_finds_new_rows_and_filled_gaps_with_the_lanes_of_those_that_are_unsent() {
    let outbox = Outbox::without_topics("look").await;
    for prepared in [true, false] {
        run(&outbox.client, "TRUNCATE app.outbox RESTART IDENTITY").await;
        let mut queries = queries(&outbox, prepared);
        let empty = queries.look(&Look { above: None, gaps: Vec::new() }).await.unwrap();
        assert_eq!(empty.rows, []);
        run(&outbox.client, INSERT).await;
        let late = outbox.database.connect().await;
        run(&late, &format!("BEGIN; {INSERT}")).await;
        run(
            &outbox.client,
            &format!("{INSERT}; {INSERT}; UPDATE app.outbox SET sent_at = now() WHERE id = 3"),
        )
        .await;
        let lane: i32 = outbox.client.query_one("SELECT hashtext('1') & 63", &[]).await.unwrap().get(0);
        let lane = Lane::new(lane.into());
        let looked = queries.look(&above(0, &[])).await.unwrap();
        assert_eq!(looked.rows, [(4, lane), (3, None), (1, lane)], "the newest first");
        assert_eq!(looked.epoch, empty.epoch);
        assert_eq!(queries.look(&above(4, &[2])).await.unwrap().rows, []);
        run(&late, "COMMIT").await;
        assert_eq!(queries.look(&above(4, &[2])).await.unwrap().rows, [(2, lane)]);
        let hold = "INSERT INTO app.outbox_hold (topic, reason, error) VALUES ('x', 'unknown-topic', '')";
        run(&outbox.client, hold).await;
        assert_eq!(queries.look(&above(4, &[])).await.unwrap().rows, []);
        run(&outbox.client, INSERT).await;
        assert_eq!(queries.look(&above(4, &[])).await.unwrap().rows, [(5, lane)]);
        // Looks that share a transaction return the versions that the first of them has read.
        queries.rest().await.unwrap();
        let held = queries.look(&above(5, &[])).await.unwrap();
        assert!(held.hold_version > empty.hold_version && held.epoch == empty.epoch);
        run(&outbox.client, "DELETE FROM app.outbox_hold").await;
        queries.rest().await.unwrap();
        assert_ne!(queries.look(&above(5, &[])).await.unwrap().epoch, empty.epoch);
    }
    outbox.drop().await;
}

/// The server keeps the plan that it made when the table was empty.
#[tokio::test]
async fn look_never_reads_the_whole_table() {
    let outbox = Outbox::without_topics("look_plan").await;
    run(&outbox.client, "ALTER TABLE app.outbox SET (autovacuum_enabled = off); ANALYZE app.outbox").await;
    let mut queries = queries(&outbox, true);
    queries.look(&above(0, &[])).await.unwrap();
    let fill = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, sent_at)
                SELECT 'order', 'order-' || n, 'x', now() FROM generate_series(1, 100000) AS n";
    run(&outbox.client, fill).await;
    let scans = async |kind: &str| {
        let scans = format!("SELECT {kind} FROM pg_stat_user_tables WHERE relid = 'app.outbox'::regclass");
        outbox.count(&scans).await
    };
    let before = scans("seq_scan").await;
    let found = scans("idx_scan").await;
    for _ in 0..20 {
        assert_eq!(queries.look(&above(100_000, &[0])).await.unwrap().rows, []);
    }
    drop(queries); // the server then counts what its session has done
    wait_until("the scans are counted", STALLED, async || scans("idx_scan").await >= found + 40).await;
    assert_eq!(scans("seq_scan").await, before);
    outbox.drop().await;
}

/// A test suite that truncates all tables deletes the row of `outbox_hold_version`. Then no statement of the relay finds a row.
#[tokio::test]
async fn missing_version_of_the_holds_is_reported_by_a_running_relay() {
    let outbox = Outbox::create("no_version", 3).await;
    let relay = outbox.relay().set("admin", "listen", "127.0.0.1:0").start().await;
    rows::insert(&outbox, "order", 10, 0..100, Filling::Nothing).await;
    outbox.wait_until_drained(STALLED).await;
    run(&outbox.client, "TRUNCATE app.outbox_hold_version").await;
    rows::insert(&outbox, "order", 10, 100..200, Filling::Nothing).await;
    wait_until("the relay is not ready and names the table", STALLED, async || {
        relay.not_ready().await.is_some_and(|reason| reason.contains("outbox_hold_version"))
    })
    .await;
    run(&outbox.client, "INSERT INTO app.outbox_hold_version DEFAULT VALUES").await;
    outbox.wait_until_drained(STALLED).await;
    outbox.check().await.assert_exact();
    drop(relay);
    outbox.drop().await;
}
