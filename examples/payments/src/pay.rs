//! A payment in phases that are committed separately: started, charged, done. A retry of the request or the completer
//! continues after the last committed phase.

use std::time::Duration;

use deadpool_postgres::{Object, Pool};
use pg_idempotency::idempotency::{self, Guard, PhaseError, Response};
use pg_idempotency::retry::Failure;
use pg_outbox::{Event, Outbox, PostgresError};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio_postgres::Transaction;

use crate::charging::{NoAnswer, Provider};
use crate::database::{NoConnection, connection};
use crate::provider::{Charge, ChargeRequest};
use crate::wrong::Mistake;

/// The body of a request.
#[derive(Deserialize, Serialize)]
pub struct Order {
    pub reference: String,
    pub account: String,
    pub cents: i64,
}

impl Order {
    /// `None` if it is not a payment that can be made. PostgreSQL cannot store the character U+0000.
    pub fn read(json: &[u8]) -> Option<Order> {
        let order: Order = serde_json::from_slice(json).ok()?;
        let is_storable = !order.reference.contains('\0') && !order.account.contains('\0');
        (is_storable && order.cents > 0).then_some(order)
    }
}

/// The reason why a payment has no answer yet. Nothing final is stored, and the payment must be continued.
#[derive(Debug, Error)]
pub enum Unfinished {
    #[error(transparent)]
    NoConnection(#[from] NoConnection),
    #[error("database error")]
    Postgres(#[from] PostgresError),
    #[error("a phase of the payment failed")]
    Phase(#[from] PhaseError<PostgresError>),
    #[error("cannot use the idempotency key")]
    Idempotency(#[from] idempotency::Error),
    #[error("cannot enqueue the event")]
    Outbox(#[from] pg_outbox::Error),
    #[error("cannot encode the event or the response")]
    Json(#[from] serde_json::Error),
    #[error("the call to the provider failed")]
    Provider(#[from] Failure<NoAnswer>),
}

/// Converted to a type whose text contains no row.
impl From<tokio_postgres::Error> for Unfinished {
    fn from(error: tokio_postgres::Error) -> Unfinished {
        Unfinished::Postgres(error.into())
    }
}

/// Everything that is needed to make payments.
#[derive(Clone)]
pub struct Shop {
    pub pool: Pool,
    pub provider: Provider,
    pub mistakes: Vec<Mistake>,
}

impl Shop {
    /// Makes the payment, or continues it. `by` is recorded in the payment.
    pub async fn pay(&self, guard: &mut Guard, body: &[u8], by: &str) -> Result<Response, Unfinished> {
        let Some(order) = Order::read(body) else { return self.refuse(guard).await };
        // Committed before the provider is called, because it records that there may be a charge.
        let mut client = connection(&self.pool).await?;
        let payment: i64 = guard.phase(&mut client, "started", async |tx| start(tx, &order).await).await?;
        drop(client); // no connection is held during the call to the provider
        let charge = self.charge(guard, &order, payment).await?;
        self.finish(guard, &order, payment, &charge, by).await
    }

    /// A client's mistake is an answer too, and always the same one.
    async fn refuse(&self, guard: &Guard) -> Result<Response, Unfinished> {
        let response = Response::new(400)
            .header("content-type", "text/plain")
            .body("a payment has a reference, an account and cents above 0");
        let mut client = connection(&self.pool).await?;
        let tx = client.transaction().await?;
        guard.finish(&tx, &response).await?;
        tx.commit().await?;
        Ok(response)
    }

    /// Calls the provider if the payment is not charged yet, with a key that is the same in each attempt for this
    /// payment. The provider must keep it for longer than the completer tries. Otherwise, look up the charge by its reference first.
    async fn charge(&self, guard: &mut Guard, order: &Order, payment: i64) -> Result<Charge, Unfinished> {
        if let Some(charge) = guard.kept("charged")? {
            return Ok(charge);
        }
        let mut key = guard.foreign_key(&format!("charge {payment}"));
        if self.mistakes.contains(&Mistake::NewKeyForProvider) {
            key = format!("{:032x}", fastrand::u128(..));
        }
        let asked = ChargeRequest { reference: order.reference.clone(), cents: order.cents };
        let charge = self.provider.charge(&key, &asked).await?;
        let mut client = connection(&self.pool).await?;
        let kept = guard.phase(&mut client, "charged", async |tx| {
            let sql = "UPDATE payment SET status = 'charged', charge = $2 WHERE id = $1";
            tx.execute(sql, &[&payment, &charge.id]).await?;
            Ok(charge)
        });
        Ok(kept.await?)
    }

    /// The ledger, the event and the response, all in one transaction.
    async fn finish(
        &self,
        guard: &Guard,
        order: &Order,
        payment: i64,
        charge: &Charge,
        by: &str,
    ) -> Result<Response, Unfinished> {
        let mut client = connection(&self.pool).await?;
        let tx = client.transaction().await?;
        // First, so that the writers of this payment's events take turns.
        let status = if charge.approved { "done" } else { "declined" };
        let sql = "UPDATE payment SET status = $2, done_by = $3 WHERE id = $1";
        tx.execute(sql, &[&payment, &status, &by]).await?;
        let response = if charge.approved {
            enter(&tx, order, payment).await?;
            let event = Event::new("payment", payment, "PaymentMade").json(order)?;
            Outbox::default().enqueue(&tx, event).await?;
            Response::new(201).json(&serde_json::json!({ "payment": payment, "charge": charge.id }))?
        } else {
            Response::new(402).json(&serde_json::json!({ "payment": payment, "why": "declined" }))?
        };
        if self.mistakes.contains(&Mistake::ResponseAfterCommit) {
            tx.commit().await?;
            return store_late(&mut client, guard, response).await;
        }
        guard.finish(&tx, &response).await?;
        tx.commit().await?;
        Ok(response)
    }
}

async fn start(tx: &Transaction<'_>, order: &Order) -> Result<i64, PostgresError> {
    let sql = "INSERT INTO payment (reference, account, cents) VALUES ($1, $2, $3) RETURNING id";
    Ok(tx.query_one(sql, &[&order.reference, &order.account, &order.cents]).await?.get(0))
}

async fn enter(
    tx: &deadpool_postgres::Transaction<'_>,
    order: &Order,
    payment: i64,
) -> Result<(), tokio_postgres::Error> {
    let sql = "INSERT INTO ledger_entry (payment, reference, account, cents) VALUES ($1, $2, $3, $4)";
    tx.execute(sql, &[&payment, &order.reference, &order.account, &order.cents]).await.map(drop)
}

/// Deliberately wrong: if the process ends before this, the payment has no response and is made again. The pause, as on
/// a busy machine, makes the mistake visible in a short run.
async fn store_late(client: &mut Object, guard: &Guard, response: Response) -> Result<Response, Unfinished> {
    tokio::time::sleep(Duration::from_millis(300)).await;
    let tx = client.transaction().await?;
    guard.finish(&tx, &response).await?;
    tx.commit().await?;
    Ok(response)
}
