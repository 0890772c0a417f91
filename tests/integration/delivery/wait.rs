//! While a relay has nothing to publish, PostgreSQL itself checks for new events (`sql/0003_wait.sql`).

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_relay::config;
use outbox_relay::kafka::properties::check;
use outbox_relay::postgres::connection::connect::Database;
use outbox_relay::postgres::cycle::scout::PostgresScoutQueries;
use outbox_relay::postgres::cycle::statements::Statements;
use outbox_relay::postgres::schema::check::PayloadType;
use outbox_relay::relay::failure::FaultKind;
use outbox_relay::relay::health::stats::Stats;
use outbox_relay::relay::lane::Lane;
use outbox_relay::relay::lanes::marks::Marks;
use outbox_relay::relay::lanes::scout::ScoutQueries;
use outbox_relay::relay::lanes::watch::{Watch, Watched};

use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::wait::{STALLED, assert_within, wait_until};

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
    let config = config::load(None, settings.into_iter(), check).unwrap();
    let table = &config.outbox.table;
    let statements =
        Statements::new(table, PayloadType::Json, config.outbox.on_sent, &config.outbox.topic, 1_000_000);
    let database = Database::new(&config.postgres, 1, Arc::new(Stats::new())).unwrap();
    PostgresScoutQueries::new(database, Rc::new(statements), table.quoted())
}

async fn basis(queries: &mut PostgresScoutQueries) -> i64 {
    let lanes: Vec<Lane> = Lane::all().collect();
    queries.scan(&lanes, &Marks::new().snapshot(&lanes)).await.unwrap().basis
}

/// A wait that is too long for these tests.
fn watch(highest: i64, gaps: &[i64], basis: i64) -> Watch {
    let (every, at_most) = (Duration::from_millis(10), Duration::from_secs(30));
    Watch { highest: Some(highest), gaps: gaps.to_vec(), basis, first: every, every, at_most }
}

#[tokio::test]
async fn wait_ends_with_a_new_row_a_filled_gap_or_an_ended_hold() {
    let outbox = Outbox::without_topics("wait").await;
    for prepared in [true, false] {
        run(&outbox.client, "TRUNCATE app.outbox RESTART IDENTITY").await;
        let mut queries = queries(&outbox, prepared);
        let basis = basis(&mut queries).await;
        let empty = Watch { highest: None, ..watch(0, &[], basis) };
        let answer = queries.watch(&empty).await.unwrap();
        assert_eq!(answer, Watched { highest: i64::MIN, is_new: true }, "it does not wait without an id");
        let short = Watch { at_most: Duration::from_millis(50), ..watch(i64::MIN, &[], basis) };
        assert_eq!(queries.watch(&short).await.unwrap(), Watched { highest: i64::MIN, is_new: false });

        let begun = Instant::now();
        let (answer, ()) = tokio::join!(
            async { queries.watch(&watch(i64::MIN, &[], basis)).await },
            run(&outbox.client, INSERT)
        );
        assert_eq!(answer.unwrap(), Watched { highest: 1, is_new: true });
        let late = outbox.database.connect().await;
        run(&late, &format!("BEGIN; {INSERT}")).await;
        run(&outbox.client, INSERT).await;
        let short = Watch { at_most: Duration::from_millis(50), ..watch(3, &[2], basis) };
        assert_eq!(queries.watch(&short).await.unwrap(), Watched { highest: 3, is_new: false });
        let (answer, ()) =
            tokio::join!(async { queries.watch(&watch(3, &[2], basis)).await }, run(&late, "COMMIT"));
        assert_eq!(answer.unwrap(), Watched { highest: 3, is_new: true });
        let hold = "INSERT INTO app.outbox_hold (topic, reason, error) VALUES ('x', 'unknown-topic', '');
                    DELETE FROM app.outbox_hold";
        let (answer, ()) =
            tokio::join!(async { queries.watch(&watch(3, &[], basis)).await }, run(&outbox.client, hold));
        assert_eq!(answer.unwrap(), Watched { highest: 3, is_new: true });
        assert_within("three waits", begun.elapsed(), Duration::from_secs(5));
    }
    outbox.drop().await;
}

/// Otherwise every change of the table, and the inserts behind it, would wait for idle relays.
#[tokio::test]
async fn waiting_relay_holds_no_lock_and_does_not_wait_long_for_one() {
    let outbox = Outbox::without_topics("wait_lock").await;
    let mut queries = queries(&outbox, true);
    let basis = basis(&mut queries).await;
    let locked = async {
        for _ in 0..20 {
            let lock = "BEGIN; SET LOCAL lock_timeout = '1s'; LOCK TABLE app.outbox IN ACCESS EXCLUSIVE MODE; COMMIT";
            run(&outbox.client, lock).await;
        }
        run(&outbox.client, INSERT).await;
    };
    let (answer, ()) = tokio::join!(async { queries.watch(&watch(i64::MIN, &[], basis)).await }, locked);
    assert!(answer.unwrap().is_new);

    run(&outbox.client, "BEGIN; LOCK TABLE app.outbox IN ACCESS EXCLUSIVE MODE").await;
    let fault = queries.watch(&watch(1, &[], basis)).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::Contended, "{fault}");
    run(&outbox.client, "COMMIT").await;
    outbox.drop().await;
}

/// The server keeps the plan that it made when the table was empty.
#[tokio::test]
async fn wait_never_reads_the_whole_table() {
    let outbox = Outbox::without_topics("wait_plan").await;
    run(&outbox.client, "ALTER TABLE app.outbox SET (autovacuum_enabled = off); ANALYZE app.outbox").await;
    let mut queries = queries(&outbox, true);
    let basis = basis(&mut queries).await;
    let again = Watch {
        first: Duration::from_millis(1),
        every: Duration::from_millis(1),
        at_most: Duration::from_millis(50),
        ..watch(0, &[], basis)
    };
    queries.watch(&again).await.unwrap();
    let fill = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, sent_at)
                SELECT 'order', 'order-' || n, 'x', now() FROM generate_series(1, 100000) AS n";
    run(&outbox.client, fill).await;
    let scans = async |kind: &str| {
        let scans = format!("SELECT {kind} FROM pg_stat_user_tables WHERE relid = 'app.outbox'::regclass");
        outbox.count(&scans).await
    };
    let before = scans("seq_scan").await;
    let found = scans("idx_scan").await;
    let answer = queries.watch(&Watch { highest: Some(100_000), gaps: vec![0], ..again }).await.unwrap();
    assert_eq!(answer, Watched { highest: 100_000, is_new: false });
    drop(queries); // the server then counts what its session has done
    wait_until("the scans are counted", STALLED, async || scans("idx_scan").await >= found + 20).await;
    assert_eq!(scans("seq_scan").await, before);
    outbox.drop().await;
}
