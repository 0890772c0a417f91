//! The reaper on a real server: which rows it deletes, in which order, and which locked rows it skips.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use outbox_relay::config::{self, Config};
use postgres::columns::PayloadType;
use postgres::connection::exec::reaper_settings;
use postgres::connection::pool::Database;
use postgres::cycle::reap::PostgresReaper;
use postgres::cycle::scout::PostgresScoutQueries;
use postgres::cycle::statements::Statements;
use postgres::cycle::statements::reap_sql;
use relay::failure::FaultKind;
use relay::health::stats::Stats;
use relay::lanes::Lane;
use relay::lanes::marks::Marks;
use relay::lanes::scout::ScoutQueries;
use relay::reaper::{Pace, Reap};
use tokio_postgres::SimpleQueryMessage;

use crate::support::database::{run, time_out_above};
use crate::support::outbox::Outbox;

const UNSENT: &str = "SELECT count(*) FROM app.outbox WHERE sent_at IS NULL";
const ALL: &str = "SELECT count(*) FROM app.outbox";
const OLD: &str = "SELECT count(*) FROM app.outbox WHERE sent_at < now() - interval '1 hour'";

fn config(outbox: &Outbox) -> Config {
    let settings = [
        ("POSTGRES__URL", outbox.relay_url()),
        ("KAFKA__BOOTSTRAP_SERVERS", "none:1".to_owned()),
        ("OUTBOX__TABLE", "app.outbox".to_owned()),
    ];
    let settings = settings.map(|(name, value)| (format!("OUTBOX_RELAY__{name}"), value));
    config::load(None, settings.into_iter()).unwrap()
}

fn scout_queries(outbox: &Outbox) -> PostgresScoutQueries {
    let Config { outbox: settings, postgres, .. } = config(outbox);
    let statements = Statements::new(
        &settings.table,
        PayloadType::Json,
        settings.on_sent,
        settings.topic.clone(),
        1_000_000,
    );
    let database = Database::new(&postgres, 1, Arc::new(Stats::new())).unwrap();
    PostgresScoutQueries::new(database, Rc::new(statements))
}

/// The rows of a held topic precede another row of their lane.
#[tokio::test]
async fn scan_reads_no_more_hidden_rows_than_it_may() {
    const ROWS: &str = "
        INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload)
        SELECT CASE WHEN n = 1001 THEN 'order' ELSE 'held' END, 'key', 'Changed', '{}' FROM generate_series(1, 1001) AS n";
    let outbox = Outbox::without_topics("hidden_rows").await;
    run(&outbox.client, ROWS).await;
    run(
        &outbox.client,
        "INSERT INTO app.outbox_hold (topic, reason, error) VALUES ('events.held', 'test', '')",
    )
    .await;
    let ids = "SELECT min(id), max(id) - 1, max(id) FROM app.outbox";
    let ids = outbox.client.query_one(ids, &[]).await.unwrap();
    let (first, last_held, other): (i64, i64, i64) = (ids.get(0), ids.get(1), ids.get(2));
    let mut queries = scout_queries(&outbox);
    let lanes: Vec<Lane> = Lane::all().collect();
    let mut scan = async |lanes: &[Lane], rows_max| {
        let scan = queries.scan(lanes, &Marks::new().snapshot(lanes), rows_max).await.unwrap();
        let ids = |rows: Vec<(Lane, i64)>| rows.into_iter().map(|(_, id)| id).collect::<Vec<_>>();
        (ids(scan.first_unsent), ids(scan.hidden_to))
    };
    assert_eq!(scan(&lanes, 100).await, (vec![], vec![first + 99]));
    assert_eq!(scan(&lanes, 1_000).await, (vec![], vec![last_held]));
    assert_eq!(scan(&lanes, 1_001).await, (vec![other], vec![]));
    assert_eq!(scan(&lanes, 10_000).await, (vec![other], vec![]));
    run(&outbox.client, "DELETE FROM app.outbox_hold").await;
    assert_eq!(scan(&lanes, 100).await, (vec![first], vec![]));
    outbox.drop().await;
}

fn reaper(outbox: &Outbox) -> PostgresReaper {
    let config = config(outbox);
    let database = Database::new(&config.postgres, 2, Arc::new(Stats::new())).unwrap();
    PostgresReaper::new(database, config.outbox.table, pace())
}

/// One page per statement.
fn pace() -> Pace {
    Pace {
        interval: Duration::from_secs(60),
        retention: Duration::from_secs(3_600),
        inbox_retention: Duration::ZERO,
        idempotency_retention: Duration::ZERO,
        batch_rows: 100,
    }
}

