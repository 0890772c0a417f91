//! Pays an order with sqlx. The change and its event are committed together, or neither is.

use std::error::Error;

use pg_outbox::{EventId, OutboxEvent};
use sqlx::PgPool;

/// The payload of the event, as JSON. The event type is the name of the struct.
#[derive(serde::Serialize, OutboxEvent)]
#[outbox(aggregate = "order", key = "order_id")]
struct OrderPaid {
    order_id: i64,
    customer: String,
    cents: i64,
}

async fn pay(pool: &PgPool, order_id: i64) -> Result<EventId, Box<dyn Error>> {
    let mut tx = pool.begin().await?;
    // Lock the order first, so that the writers of this key take turns and its events are in commit order.
    let order: Option<(String, i64)> = sqlx::query_as(
        "UPDATE customer_order SET status = 'paid' WHERE id = $1 AND status = 'placed' RETURNING customer, cents",
    )
    .bind(order_id)
    .fetch_optional(&mut *tx)
    .await?;
    let (customer, cents) = order.ok_or("the order does not exist or is already paid")?;

    // Then insert the event in the same transaction.
    let event = OrderPaid { order_id, customer, cents };
    let event_id = pg_outbox::enqueue(&mut tx, &event).await?;

    // If the balance is too low, the CHECK constraint fails, and the order and the event are rolled back too.
    sqlx::query("UPDATE account SET cents = cents - $1 WHERE customer = $2")
        .bind(event.cents)
        .bind(&event.customer)
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(event_id)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let order_id = std::env::args().nth(1).ok_or("usage: pay_sqlx ORDER")?.parse()?;
    let pool = PgPool::connect(&std::env::var("DATABASE_URL")?).await?;
    println!("committed event {}", pay(&pool, order_id).await?);
    Ok(())
}
