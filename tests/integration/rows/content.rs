//! Records in Kafka match the inserted rows byte for byte, regardless of who inserted them and of the type of the column.

use pg_outbox::Event;
use std::time::SystemTime;
use uuid::Uuid;

use crate::support::consumer::{self, Record};
use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::wait::STALLED;

/// Payloads that a parser would change.
const JSON: &[&str] = &[
    " {\"b\" : 1,\n\t\"a\":  [ ] , \"a\": 2 }  ",
    "{\"number\":12345678901234567890123456789.000,\"small\":1E-400,\"zero\":-0.0}",
    "{\"text\":\"\u{e4}\u{20ac}\u{1f980} \\u00e4 \\ud83e\\udd80 \\/ \\\" \u{2028}\"}",
    "\"only a text\"",
    "null",
    "0",
    "[]",
];

const KEYS: &[&str] = &["", " ", "a key with spaces ", "\u{e4}\u{20ac}\u{1f980}", "k\n\t\"'\\", "42"];

/// The expected record, by its event id.
struct Expected {
    event_id: Uuid,
    key: String,
    value: Option<Vec<u8>>,
    headers: Vec<(String, Option<Vec<u8>>)>,
}

/// The rows of the table, with the value as the database returns it in binary.
async fn expected(outbox: &Outbox, value_sql: &str) -> Vec<Expected> {
    let sql = format!(
        "SELECT event_id, aggregate_id, event_type, {value_sql},
                ARRAY(SELECT key FROM jsonb_each_text(headers)), ARRAY(SELECT value FROM jsonb_each_text(headers))
         FROM app.outbox ORDER BY id"
    );
    let rows = outbox.client.query(&sql, &[]).await.unwrap();
    let expected = |row: &tokio_postgres::Row| {
        let event_id: Uuid = row.get(0);
        let (names, values): (Vec<String>, Vec<String>) = (row.get(4), row.get(5));
        let bytes = |text: String| Some(text.into_bytes());
        let mut headers = vec![
            ("event_id".to_owned(), bytes(event_id.to_string())),
            ("event_type".to_owned(), bytes(row.get(2))),
        ];
        headers.extend(names.into_iter().zip(values.into_iter().map(bytes)));
        Expected { event_id, key: row.get(1), value: row.get(3), headers }
    };
    rows.iter().map(expected).collect()
}