/// One round. Returns the number of deleted rows, and the maximum in one statement.
async fn round(reaper: &mut PostgresReaper) -> (u64, u64) {
    let (mut rows, mut most) = (0, 0);
    loop {
        let reaped = reaper.reap_once(pace()).await.unwrap();
        rows += reaped.rows;
        most = most.max(reaped.rows);
        if !reaped.more {
            return (rows, most);
        }
    }
}

async fn insert(outbox: &Outbox, rows: i64, sent_at: &str) {
    let insert = format!(
        "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, sent_at)
         SELECT 'order', n::text, 'Changed', {sent_at} FROM generate_series(1, {rows}) AS n"
    );
    run(&outbox.client, &insert).await;
}

#[tokio::test]
async fn recent_rows_and_a_future_time_before_old_rows_stop_nothing() {
    let outbox = Outbox::without_topics("reaper_young").await;
    insert(&outbox, 1, "now() + interval '10 years'").await;
    insert(&outbox, 5_000, "now() - interval '1 minute'").await;
    insert(&outbox, 3_000, "NULL").await;
    insert(&outbox, 20_000, "now() - interval '2 hours'").await;
    let mut reaper = reaper(&outbox);
    let (rows, most) = round(&mut reaper).await;
    assert_eq!(rows, 20_000);
    assert!(most <= 100, "{most} rows in one transaction");
    assert_eq!(outbox.count(ALL).await, 8_001);

    // Earlier rows become old, such as those of a replay.
    run(
        &outbox.client,
        "UPDATE app.outbox SET sent_at = now() - interval '2 hours' WHERE id BETWEEN 100 AND 199",
    )
    .await;
    assert_eq!(round(&mut reaper).await.0, 100);
    assert_eq!(round(&mut reaper).await.0, 0);
    assert_eq!(outbox.count(UNSENT).await, 3_000);
    outbox.drop().await;
}

/// Rows with large payloads, whose deletion takes longer than a statement may.
#[tokio::test]
async fn a_range_whose_deletion_takes_too_long_is_deleted_in_parts() {
    let outbox = Outbox::without_topics("reaper_slow").await;
    insert(&outbox, 5_000, "now() - interval '2 hours'").await;
    time_out_above(&outbox.client, 1_000, "DELETE", "app.outbox").await;
    let pace = Pace { batch_rows: 25_000, ..pace() };
    let mut reaper = reaper(&outbox);
    let mut rows = 0;
    loop {
        let reaped = reaper.reap_once(pace).await.unwrap();
        rows += reaped.rows;
        if !reaped.more {
            break;
        }
    }
    assert_eq!((rows, outbox.count(ALL).await), (5_000, 0));

    insert(&outbox, 3_000, "now() - interval '2 hours'").await;
    let reap = outbox.operator().set("reaper", "batch_size", 25_000).set("reaper", "retention", "1h");
    reap.command(&["reap"]).succeeds();
    assert_eq!(outbox.count(ALL).await, 0);
    outbox.drop().await;
}

/// For example rows to which a table of the application refers, or a damaged page.
#[tokio::test]
async fn a_range_that_cannot_be_deleted_delays_no_other() {
    let outbox = Outbox::without_topics("reaper_referenced").await;
    insert(&outbox, 5_000, "now() - interval '2 hours'").await;
    run(
        &outbox.client,
        "CREATE TABLE app.note (id bigint REFERENCES app.outbox); INSERT INTO app.note SELECT min(id) FROM app.outbox",
    )
    .await;
    let (mut reaper, mut faults) = (reaper(&outbox), 0);
    for _ in 0..200 {
        if let Err(fault) = reaper.reap_once(pace()).await {
            assert!(fault.kind == FaultKind::Refused && fault.message.contains("note_id_fkey"), "{fault:?}");
            faults += 1;
        }
    }
    let left = outbox.count(ALL).await;
    assert!((1..=100).contains(&left) && faults > 0, "{left} left, {faults} faults");
    outbox.drop().await;
}

#[tokio::test]
async fn rows_locked_or_put_back_meanwhile_are_kept() {
    let outbox = Outbox::without_topics("reaper_locked").await;
    insert(&outbox, 1_000, "now() - interval '2 hours'").await;
    let operator = outbox.database.connect().await;
    run(&operator, "BEGIN; UPDATE app.outbox SET sent_at = NULL WHERE id BETWEEN 101 AND 110").await;
    let mut reaper = reaper(&outbox);
    assert_eq!(round(&mut reaper).await.0, 990);
    run(&operator, "COMMIT").await;
    assert_eq!(round(&mut reaper).await.0, 0);
    assert_eq!((outbox.count(UNSENT).await, outbox.count(ALL).await), (10, 10));
    outbox.drop().await;
}

