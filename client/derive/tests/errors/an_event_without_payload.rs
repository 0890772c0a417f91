fn pay(tx: impl pg_outbox::OutboxTransaction) {
    drop(pg_outbox::enqueue(tx, pg_outbox::Event::new("order", 42, "OrderPaid")));
}

fn main() {}