/// Relays everything and compares each record with its row.
async fn relay_and_compare(outbox: &Outbox, value_sql: &str) -> Vec<Record> {
    let mut relay = outbox.start_relay().await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    let records = consumer::read_all(&outbox.topics()).await;
    let expected = expected(outbox, value_sql).await;
    assert_eq!(records.len(), expected.len());
    for expected in &expected {
        let record = records.iter().find(|record| record.event_id() == Some(expected.event_id)).unwrap();
        assert_eq!(record.topic, outbox.topic("order"));
        assert_eq!(record.key.as_deref(), Some(expected.key.as_bytes()), "{:?}", expected.key);
        assert_eq!(record.value, expected.value, "the value of key {:?}", expected.key);
        assert_eq!(record.headers, expected.headers, "the headers of key {:?}", expected.key);
    }
    assert_eq!(outbox.count("SELECT count(*) FROM app.outbox_dead_letter").await, 0);
    records
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[tokio::test]
async fn payload_arrives_byte_for_byte_whoever_inserted_it() {
    let mut outbox = Outbox::create("content", 3).await;
    let headers = r#"{"traceparent": "00-ab-cd-01", "": "no name", "ä €": "🦀 \" \n", "empty": ""}"#;
    let mut payloads: Vec<Option<&str>> = Vec::new();
    for (payload, key) in JSON.iter().zip(KEYS.iter().cycle()) {
        // As from psql: all values are in the text of the statement.
        let (payload_sql, key_sql) = (literal(payload), literal(key));
        let columns = "aggregate_type, aggregate_id, event_type, payload, headers";
        let values = format!("'order', {key_sql}, 'Plain', {payload_sql}, {}", literal(headers));
        run(&outbox.client, &format!("INSERT INTO app.outbox ({columns}) VALUES ({values})")).await;
        run(
            &outbox.client,
            &format!("SELECT app.outbox_enqueue({})", values.replace("'Plain'", "'Function'")),
        )
        .await;
        payloads.extend([Some(*payload), Some(payload)]);
    }
    // Tombstones, and rows without headers.
    run(
        &outbox.client,
        "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type) VALUES ('order', 'gone', 'Deleted');
         SELECT app.outbox_enqueue('order', 'gone', '')",
    )
    .await;
    payloads.extend([None, None]);
    let library = pg_outbox::Outbox::new("app.outbox").unwrap();
    let transaction = outbox.client.transaction().await.unwrap();
    for (payload, key) in JSON.iter().zip(KEYS.iter().filter(|key| !key.is_empty()).cycle()) {
        let event = Event::new("order", key, "Library").bytes(*payload).header("ä", "€");
        library.enqueue(&transaction, event).await.unwrap();
        payloads.push(Some(payload));
    }
    let gone = Event::new("order", "gone", "Library").tombstone();
    library.enqueue_many(&transaction, [gone]).await.unwrap();
    transaction.commit().await.unwrap();
    payloads.push(None);

    let records = relay_and_compare(&outbox, "convert_to(payload::text, 'UTF8')").await;
    // The payload must be equal not only to the table's, but also to what was written.
    let ids = outbox.client.query("SELECT event_id FROM app.outbox ORDER BY id", &[]).await.unwrap();
    assert_eq!(ids.len(), payloads.len());
    for (row, payload) in ids.iter().zip(payloads) {
        let record = records.iter().find(|record| record.event_id() == Some(row.get(0))).unwrap();
        assert_eq!(record.value.as_deref(), payload.map(str::as_bytes));
    }
    outbox.drop().await;
}

#[tokio::test]
async fn payload_column_of_another_type_arrives_unchanged() {
    for (name, rows, value_sql) in [
        (
            "jsonb",
            "('{\"b\": 1, \"a\": [1.50, \"\u{20ac}\"]}'), ('\"x\"'), (NULL)",
            "convert_to(payload::text, 'UTF8')",
        ),
        ("bytea", "('\\x00ff0100'), (''), ('\\x7b7d'), (NULL)", "payload"),
        ("text", "('{not json'), (''), (E'\u{1f980}\\n'), (NULL)", "convert_to(payload, 'UTF8')"),
    ] {
        let outbox = Outbox::create(name, 1).await;
        let sql = format!(
            "ALTER TABLE app.outbox ALTER payload TYPE {name} USING NULL;
             INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload)
             SELECT 'order', row_number() OVER (), 'Typed', column1::{name} FROM (VALUES {rows}) AS v"
        );
        run(&outbox.client, &sql).await;
        let records = relay_and_compare(&outbox, value_sql).await;
        let tombstones = records.iter().filter(|record| record.value.is_none()).count();
        assert_eq!(tombstones, 1, "{name}: an empty payload is not a tombstone");
        outbox.drop().await;
    }
}

#[tokio::test]
async fn headers_are_sent_as_configured_and_the_timestamp_is_not_the_rows() {
    let outbox = Outbox::create("optional", 1).await;
    let insert = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, headers, created_at)
                  VALUES ('order', '1', 'Old', '{\"own\": \"1\"}', '2001-02-03 04:05:06.789012+00')";
    run(&outbox.client, insert).await;
    let names = |record: &Record| record.headers.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let records = relay_and_compare(&outbox, "payload::text::bytea").await;
    assert_eq!(names(&records[0]), ["event_id", "event_type", "own"]);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as i64;
    let age_ms = now - records[0].timestamp_ms.unwrap();
    assert!((0..120_000).contains(&age_ms), "{age_ms} ms");

    run(&outbox.client, insert).await;
    let reserved = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, headers)
                    VALUES ('order', '2', 'Reserved', '{\"id\": \"1\"}')";
    run(&outbox.client, reserved).await;
    let templates = [
        ("id", "{event_id}"),
        ("own", "of the relay"),
        ("source", "/{aggregate_type}/{aggregate_id}"),
        ("time", "{created_at}"),
    ];
    let configured = templates
        .into_iter()
        .fold(outbox.relay(), |relay, (name, template)| relay.set_inner("outbox", "headers", name, template));
    let mut relay = configured.start().await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    let records = consumer::read_all(&outbox.topics()).await;
    assert_eq!(records.len(), 2);
    // A row cannot repeat a configured header.
    assert_eq!(names(&records[1]), ["id", "own", "source", "time"]);
    let values = records[1].headers[1..]
        .iter()
        .map(|(_, value)| value.as_deref().map(str::from_utf8).unwrap().unwrap());
    let expected = ["of the relay", "/order/1", "2001-02-03T04:05:06.789012Z"];
    assert_eq!(values.collect::<Vec<_>>(), expected);
    let sql = "SELECT event_id::text FROM app.outbox WHERE event_type = 'Old' ORDER BY id DESC LIMIT 1";
    let event_id: String = outbox.client.query_one(sql, &[]).await.unwrap().get(0);
    assert_eq!(records[1].header("id"), Some(event_id.as_bytes()));
    // Nor can a row replace the header that identifies the event.
    let dead = "SELECT count(*) FROM app.outbox_dead_letter WHERE reason = 'invalid-headers' AND error LIKE '%\"id\" is reserved%'";
    assert_eq!(outbox.count(dead).await, 1);
    outbox.drop().await;
}