#[tokio::test]
async fn round_restarts_if_the_table_is_rewritten_or_truncated_started_over() {
    let outbox = Outbox::without_topics("reaper_rewritten").await;
    insert(&outbox, 5_000, "CASE n % 2 WHEN 0 THEN NULL ELSE now() - interval '2 hours' END").await;
    let mut reaper = reaper(&outbox);
    for _ in 0..20 {
        reaper.reap_once(pace()).await.unwrap();
    }
    assert!((1..2_500).contains(&outbox.count(OLD).await), "the round is not finished");
    run(&outbox.client, "VACUUM FULL app.outbox").await;
    round(&mut reaper).await;
    assert_eq!((outbox.count(OLD).await, outbox.count(UNSENT).await), (0, 2_500));

    run(&outbox.client, "TRUNCATE app.outbox").await;
    insert(&outbox, 500, "now() - interval '2 hours'").await;
    assert_eq!(round(&mut reaper).await.0, 500);
    outbox.drop().await;
}

#[tokio::test]
async fn only_one_of_two_reapers_deletes_at_a_time() {
    let outbox = Outbox::without_topics("reaper_turns").await;
    insert(&outbox, 500, "now() - interval '2 hours'").await;
    let other = outbox.database.connect().await;
    // Every role can take an advisory lock, which was the reaper's lock once.
    run(&other, "SELECT pg_advisory_lock(hashtextextended('\"app\".\"outbox\" reaper', 0))").await;
    run(&other, "BEGIN; SELECT FROM app.outbox_reaper FOR UPDATE").await;
    let mut reaper = reaper(&outbox);
    assert_eq!(round(&mut reaper).await.0, 0);
    run(&other, "ROLLBACK").await;
    assert_eq!(round(&mut reaper).await.0, 500);
    outbox.drop().await;
}

/// A `transaction_timeout` would end the connection, which would look like an outage. The relay's own limit reports the
/// real cause. All transactions of one statement begin in the same way, those of the reaper and of the scout.
#[tokio::test]
async fn transaction_timeout_of_the_database_does_not_end_the_relays_statements() {
    let outbox = Outbox::without_topics("short_timeout").await;
    let version = "SELECT current_setting('server_version_num')::bigint";
    if outbox.count(version).await >= 170_000 {
        let set = format!("ALTER DATABASE \"{}\" SET transaction_timeout = '700ms'", outbox.database.name());
        run(&outbox.client, &set).await;
    }
    let mut queries = scout_queries(&outbox);
    let lanes: Vec<Lane> = Lane::all().collect();
    queries.scan(&lanes, &Marks::new().snapshot(&lanes), 100).await.unwrap();
    // Longer than the timeout, and longer than the relay waits for a lock.
    run(&outbox.client, "BEGIN; LOCK TABLE app.outbox IN ACCESS EXCLUSIVE MODE").await;
    let fault = queries.scan(&lanes, &Marks::new().snapshot(&lanes), 100).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::Contended, "{fault}");
    run(&outbox.client, "COMMIT").await;
    run(&outbox.client, &format!("ALTER DATABASE \"{}\" RESET ALL", outbox.database.name())).await;
    outbox.drop().await;
}

#[tokio::test]
async fn old_rows_are_found_by_page_whatever_the_statistics() {
    let outbox = Outbox::without_topics("reaper_plan").await;
    for analyse in ["SELECT 1", "ANALYZE app.outbox"] {
        insert(&outbox, 20_000, "now() - interval '2 hours'").await;
        run(&outbox.client, analyse).await;
        let sql = reap_sql(&"app.outbox".parse().unwrap());
        run(&outbox.client, &format!("BEGIN; {}", reaper_settings())).await;
        run(&outbox.client, &format!("PREPARE reap (text, text, float8, text) AS {sql}")).await;
        let explain = r#"EXPLAIN EXECUTE reap ('(0,0)', '(50,0)', 3600, '"app"."outbox"')"#;
        let explained = outbox.client.simple_query(explain).await.unwrap();
        run(&outbox.client, "DEALLOCATE reap; ROLLBACK").await;
        let line = |message: &SimpleQueryMessage| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        };
        let plan = explained.iter().filter_map(line).collect::<Vec<_>>().join("\n");
        assert!(
            plan.contains("Tid Range Scan on outbox") && !plan.contains("Seq Scan on outbox  ("),
            "{plan}"
        );
    }
    outbox.drop().await;
}
