use pg_outbox::OutboxEvent;

#[derive(serde::Serialize, OutboxEvent)]
#[outbox(key = "order_id")]
struct OrderPaid {
    order_id: i64,
}

#[derive(serde::Serialize, OutboxEvent)]
#[outbox(aggregate = "order")]
struct OrderShipped {
    order_id: i64,
}

fn main() {}
