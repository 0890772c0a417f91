use std::time::{Duration, Instant};

use pg_idempotency::once::{BYTES_MAX, Claim, Error, TTL_MAX};
use pg_idempotency::{DatabaseError, InvalidText};
use tokio_postgres::IsolationLevel;

use crate::database::{Database, connect, pid, until_blocked};
use Claim::{First, Taken};

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn exactly_one_of_64_concurrent_claims_is_first() {
    let db = Database::new().await;
    let mut clients = Vec::new();
    for _ in 0..64 {
        clients.push(connect().await);
    }
    let claims = clients.into_iter().map(|mut client| {
        let once = db.once.clone();
        tokio::spawn(async move {
            let tx = client.transaction().await.unwrap();
            let claim = once.claim(&tx, "job", HOUR).await.unwrap();
            tx.commit().await.unwrap();
            claim
        })
    });
    let mut firsts = 0;
    for claim in claims.collect::<Vec<_>>() {
        firsts += usize::from(claim.await.unwrap() == First);
    }
    assert_eq!(firsts, 1);
    db.clean_up().await;
}

/// Eight clients keep claiming one key for 20 ms. Each successful claim records from when to when it is valid, by the
/// server's clock. The recorded times must not overlap.
#[tokio::test]
async fn two_clients_never_hold_one_key() {
    let db = Database::new().await;
    db.run("CREATE TABLE {s}.held (from_ timestamptz, until timestamptz)").await;
    let record =
        db.sql("INSERT INTO {s}.held SELECT claimed_at, expires_at FROM {s}.once_key WHERE key = 'job'");
    let begun = Instant::now();
    let claimers = (0..8).map(|_| {
        let (once, record) = (db.once.clone(), record.clone());
        tokio::spawn(async move {
            let mut client = connect().await;
            while begun.elapsed() < Duration::from_secs(3) {
                let tx = client.transaction().await.unwrap();
                if once.claim(&tx, "job", Duration::from_millis(20)).await.unwrap() == First {
                    tx.execute(&record, &[]).await.unwrap();
                }
                tx.commit().await.unwrap();
            }
        })
    });
    for claimer in claimers.collect::<Vec<_>>() {
        claimer.await.unwrap();
    }
    let times = db.number("SELECT count(*) FROM {s}.held").await;
    assert!(times > 10, "it expired only {times} times");
    let overlaps = db
        .number(
            "SELECT count(*) FROM {s}.held AS a JOIN {s}.held AS b
             ON a.ctid < b.ctid AND a.from_ < b.until AND b.from_ < a.until",
        )
        .await;
    assert_eq!(overlaps, 0, "of {times}");
    db.clean_up().await;
}

#[tokio::test]
async fn a_key_can_be_claimed_again_only_after_its_time_to_live() {
    let mut db = Database::new().await;
    for expected in [First, Taken] {
        let tx = db.client.transaction().await.unwrap();
        assert_eq!(db.once.claim(&tx, "job", HOUR).await.unwrap(), expected);
        tx.commit().await.unwrap();
    }
    // The session's time zone has no effect.
    db.run("SET timezone = 'Pacific/Auckland'").await;
    for (age, expected) in [("59 minutes 59 seconds", Taken), ("60 minutes", First), ("0", Taken)] {
        db.run(&format!(
            "UPDATE {{s}}.once_key SET claimed_at = clock_timestamp() - interval '{age}',
                                       expires_at = clock_timestamp() - interval '{age}' + interval '1 hour'"
        ))
        .await;
        let tx = db.client.transaction().await.unwrap();
        assert_eq!(db.once.claim(&tx, "job", HOUR).await.unwrap(), expected, "{age}");
        tx.commit().await.unwrap();
    }
    db.clean_up().await;
}

#[tokio::test]
async fn a_waiting_claim_gets_the_key_after_a_rollback() {
    for commits in [false, true] {
        let mut db = Database::new().await;
        let first = db.client.transaction().await.unwrap();
        assert_eq!(db.once.claim(&first, "job", HOUR).await.unwrap(), First);
        let (mut other, once) = (connect().await, db.once.clone());
        let waiting = pid(&other).await;
        let second = tokio::spawn(async move {
            let tx = other.transaction().await.unwrap();
            let claim = once.claim(&tx, "job", HOUR).await.unwrap();
            tx.commit().await.unwrap();
            claim
        });
        until_blocked(waiting).await;
        if commits {
            first.commit().await.unwrap();
        } else {
            first.rollback().await.unwrap();
        }
        assert_eq!(second.await.unwrap(), if commits { Taken } else { First });
        db.clean_up().await;
    }
}

