//! Pays an order with diesel. The change and its event are committed together, or neither is.

use std::error::Error;

use diesel::prelude::*;
use pg_outbox::{EventId, OutboxEvent, block_on};

diesel::table! { account (customer) { customer -> Text, cents -> BigInt, } }
diesel::table! { customer_order { id -> BigInt, customer -> Text, cents -> BigInt, status -> Text, } }

/// The payload of the event, as JSON. The event type is the name of the struct.
#[derive(serde::Serialize, OutboxEvent)]
#[outbox(aggregate = "order", key = "order_id")]
struct OrderPaid {
    order_id: i64,
    customer: String,
    cents: i64,
}

fn pay(connection: &mut PgConnection, order_id: i64) -> Result<EventId, Box<dyn Error>> {
    connection.transaction(|tx| {
        // Lock the order first, so that the writers of this key take turns and its events are in commit order.
        let placed = customer_order::table.find(order_id).filter(customer_order::status.eq("placed"));
        let (customer, cents) = diesel::update(placed)
            .set(customer_order::status.eq("paid"))
            .returning((customer_order::customer, customer_order::cents))
            .get_result(tx)?;

        // Then insert the event in the same transaction.
        let event = OrderPaid { order_id, customer, cents };
        let event_id = block_on(pg_outbox::enqueue(&mut *tx, &event))?;

        // If the balance is too low, the CHECK constraint fails, and the order and the event are rolled back too.
        diesel::update(account::table.find(&event.customer))
            .set(account::cents.eq(account::cents - event.cents))
            .execute(tx)?;
        Ok(event_id)
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let order_id = std::env::args().nth(1).ok_or("usage: pay_diesel ORDER")?.parse()?;
    let mut connection = PgConnection::establish(&std::env::var("DATABASE_URL")?)?;
    println!("committed event {}", pay(&mut connection, order_id)?);
    Ok(())
}
