//! What the shop does, as any application would: one transaction changes an order or a customer and enqueues the events
//! for the change, with `pg_outbox`.
//!
//! Each change first takes its turn by locking the aggregate's row: the UPDATE locks it and increments its version.
//! Then the event is enqueued, so events of one key are in commit order.

use super::ledger::{SharedLedger, fingerprint};
use super::verdict::Written;
use anyhow::Context;
use deadpool_postgres::{Object, Transaction};
use pg_outbox::{Event, Outbox};
use serde_json::{Value, json};
use std::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

/// The topics of the shop's events.
pub(super) const TOPICS: [&str; 2] = [ORDERS, CUSTOMERS];
const ORDERS: &str = "events.order";
const CUSTOMERS: &str = "events.customer";

const PLACE: &str =
    "INSERT INTO outbox_demo.shop_order (customer_id, cents) VALUES ($1, $2) RETURNING id, version";

const CHARGE: &str = "
UPDATE outbox_demo.customer SET orders = orders + 1, cents = cents + $2, version = version + 1
WHERE id = $1 RETURNING version";

const ADVANCE: &str = "
UPDATE outbox_demo.shop_order
SET status = CASE status WHEN 'placed' THEN 'paid' WHEN 'paid' THEN 'packed' ELSE 'shipped' END,
    version = version + 1
WHERE id = $1 AND status IN ('placed', 'paid', 'packed') RETURNING version, status";

const CANCEL: &str = "
UPDATE outbox_demo.shop_order SET status = 'cancelled', version = version + 1
WHERE id = $1 AND status IN ('placed', 'paid', 'packed') RETURNING version, customer_id, cents";

/// The end of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Commit,
    /// The card is declined when the transaction already contains everything, including the events.
    RollBack,
}

/// A writer's access to the shop's tables.
pub(super) struct Till<'a> {
    pub(super) connection: &'a mut Object,
    pub(super) outbox: &'a Outbox,
    pub(super) ledger: &'a SharedLedger,
}

impl Till<'_> {
    /// A customer places an order. The transaction has events of two keys. Returns the order.
    pub(super) async fn place(&mut self, customer: i64, cents: i64, ending: Ending) -> anyhow::Result<i64> {
        let transaction = self.connection.transaction().await.context("BEGIN")?;
        let placed = one(&transaction, PLACE, &[(&customer, Type::INT8), (&cents, Type::INT8)]).await?;
        let charged = one(&transaction, CHARGE, &[(&customer, Type::INT8), (&cents, Type::INT8)]).await?;
        let (Some(placed), Some(charged)) = (placed, charged) else {
            anyhow::bail!("customer {customer} does not exist");
        };
        let (order, version): (i64, i64) = (placed.get(0), placed.get(1));
        let body = json!({ "order_id": order, "customer_id": customer, "cents": cents, "version": version });
        let placed = draft(ORDERS, order, "OrderPlaced", version, &body);
        let version: i64 = charged.get(0);
        let body = json!({ "customer_id": customer, "order_id": order, "cents": cents, "version": version });
        let charged = draft(CUSTOMERS, customer, "CustomerCharged", version, &body);
        end(transaction, self.outbox, self.ledger, vec![placed, charged], ending).await?;
        if ending == Ending::Commit {
            self.ledger.lock().order_placed();
        }
        Ok(order)
    }

    /// An order is paid, packed or shipped. Returns whether a further step follows.
    pub(super) async fn advance(&mut self, order: i64) -> anyhow::Result<bool> {
        let transaction = self.connection.transaction().await.context("BEGIN")?;
        let Some(row) = one(&transaction, ADVANCE, &[(&order, Type::INT8)]).await? else {
            transaction.rollback().await.context("ROLLBACK")?;
            return Ok(false);
        };
        let (version, status): (i64, &str) = (row.get(0), row.get(1));
        let event_type = match status {
            "paid" => "OrderPaid",
            "packed" => "OrderPacked",
            _ => "OrderShipped",
        };
        let body = json!({ "order_id": order, "status": status, "version": version });
        let event = draft(ORDERS, order, event_type, version, &body);
        end(transaction, self.outbox, self.ledger, vec![event], Ending::Commit).await?;
        Ok(status != "shipped")
    }

    /// An order is cancelled, and the customer gets a refund. Does nothing if the order has been shipped.
    pub(super) async fn cancel(&mut self, order: i64) -> anyhow::Result<()> {
        let transaction = self.connection.transaction().await.context("BEGIN")?;
        let Some(row) = one(&transaction, CANCEL, &[(&order, Type::INT8)]).await? else {
            transaction.rollback().await.context("ROLLBACK")?;
            return Ok(());
        };
        let (version, customer, cents): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
        let refund: &[(&(dyn ToSql + Sync), Type)] = &[(&customer, Type::INT8), (&-cents, Type::INT8)];
        let Some(refunded) = one(&transaction, CHARGE, refund).await? else {
            anyhow::bail!("customer {customer} does not exist");
        };
        let body = json!({ "order_id": order, "status": "cancelled", "version": version });
        let cancelled = draft(ORDERS, order, "OrderCancelled", version, &body);
        let version: i64 = refunded.get(0);
        let body = json!({ "customer_id": customer, "order_id": order, "cents": -cents, "version": version });
        let refunded = draft(CUSTOMERS, customer, "CustomerRefunded", version, &body);
        end(transaction, self.outbox, self.ledger, vec![cancelled, refunded], Ending::Commit).await
    }
}

async fn one(
    transaction: &Transaction<'_>,
    sql: &str,
    parameters: &[(&(dyn ToSql + Sync), Type)],
) -> anyhow::Result<Option<Row>> {
    Ok(transaction.query_typed(sql, parameters).await.context("changing the shop's tables")?.pop())
}

/// An event, and what the ledger records about it.
fn draft(topic: &'static str, id: i64, event_type: &str, sequence: i64, body: &Value) -> (Event, Written) {
    let payload = body.to_string().into_bytes();
    let aggregate_type = topic.strip_prefix("events.").unwrap_or(topic);
    let mut written = Written {
        event_id: uuid::Uuid::nil(),
        topic,
        key: id.to_string(),
        sequence,
        payload: fingerprint(&payload),
    };
    let event = Event::new(aggregate_type, id, event_type).bytes(payload);
    written.event_id = *event.id().as_uuid();
    (event, written)
}

/// Enqueues the events in the transaction, ends the transaction, and records the outcome.
async fn end(
    transaction: Transaction<'_>,
    outbox: &Outbox,
    ledger: &SharedLedger,
    drafts: Vec<(Event, Written)>,
    ending: Ending,
) -> anyhow::Result<()> {
    let (events, written): (Vec<Event>, Vec<Written>) = drafts.into_iter().unzip();
    outbox.enqueue_many(&transaction, events).await.context("enqueueing events")?;
    if ending == Ending::RollBack {
        transaction.rollback().await.context("ROLLBACK")?;
        ledger.lock().rolled_back();
        return Ok(());
    }
    match transaction.commit().await {
        Ok(()) => {
            let at = Instant::now();
            ledger.lock().committed(written, at);
            Ok(())
        }
        Err(error) => {
            ledger.lock().unsure(written);
            Err(error).context("COMMIT")
        }
    }
}
