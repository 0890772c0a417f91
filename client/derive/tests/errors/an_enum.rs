use pg_outbox::OutboxEvent;

#[derive(serde::Serialize, OutboxEvent)]
#[outbox(aggregate = "order", key = "order_id")]
enum OrderEvent {
    Paid { order_id: i64 },
    Shipped { order_id: i64 },
}

fn main() {}
