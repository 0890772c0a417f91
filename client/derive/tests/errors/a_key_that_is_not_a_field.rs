use pg_outbox::OutboxEvent;

#[derive(serde::Serialize, OutboxEvent)]
#[outbox(aggregate = "order", key = "ordr_id")]
struct OrderPaid {
    order_id: i64,
    cents: i64,
}

#[derive(serde::Serialize, OutboxEvent)]
#[outbox(aggregate = "order", key = "1")]
struct OrderShipped(i64);

#[derive(serde::Serialize, OutboxEvent)]
#[outbox(aggregate = "order", key = "order_id")]
struct OrderLost;

fn main() {}
