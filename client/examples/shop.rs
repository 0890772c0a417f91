//! A shop that places orders, and enqueues an event for each in the same transaction.
//!
//! DATABASE_URL=postgres://shop@localhost/shop cargo run -p pg-outbox --features tokio-postgres,derive --example shop -- 10

use std::error::Error as StdError;
use std::process::ExitCode;

use pg_outbox::{EventId, OutboxEvent};
use serde::Serialize;
use tokio_postgres::{Client, NoTls};

const ORDERS_DEFAULT: u32 = 10;

/// A real shop would have a migration for this table.
const CREATE_ORDERS: &str = "
    CREATE TABLE IF NOT EXISTS shop_order (
        id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        customer text    NOT NULL,
        cents    bigint  NOT NULL,
        status   text    NOT NULL DEFAULT 'placed'
    )";

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", key = "order_id")]
struct OrderPlaced<'a> {
    order_id: i64,
    customer: &'a str,
    cents: i64,
}

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", key = "order_id")]
struct OrderPaid {
    order_id: i64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match shop().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprint!("shop: {error}");
            let mut source = error.source();
            while let Some(error) = source {
                eprint!(": {error}");
                source = error.source();
            }
            eprintln!();
            ExitCode::FAILURE
        }
    }
}

async fn shop() -> Result<(), Box<dyn StdError>> {
    let url = std::env::var("DATABASE_URL")
        .map_err(|_| "DATABASE_URL is not set. Set it, for example to postgres://localhost/shop")?;
    let orders = match std::env::args().nth(1) {
        Some(count) => count.parse().map_err(|_| format!("{count:?} is not a number of orders"))?,
        None => ORDERS_DEFAULT,
    };

    let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    let connection = tokio::spawn(connection);
    client.batch_execute(CREATE_ORDERS).await?;

    for number in 1..=orders {
        let customer = ["Ada", "Grace", "Edsger"][number as usize % 3];
        let (order_id, event_id) = place_order(&mut client, customer, i64::from(number) * 250).await?;
        println!("order {order_id} of {customer} placed, event {event_id}");
        if number % 2 == 0 {
            let event_id = pay_order(&mut client, order_id).await?;
            println!("order {order_id} paid, event {event_id}");
        }
    }
    println!("{orders} orders placed. Their events are in the outbox");

    drop(client);
    connection.await??;
    Ok(())
}

/// The order is inserted first. No other transaction can write events of an order that is not committed yet.
async fn place_order(
    client: &mut Client,
    customer: &str,
    cents: i64,
) -> Result<(i64, EventId), Box<dyn StdError>> {
    let tx = client.transaction().await?;
    let order_id: i64 = tx
        .query_one(
            "INSERT INTO shop_order (customer, cents) VALUES ($1, $2) RETURNING id",
            &[&customer, &cents],
        )
        .await?
        .get(0);
    let event_id = pg_outbox::enqueue(&tx, &OrderPlaced { order_id, customer, cents }).await?;
    tx.commit().await?;
    Ok((order_id, event_id))
}

/// The UPDATE locks the order's row, so that writers of one order take turns before they enqueue. Its events reach Kafka in
/// commit order.
async fn pay_order(client: &mut Client, order_id: i64) -> Result<EventId, Box<dyn StdError>> {
    let tx = client.transaction().await?;
    let paid = tx
        .execute("UPDATE shop_order SET status = 'paid' WHERE id = $1 AND status = 'placed'", &[&order_id])
        .await?;
    if paid == 0 {
        return Err(format!("order {order_id} is not waiting to be paid").into());
    }
    let event_id = pg_outbox::enqueue(&tx, &OrderPaid { order_id }).await?;
    tx.commit().await?;
    Ok(event_id)
}