#[tokio::test]
async fn a_claim_of_a_taken_key_locks_nothing() {
    let mut db = Database::new().await;
    let tx = db.client.transaction().await.unwrap();
    assert_eq!(db.once.claim(&tx, "job", HOUR).await.unwrap(), First);
    tx.commit().await.unwrap();
    let open = db.client.transaction().await.unwrap();
    assert_eq!(db.once.claim(&open, "job", HOUR).await.unwrap(), Taken);
    let mut other = connect().await;
    other.batch_execute("SET lock_timeout = '5s'").await.unwrap();
    let tx = other.transaction().await.unwrap();
    assert_eq!(db.once.claim(&tx, "job", HOUR).await.unwrap(), Taken);
    tx.commit().await.unwrap();
    open.commit().await.unwrap();
    db.clean_up().await;
}

#[tokio::test]
async fn in_stricter_isolation_levels_a_claim_after_the_snapshot_is_an_error() {
    for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        for expired in [false, true] {
            let mut db = Database::new().await;
            if expired {
                db.run(
                    "INSERT INTO {s}.once_key VALUES ('job', now() - interval '2 s', now() - interval '1 s')",
                )
                .await;
            }
            let mut other = connect().await;
            let early = other.build_transaction().isolation_level(level).start().await.unwrap();
            early.query_one("SELECT 1", &[]).await.unwrap(); // takes the snapshot
            let tx = db.client.transaction().await.unwrap();
            assert_eq!(db.once.claim(&tx, "job", HOUR).await.unwrap(), First);
            tx.commit().await.unwrap();
            let error = db.once.claim(&early, "job", HOUR).await.unwrap_err();
            let Error::Database(error) = error else { panic!("{error:?}") };
            assert_eq!(error.postgres().sqlstate(), Some("40001"), "{level:?}, expired {expired}");
            drop(early);
            db.clean_up().await;
        }
    }
}

#[tokio::test]
async fn invalid_claims_are_rejected_and_the_transaction_stays_usable() {
    let mut db = Database::new().await;
    let tx = db.client.transaction().await.unwrap();
    let refused = db.once.claim(&tx, "", HOUR).await;
    assert!(matches!(refused, Err(Error::Invalid(InvalidText::Empty { .. }))));
    let refused = db.once.claim(&tx, &"x".repeat(BYTES_MAX + 1), HOUR).await;
    assert!(matches!(refused, Err(Error::Invalid(InvalidText::TooLong { .. }))));
    for ttl in [Duration::ZERO, Duration::from_nanos(999), TTL_MAX + Duration::from_secs(1)] {
        assert!(matches!(db.once.claim(&tx, "job", ttl).await, Err(Error::Ttl { .. })), "{ttl:?}");
    }
    assert_eq!(db.once.claim(&tx, "jöb", TTL_MAX).await.unwrap(), First);
    assert_eq!(db.once.claim(&tx, &"x".repeat(BYTES_MAX), Duration::from_micros(1)).await.unwrap(), First);
    tx.commit().await.unwrap();
    db.run("DROP FUNCTION {s}.once_claim").await;
    let tx = db.client.transaction().await.unwrap();
    let error = db.once.claim(&tx, "job", HOUR).await.unwrap_err();
    assert!(matches!(error, Error::Database(DatabaseError::NotInstalled { .. })), "{error:?}");
    drop(tx);
    db.clean_up().await;
}

#[tokio::test]
async fn the_reaper_deletes_only_expired_claims() {
    let db = Database::new().await;
    db.run(
        "INSERT INTO {s}.once_key
         SELECT i::text, now() - interval '1 day', now() + (i - 20) * interval '1 minute' FROM generate_series(1, 30) AS i",
    )
    .await;
    for expected in [15, 5, 0] {
        assert_eq!(db.number("SELECT {s}.once_reap(15)::bigint").await, expected);
    }
    assert_eq!(db.number("SELECT count(*) FROM {s}.once_key").await, 10);
    db.clean_up().await;
}
