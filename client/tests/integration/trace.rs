use opentelemetry::Context;
use opentelemetry::trace::{
    FutureExt, SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState,
};
use pg_outbox::Event;

use crate::database::Database;

const TRACEPARENT: &str = r#"{"traceparent": "00-00000000000000000000000000000007-0000000000000009-01"}"#;

#[tokio::test]
async fn events_carry_the_trace_of_the_span_that_enqueues_them() {
    let mut db = Database::new().await;
    let tx = db.client.transaction().await.unwrap();
    let event = |key: &str| Event::new("order", key, "E").tombstone();
    db.outbox.enqueue(&tx, event("without")).await.unwrap();
    let span =
        SpanContext::new(TraceId::from(7), SpanId::from(9), TraceFlags::SAMPLED, true, TraceState::default());
    let context = Context::new().with_remote_span_context(span);
    async {
        db.outbox.enqueue(&tx, event("one")).await.unwrap();
        let own = event("own").header("traceparent", "mine");
        db.outbox.enqueue_many(&tx, [event("many"), own]).await.unwrap();
    }
    .with_context(context)
    .await;
    tx.commit().await.unwrap();
    let headers: Vec<_> = db.rows().await.into_iter().map(|row| (row.aggregate_id, row.headers)).collect();
    let expected = [
        ("without", None),
        ("one", Some(TRACEPARENT)),
        ("many", Some(TRACEPARENT)),
        ("own", Some(r#"{"traceparent": "mine"}"#)),
    ];
    assert_eq!(headers, expected.map(|(key, headers)| (key.to_owned(), headers.map(str::to_owned))));
    db.clean_up().await;
}
