use pg_outbox::OutboxEvent;

#[derive(serde::Serialize, OutboxEvent)]
struct OrderPaid {
    order_id: i64,
}

#[derive(serde::Serialize, OutboxEvent)]
#[outbox]
struct OrderShipped {
    order_id: i64,
}

fn main() {}
