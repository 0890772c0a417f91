use pg_outbox::OutboxEvent;

#[derive(OutboxEvent)]
#[outbox(aggregate = "order", key = "order_id")]
struct OrderPaid {
    order_id: i64,
}

fn main() {}
