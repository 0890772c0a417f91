use std::time::Duration;

use pg_idempotency::once::{Claim, Error};

use crate::drivers::{Connection, Tx};
use crate::modules::{Database, url};
use Claim::{First, Taken};

const HOUR: Duration = Duration::from_secs(3600);

pub async fn a_key_is_claimed_once_and_a_rollback_releases_it<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    for (commits, expected) in [(false, First), (true, First), (true, Taken)] {
        let mut tx = connection.begin().await;
        let refused = db.once.claim(tx.tx(), "jöb", Duration::ZERO).await;
        assert!(matches!(refused, Err(Error::Ttl { .. })));
        assert_eq!(db.once.claim(tx.tx(), "jöb", HOUR).await.unwrap(), expected);
        if commits { tx.commit().await } else { tx.rollback().await }
    }
    db.clean_up().await;
}

pub async fn an_expired_key_can_be_claimed_again<C: Connection>() {
    let (db, mut connection) = (Database::new().await, C::connect(&url()).await);
    for (age, expected) in [("0", First), ("59 minutes 59 seconds", Taken), ("60 minutes", First)] {
        db.run(&format!(
            "UPDATE {{s}}.once_key SET claimed_at = clock_timestamp() - interval '{age}',
                                       expires_at = clock_timestamp() - interval '{age}' + interval '1 hour'"
        ))
        .await;
        let mut tx = connection.begin().await;
        assert_eq!(db.once.claim(tx.tx(), "job", HOUR).await.unwrap(), expected, "{age}");
        tx.commit().await;
    }
    db.clean_up().await;
}
