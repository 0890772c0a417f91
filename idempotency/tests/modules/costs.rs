//! Measures what a call costs in time, write-ahead log and space. It asserts nothing, so it is ignored by default:
//! `cargo test -p pg-idempotency --all-features --test modules costs -- --ignored --nocapture`

use std::time::{Duration, Instant};

use pg_idempotency::idempotency::{Begun, Fingerprint, Key, Request, Response, Scope};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::database::Database;

const CALLS: u32 = 5_000;

const WAL_POSITION: &str = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint";

/// Runs `call` `calls` times without waiting for the disk.
async fn measure(
    name: &str,
    db: &mut Database,
    calls: u32,
    mut call: impl AsyncFnMut(&Database, &mut Client, u32),
) {
    let mut client = crate::database::connect().await;
    client.batch_execute("SET synchronous_commit = off").await.unwrap();
    call(db, &mut client, u32::MAX).await; // the first call of a connection also plans the statement
    let wal_before: i64 = client.query_one(WAL_POSITION, &[]).await.unwrap().get(0);
    let server = crate::database::pid(&client).await;
    let cpu_before = cpu_micros(server);
    let begun = Instant::now();
    for n in 0..calls {
        call(db, &mut client, n).await;
    }
    let micros = begun.elapsed().as_secs_f64() * 1e6 / f64::from(calls);
    let cpu = (cpu_micros(server) - cpu_before) / f64::from(calls);
    let bytes = client.query_one(WAL_POSITION, &[]).await.unwrap().get::<_, i64>(0) - wal_before;
    let bytes = bytes / i64::from(calls);
    println!("{name:<44} {micros:>7.0} us, server CPU {cpu:>6.0} us, {bytes:>7} bytes of WAL");
}

/// The CPU time of a backend on this machine. Its resolution is 10 ms.
fn cpu_micros(pid: i32) -> f64 {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return f64::NAN };
    let after_the_name = stat.rsplit_once(')').unwrap().1;
    let ticks: f64 =
        after_the_name.split_whitespace().skip(11).take(2).map(|n| n.parse::<f64>().unwrap()).sum();
    ticks * 10_000.0
}

#[tokio::test]
#[ignore = "measures, and asserts nothing"]
async fn costs_of_calls() {
    let mut db = Database::new().await;
    measure("an empty transaction", &mut db, CALLS, async |_, client, _| {
        client.transaction().await.unwrap().commit().await.unwrap();
    })
    .await;
    for (name, fresh) in [("inbox::receive, first", true), ("inbox::receive, duplicate", false)] {
        measure(name, &mut db, CALLS, async |db, client, _| {
            let id = if fresh { Uuid::now_v7() } else { Uuid::nil() };
            let tx = client.transaction().await.unwrap();
            let _ = db.inbox.receive(&tx, "balances", id).await.unwrap();
            tx.commit().await.unwrap();
        })
        .await;
    }
    measure("inbox::receive_many, 500 first", &mut db, CALLS / 50, async |db, client, _| {
        let tx = client.transaction().await.unwrap();
        db.inbox.receive_many(&tx, "balances", (0..500).map(|_| Uuid::now_v7())).await.unwrap();
        tx.commit().await.unwrap();
    })
    .await;
    for (name, fresh) in [("once::claim, first", true), ("once::claim, taken", false)] {
        measure(name, &mut db, CALLS, async |db, client, n| {
            let key = if fresh { n.to_string() } else { "same".to_owned() };
            let tx = client.transaction().await.unwrap();
            let _ = db.once.claim(&tx, &key, Duration::from_secs(3600)).await.unwrap();
            tx.commit().await.unwrap();
        })
        .await;
    }
    let request = |n: u32| {
        let scope = Scope::new("POST", "/payments", "user 1").unwrap();
        Request::new(
            scope,
            Key::new(&format!("8e03978e-40d5-43dd-bc93-{n:012}")).unwrap(),
            Fingerprint::bytes(b"x"),
        )
    };
    measure("idempotency: begin, finish with 200 bytes", &mut db, CALLS, async |db, client, n| {
        let Begun::Started(guard) = db.idempotency.begin(&*client, &request(n)).await.unwrap() else {
            panic!("the key is new")
        };
        let tx = client.transaction().await.unwrap();
        guard.finish(&tx, &Response::new(201).body([b'x'; 200])).await.unwrap();
        tx.commit().await.unwrap();
    })
    .await;
    measure("idempotency: replay", &mut db, CALLS, async |db, client, n| {
        let begun = db.idempotency.begin(&*client, &request(n)).await.unwrap();
        assert!(matches!(begun, Begun::Replay(_)));
    })
    .await;
    db.clean_up().await;
}

#[tokio::test]
#[ignore = "measures, and asserts nothing"]
async fn costs_of_a_million_rows() {
    let db = Database::new().await;
    for (table, fill, reap) in [
        (
            "processed_message",
            "INSERT INTO {s}.processed_message
             SELECT 'balances', gen_random_uuid()::text, now() - interval '31 days' FROM generate_series(1, 1000000)",
            "SELECT {s}.inbox_reap(interval '30 days', 5000)::bigint",
        ),
        (
            "idempotency_key",
            "INSERT INTO {s}.idempotency_key (scope, key, fingerprint, locked_until, finished_at, status, headers, body)
             SELECT 'POST /payments user ' || i % 1000, gen_random_uuid()::text, sha256(i::text::bytea), now(),
                    now() - interval '2 days', 201, '{\"content-type\": \"application/json\"}', repeat('x', 200)::bytea
             FROM generate_series(1, 1000000) AS i",
            "SELECT {s}.idempotency_reap(interval '1 day', 5000)::bigint",
        ),
        (
            "once_key",
            "INSERT INTO {s}.once_key
             SELECT gen_random_uuid()::text, now() - interval '2 days', now() - interval '1 day'
             FROM generate_series(1, 1000000)",
            "SELECT {s}.once_reap(5000)::bigint",
        ),
    ] {
        db.run(fill).await;
        db.run(&format!("VACUUM ANALYZE {{s}}.{table}")).await;
        let bytes = db.number(&format!("SELECT pg_total_relation_size('{{s}}.{table}')")).await;
        let heap = db.number(&format!("SELECT pg_relation_size('{{s}}.{table}')")).await;
        let reap = db.sql(reap);
        let (begun, mut rows) = (Instant::now(), 0);
        loop {
            let reaped: i64 = db.client.query_one(&reap, &[]).await.unwrap().get(0);
            rows += reaped;
            if reaped < 5000 {
                break;
            }
        }
        let per_second = rows as f64 / begun.elapsed().as_secs_f64();
        println!(
            "{table:<18} 1,000,000 rows: {} MB, including {} MB of indexes; reaped at {per_second:.0} rows/s",
            bytes / 1_000_000,
            (bytes - heap) / 1_000_000
        );
    }
    db.clean_up().await;
}
