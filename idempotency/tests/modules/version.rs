use pg_idempotency::version::{Applied, Conflict, Version};

use crate::database::{Database, connect, pid, until_blocked};

#[tokio::test]
async fn the_second_of_two_updates_from_one_version_is_a_conflict() {
    let mut db = Database::new().await;
    db.run("CREATE TABLE {s}.account (id bigint, cents bigint, version bigint); INSERT INTO {s}.account VALUES (1, 100, 1)")
        .await;
    let update =
        db.sql("UPDATE {s}.account SET cents = $2, version = version + 1 WHERE id = 1 AND version = $1");
    let read = Version::new(1);
    let first = db.client.transaction().await.unwrap();
    let rows = first.execute(&update, &[&read.number(), &90_i64]).await.unwrap();
    assert_eq!(read.updated(rows), Ok(Version::new(2)));

    let (mut other, sql) = (connect().await, update.clone());
    let waiting = pid(&other).await;
    let second = tokio::spawn(async move {
        let tx = other.transaction().await.unwrap();
        let rows = tx.execute(&sql, &[&read.number(), &80_i64]).await.unwrap();
        tx.commit().await.unwrap();
        read.updated(rows)
    });
    until_blocked(waiting).await;
    first.commit().await.unwrap();
    assert_eq!(second.await.unwrap(), Err(Conflict { expected: read }));
    assert_eq!(db.number("SELECT cents FROM {s}.account").await, 90);
    db.clean_up().await;
}

#[tokio::test]
async fn a_consumer_that_compares_versions_keeps_the_latest_despite_repeats_and_reordering() {
    let db = Database::new().await;
    db.run("CREATE TABLE {s}.copy (id bigint PRIMARY KEY, version bigint, name text)").await;
    let apply = db.sql(
        "INSERT INTO {s}.copy AS c (id, version, name) VALUES (1, $1, $2) ON CONFLICT (id)
         DO UPDATE SET version = EXCLUDED.version, name = EXCLUDED.name WHERE c.version < EXCLUDED.version",
    );
    use Applied::{Newer, Older};
    for (version, expected) in
        [(1_i32, Newer), (3, Newer), (2, Older), (3, Older), (1, Older), (4, Newer), (3, Older)]
    {
        let rows = db.client.execute(&apply, &[&i64::from(version), &format!("name {version}")]).await;
        assert_eq!(Applied::of(rows.unwrap()), expected, "{version}");
    }
    assert_eq!(db.number("SELECT count(*) FROM {s}.copy WHERE version = 4 AND name = 'name 4'").await, 1);
    db.clean_up().await;
}

/// The row of a deleted aggregate remains, with the version of the deletion.
#[tokio::test]
async fn an_event_that_is_older_than_a_deletion_does_not_restore_the_row() {
    let db = Database::new().await;
    db.run("CREATE TABLE {s}.copy (id bigint PRIMARY KEY, version bigint, name text)").await;
    let change = db.sql(
        "INSERT INTO {s}.copy AS c (id, version, name) VALUES (1, $1, 'a') ON CONFLICT (id)
         DO UPDATE SET version = EXCLUDED.version, name = EXCLUDED.name WHERE c.version < EXCLUDED.version",
    );
    let delete = db.sql(
        "INSERT INTO {s}.copy AS c (id, version, name) VALUES (1, $1, NULL) ON CONFLICT (id)
         DO UPDATE SET version = EXCLUDED.version, name = NULL WHERE c.version < EXCLUDED.version",
    );
    use Applied::{Newer, Older};
    for (apply, version, expected) in [(&change, 2_i64, Newer), (&delete, 3, Newer), (&change, 2, Older)] {
        let rows = db.client.execute(apply, &[&version]).await.unwrap();
        assert_eq!(Applied::of(rows), expected, "{version}");
    }
    assert_eq!(db.number("SELECT count(*) FROM {s}.copy WHERE version = 3 AND name IS NULL").await, 1);
    db.clean_up().await;
}
