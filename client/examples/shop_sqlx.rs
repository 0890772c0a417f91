//! The example shop with sqlx 0.8.
//!
//! DATABASE_URL=postgres://shop@localhost/shop cargo run -p pg-outbox --features sqlx-08,derive --example shop_sqlx -- 10

use pg_outbox::{EventId, OutboxEvent};
use sqlx_08 as sqlx; // an application that depends on sqlx 0.8 under its own name needs no such line

const ORDERS_DEFAULT: u32 = 10;

/// A real shop would have a migration for this table.
const CREATE_ORDERS: &str = "
    CREATE TABLE IF NOT EXISTS shop_order (
        id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        customer text    NOT NULL,
        cents    bigint  NOT NULL,
        status   text    NOT NULL DEFAULT 'placed'
    )";

#[derive(serde::Serialize, OutboxEvent)]
#[outbox(aggregate = "order", key = "order_id")]
struct OrderPlaced<'a> {
    order_id: i64,
    customer: &'a str,
    cents: i64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("DATABASE_URL")
        .map_err(|_| "DATABASE_URL is not set. Set it, for example to postgres://localhost/shop")?;
    let orders = match std::env::args().nth(1) {
        Some(count) => count.parse().map_err(|_| format!("{count:?} is not a number of orders"))?,
        None => ORDERS_DEFAULT,
    };

    let pool = sqlx::PgPool::connect(&url).await?;
    sqlx::query(CREATE_ORDERS).execute(&pool).await?;
    for number in 1..=orders {
        let customer = ["Ada", "Grace", "Edsger"][number as usize % 3];
        let (order_id, event_id) = place_order(&pool, customer, i64::from(number) * 250).await?;
        println!("order {order_id} of {customer} placed, event {event_id}");
    }
    println!("{orders} orders placed. Their events are in the outbox");
    pool.close().await;
    Ok(())
}

/// The order is inserted first. No other transaction can write events of an order that is not committed yet.
async fn place_order(
    pool: &sqlx::PgPool,
    customer: &str,
    cents: i64,
) -> Result<(i64, EventId), Box<dyn std::error::Error>> {
    let mut tx = pool.begin().await?;
    let order_id: i64 =
        sqlx::query_scalar("INSERT INTO shop_order (customer, cents) VALUES ($1, $2) RETURNING id")
            .bind(customer)
            .bind(cents)
            .fetch_one(&mut *tx)
            .await?;
    let event_id = pg_outbox::enqueue(&mut tx, &OrderPlaced { order_id, customer, cents }).await?;
    tx.commit().await?;
    Ok((order_id, event_id))
}
