//! The effect of records: postings and balances, in the transaction in which the inbox marks the events.

use std::time::Duration;

use deadpool_postgres::{Pool, Transaction};
use pg_idempotency::inbox::{self, Receipt};
use pg_idempotency::retry::{Classify, Failure, Policy, Verdict};
use pg_outbox::PostgresError;
use thiserror::Error;

use crate::consumer::GROUP;
use crate::database::{NoConnection, connection};
use crate::pay::Order;
use crate::wrong::Mistake;

/// Longer than any outage that ends without an operator. Then the process ends and is restarted.
const ATTEMPTS_WITHIN: Duration = Duration::from_secs(300);

/// Updates the balances in the order of the accounts, so that two consumers do not deadlock.
const POST: &str = "
WITH posted AS (
    INSERT INTO posting (event_id, reference, account, cents)
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[])
    RETURNING account, cents
)
INSERT INTO balance AS b (account, cents)
SELECT account, sum(cents)::bigint FROM posted GROUP BY account ORDER BY account
ON CONFLICT (account) DO UPDATE SET cents = b.cents + excluded.cents";

const COUNT: &str = "
INSERT INTO consumed AS c (consumer, records, duplicates) VALUES ($1, $2, $3)
ON CONFLICT (consumer) DO UPDATE SET records = c.records + excluded.records, duplicates = c.duplicates + excluded.duplicates";

const SET_ASIDE: &str = "INSERT INTO unreadable_record (place, reason, key, value) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING";

/// A record with its payment, or the reason why it contains none.
pub struct Record {
    pub place: String,
    pub payment: Result<Payment, String>,
    /// Kept if there is no payment in it.
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
}

/// A payment.
pub struct Payment {
    event_id: String,
    order: Order,
}

impl Payment {
    /// Parses a record's header and value.
    pub fn read(event_id: &str, value: &[u8]) -> Result<Payment, String> {
        if event_id.is_empty() || event_id.len() > inbox::BYTES_MAX || event_id.contains('\0') {
            return Err("the event id must have 1 to 255 bytes without U+0000".to_owned());
        }
        let order = Order::read(value).ok_or("not a payment in JSON")?;
        Ok(Payment { event_id: event_id.to_owned(), order })
    }
}

/// The reason why a batch had no effect, or may have had one.
#[derive(Debug, Error)]
pub enum Unapplied {
    #[error(transparent)]
    NoConnection(#[from] NoConnection),
    #[error("database error")]
    Postgres(#[from] PostgresError),
    #[error("inbox error")]
    Inbox(#[from] inbox::Error),
}

/// Converted to a type whose text contains no row.
impl From<tokio_postgres::Error> for Unapplied {
    fn from(error: tokio_postgres::Error) -> Unapplied {
        Unapplied::Postgres(error.into())
    }
}

impl Classify for Unapplied {
    fn verdict(&self) -> Verdict {
        match self {
            Unapplied::NoConnection(_) => Verdict::Again, // no statement has been sent yet
            Unapplied::Postgres(error) => error.verdict(),
            Unapplied::Inbox(error) => error.verdict(),
        }
    }
}

/// Access to the balances.
pub struct Balances {
    pub pool: Pool,
    /// The name under which this process counts its records.
    pub consumer: String,
    pub mistakes: Vec<Mistake>,
}

impl Balances {
    /// Applies each record once. If the answer to COMMIT is lost, the batch is retried. The event ids make this safe.
    pub async fn apply(&self, records: &[Record]) -> Result<(), Failure<Unapplied>> {
        if records.is_empty() {
            return Ok(());
        }
        let policy = Policy::default().attempts_max(u32::MAX).within(ATTEMPTS_WITHIN);
        policy.keyed(records).run(|records| self.try_to_apply(records)).await
    }

    async fn try_to_apply(&self, records: &[Record]) -> Result<(), Unapplied> {
        let mut client = connection(&self.pool).await?;
        let tx = client.transaction().await?;
        let payments: Vec<&Payment> =
            records.iter().filter_map(|record| record.payment.as_ref().ok()).collect();
        let first = self.first(&tx, &payments).await?;
        post(&tx, &first).await?;
        for record in records {
            if let Err(reason) = &record.payment {
                tx.execute(SET_ASIDE, &[&record.place, reason, &record.key, &record.value]).await?;
            }
        }
        let (all, duplicates) = (records.len() as i64, (payments.len() - first.len()) as i64);
        tx.execute(COUNT, &[&self.consumer, &all, &duplicates]).await?;
        tx.commit().await?;
        Ok(())
    }

    /// The payments that have not been applied yet. They are marked in the same transaction.
    async fn first<'a>(
        &self,
        tx: &Transaction<'_>,
        payments: &[&'a Payment],
    ) -> Result<Vec<&'a Payment>, Unapplied> {
        if self.mistakes.contains(&Mistake::NoInbox) {
            return Ok(payments.to_vec());
        }
        let ids = payments.iter().map(|payment| &payment.event_id);
        let receipts = inbox::receive_many(tx, GROUP, ids).await?;
        let both = payments.iter().zip(receipts);
        Ok(both.filter(|(_, receipt)| *receipt == Receipt::First).map(|(payment, _)| *payment).collect())
    }
}

async fn post(tx: &Transaction<'_>, payments: &[&Payment]) -> Result<(), tokio_postgres::Error> {
    let text =
        |of: fn(&Payment) -> &str| -> Vec<&str> { payments.iter().map(|payment| of(payment)).collect() };
    let ids = text(|payment| &payment.event_id);
    let references = text(|payment| &payment.order.reference);
    let accounts = text(|payment| &payment.order.account);
    let cents: Vec<i64> = payments.iter().map(|payment| payment.order.cents).collect();
    tx.execute(POST, &[&ids, &references, &accounts, &cents]).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_that_postgresql_cannot_store_are_set_aside() {
        let order = br#"{"reference": "a", "account": "b", "cents": 1}"#;
        let with_null = br#"{"reference": "a\u0000", "account": "b", "cents": 1}"#;
        assert!(Payment::read("1", order).is_ok());
        assert!(Payment::read("1", with_null).is_err());
        assert!(Payment::read("1\0", order).is_err());
    }
}
