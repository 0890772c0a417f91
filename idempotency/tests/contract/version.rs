use pg_idempotency::version::{Conflict, Version};

use crate::drivers::{Connection, Tx};
use crate::modules::{Database, url};

pub async fn an_update_from_an_old_version_is_a_conflict<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    db.run("CREATE TABLE {s}.account (id bigint, cents bigint, version bigint); INSERT INTO {s}.account VALUES (1, 100, 1)")
        .await;
    let update =
        db.sql("UPDATE {s}.account SET cents = 90, version = version + 1 WHERE id = 1 AND version = 1");
    let read = Version::new(1);
    for expected in [Ok(Version::new(2)), Err(Conflict { expected: read })] {
        let mut tx = connection.begin().await;
        let rows = tx.run(&update).await.unwrap();
        assert_eq!(read.updated(rows), expected);
        tx.commit().await;
    }
    db.clean_up().await;
}
