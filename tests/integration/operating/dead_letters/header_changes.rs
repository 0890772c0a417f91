//! Events with invalid headers are requeued with corrected ones.

use crate::support::consumer;
use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::wait::STALLED;

/// Four dead letters with invalid headers, in this order.
const HEADERS: [&str; 4] = [
    r#"{"attempt": 1, "tracestate": null, "ok": "x", "nested": {"a": [true]}}"#,
    r#"{"event_id": "mine", "a": "b"}"#,
    r#"["x"]"#,
    r#"{"attempt": 2, "id": {"base64": "Ymlu"}}"#,
];

async fn filled(test: &str) -> Outbox {
    let outbox = Outbox::create(test, 1).await;
    for headers in &HEADERS {
        let sql = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload, headers)
                   VALUES ('order', '1', 'X', '{}', $1::text::jsonb)";
        outbox.client.execute(sql, &[headers]).await.unwrap();
    }
    let mut relay = outbox.start_relay().await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success(), "{}", relay.log());
    outbox
}

async fn texts(outbox: &Outbox, sql: &str) -> Vec<String> {
    outbox.client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn headers_are_corrected_when_their_events_are_requeued() {
    let outbox = filled("headers_corrected").await;
    let requeue =
        |extra: &[&str]| outbox.operator().command(&[&["dead-letters", "requeue", "--all"], extra].concat());
    let plain = requeue(&["--dry-run"]);
    let warning = "warning: 4 events will be rejected again: their headers are invalid. Fix: correct them with --stringify-headers";
    assert!(plain.stderr.starts_with(warning), "{plain}");
    let dry = requeue(&["--dry-run", "--stringify-headers", "--limit", "2"]);
    assert!(dry.stderr.starts_with("warning: 1 event will be rejected again: their headers"), "{dry}");
    let dry = requeue(&["--dry-run", "--drop-header", "attempt"]);
    assert!(dry.stderr.starts_with("warning: 3 events will be rejected again"), "base64 is valid: {dry}");
    assert_eq!(outbox.unsent().await, 0, "a dry run changes nothing");
    requeue(&["--set-header", "source"]).fails(2, &["write NAME=VALUE, such as source=shop"]);

    let options = ["--stringify-headers", "--drop-header", "event_id", "--set-header", "source=a=\"b"];
    let done = requeue(&options);
    assert_eq!(done.succeeds(), "app.outbox: 4 dead letters requeued\n");
    assert!(done.stderr.starts_with("warning: 1 event will be rejected again"), "an array: {done}");
    let kept = "SELECT headers::text FROM app.outbox_dead_letter ORDER BY id";
    let kept = texts(&outbox, kept).await;
    assert!(kept[0].contains("null") && kept[1].contains("mine"), "dead letters stay as they are: {kept:?}");
    let acts = "SELECT DISTINCT application FROM app.outbox_act WHERE act = 'requeue'";
    assert_eq!(texts(&outbox, acts).await, ["outbox-relay command, headers corrected"]);

    let mut relay = outbox.start_relay().await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success(), "{}", relay.log());
    assert_eq!(outbox.dead_letters().await, 5, "the array is rejected again");
    let records = consumer::read_all(&outbox.topics()).await;
    let own = |record: &consumer::Record| {
        let own = record.headers.iter().filter(|(name, _)| name != "event_id" && name != "event_type");
        let mut own: Vec<String> = own
            .map(|(name, value)| format!("{name}={}", String::from_utf8_lossy(value.as_deref().unwrap())))
            .collect();
        own.sort();
        own.join(" ")
    };
    assert_eq!(
        records.iter().map(own).collect::<Vec<_>>(),
        [
            r#"attempt=1 nested={"a": [true]} ok=x source=a="b"#,
            r#"a=b source=a="b"#,
            r#"attempt=2 id=bin source=a="b"#,
        ],
        "in the order of the dead letters"
    );
    outbox.drop().await;
}

/// NULL and JSON null both mean that there are none.
#[tokio::test]
async fn headers_can_be_set_on_an_event_that_has_none() {
    let outbox = filled("headers_set").await;
    run(
        &outbox.client,
        "UPDATE app.outbox_dead_letter SET headers = CASE WHEN id % 2 = 0 THEN 'null'::jsonb END",
    )
    .await;
    let requeue = |extra: &[&str]| {
        let args = [&["dead-letters", "requeue", "--all", "--again"], extra].concat();
        let done = outbox.operator().command(&args);
        assert_eq!((done.succeeds(), done.stderr.as_str()), ("app.outbox: 4 dead letters requeued\n", ""));
    };
    requeue(&["--set-header", "source=shop"]);
    let headers = "SELECT DISTINCT headers::text FROM app.outbox WHERE sent_at IS NULL";
    assert_eq!(texts(&outbox, headers).await, [r#"{"source": "shop"}"#]);
    run(&outbox.client, "DELETE FROM app.outbox").await;
    requeue(&["--drop-header", "source"]);
    assert_eq!(outbox.count("SELECT count(*) FROM app.outbox WHERE headers IS NULL").await, 4);
    outbox.drop().await;
}
