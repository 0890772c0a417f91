/// A type of a driver whose feature is not enabled.
mod driver {
    pub struct Transaction;
}

fn pay(tx: &driver::Transaction) {
    let event = pg_outbox::Event::new("order", 42, "OrderPaid").tombstone();
    drop(pg_outbox::enqueue(tx, event));
}

fn main() {}