/// From SQL and from the crate; a large value is uncompressed, stored elsewhere, and has line breaks in its base64.
#[tokio::test]
async fn binary_header_arrives_byte_for_byte() {
    let mut outbox = Outbox::create("binary_headers", 1).await;
    let bytes = "(SELECT string_agg(decode(md5(n::text), 'hex'), '') FROM generate_series(1, 1000) AS n)";
    let insert = format!(
        "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, headers)
         SELECT 'order', 'sql', 'Inserted', jsonb_build_object(
             'schema', jsonb_build_object('base64', encode('\\x00017fff', 'base64')),
             'large', jsonb_build_object('base64', encode({bytes}, 'base64')), 'text', 'AAE=')"
    );
    run(&outbox.client, &insert).await;
    let transaction = outbox.client.transaction().await.unwrap();
    let event =
        Event::new("order", "crate", "Inserted").tombstone().binary_header("schema", [0, 1, 0x7f, 0xff]);
    pg_outbox::Outbox::new("app.outbox").unwrap().enqueue(&transaction, event).await.unwrap();
    transaction.commit().await.unwrap();

    let mut relay = outbox.start_relay().await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    assert_eq!(outbox.count("SELECT count(*) FROM app.outbox_dead_letter").await, 0);
    let large: Vec<u8> = outbox.client.query_one(&format!("SELECT {bytes}"), &[]).await.unwrap().get(0);
    assert_eq!(large.len(), 16_000);
    let records = consumer::read_all(&outbox.topics()).await;
    assert_eq!(records.len(), 2);
    for record in records {
        assert_eq!(record.header("schema"), Some(&[0, 1, 0x7f, 0xff][..]));
        let is_sql = record.key.as_deref() == Some(b"sql");
        assert_eq!(record.header("large"), is_sql.then_some(&*large));
        assert_eq!(record.header("text"), is_sql.then_some(&b"AAE="[..]));
    }
    outbox.drop().await;
}

/// `make examples ONLY=cloudevents` reads such records with the official SDK for Python.
#[tokio::test]
async fn envelope_of_cloud_events_sets_every_attribute() {
    let outbox = Outbox::create("cloud_events", 1).await;
    let insert = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload, headers, created_at)
                  VALUES ('order', '4 2', 'order.paid', '{}', '{\"traceparent\": \"00-ab\"}', '2001-02-03 04:05:06+00')";
    run(&outbox.client, insert).await;
    let mut relay = outbox
        .relay()
        .set("outbox", "envelope", "cloudevents")
        .set("outbox", "cloudevents_source", "/shop/{aggregate_type}")
        .start()
        .await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    let records = consumer::read_all(&outbox.topics()).await;
    let sql = "SELECT event_id::text FROM app.outbox";
    let event_id: String = outbox.client.query_one(sql, &[]).await.unwrap().get(0);
    let text = |value: &Option<Vec<u8>>| String::from_utf8(value.clone().unwrap()).unwrap();
    let headers: Vec<_> =
        records[0].headers.iter().map(|(name, value)| (name.as_str(), text(value))).collect();
    let expected = [
        ("ce_id", event_id.as_str()),
        ("ce_source", "/shop/order"),
        ("ce_specversion", "1.0"),
        ("ce_subject", "4 2"),
        ("ce_time", "2001-02-03T04:05:06.000000Z"),
        ("ce_type", "order.paid"),
        ("content-type", "application/json"),
        ("traceparent", "00-ab"),
    ];
    assert_eq!(headers, expected.map(|(name, value)| (name, value.to_owned())));
    outbox.drop().await;
}
