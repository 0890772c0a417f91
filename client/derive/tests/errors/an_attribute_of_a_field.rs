use pg_outbox::OutboxEvent;

#[derive(serde::Serialize, OutboxEvent)]
#[outbox(aggregate = "order", key = "order_id")]
struct OrderPaid {
    #[outbox(key)]
    order_id: i64,
    cents: i64,
}

#[derive(serde::Serialize, OutboxEvent)]
#[outbox(aggregate = "order", key = "0")]
struct OrderShipped(#[outbox(key)] i64);

fn main() {}
