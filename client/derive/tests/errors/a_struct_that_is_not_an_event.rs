#[derive(serde::Serialize)]
struct OrderPaid {
    order_id: i64,
}

fn pay(tx: impl pg_outbox::OutboxTransaction) {
    drop(pg_outbox::enqueue(tx, &OrderPaid { order_id: 42 }));
}

fn main() {}
