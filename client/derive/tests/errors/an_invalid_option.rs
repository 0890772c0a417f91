use pg_outbox::OutboxEvent;

#[derive(serde::Serialize, OutboxEvent)]
#[outbox(agregate = "order", key = "order_id")]
struct Unknown {
    order_id: i64,
}

#[derive(serde::Serialize, OutboxEvent)]
#[outbox(aggregate = "order", key = "order_id")]
#[outbox(key = "cents")]
struct Twice {
    order_id: i64,
    cents: i64,
}

#[derive(serde::Serialize, OutboxEvent)]
#[outbox(aggregate = "", key = "order_id")]
struct Empty {
    order_id: i64,
}

#[derive(serde::Serialize, OutboxEvent)]
#[outbox(aggregate = "order", key = "order_id", event = "\0")]
struct Nul {
    order_id: i64,
}

#[derive(serde::Serialize, OutboxEvent)]
#[outbox(aggregate = "order", key = order_id)]
struct NoText {
    order_id: i64,
}

fn main() {}
