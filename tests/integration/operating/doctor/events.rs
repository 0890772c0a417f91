//! Events that can never be sent.

use super::World;

#[tokio::test]
async fn events_that_cannot_become_records_are_found() {
    let mut world = World::new("doctor_events").await;
    world.outbox.create_topic("order", 1).await;
    world
        .sql(
            "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload, headers)
             VALUES ('order', '1', 'X', '{}', '{\"a\": \"b\"}'),
                    ('a b', '2', 'X', '{}', NULL),
                    ('order', '3', 'X', '{}', '{\"n\": [\"x\"]}'),
                    ('order', '4', 'X', '{}', '[\"n\"]'),
                    ('order', '5', 'X', '{}', '{\"event_id\": \"mine\"}'),
                    ('order', '6', 'X', to_json(repeat('secret', 300000)), NULL),
                    ('order', '7', 'X', '{}', '{\"n\": {\"base64\": \" AAEC\\nAw= =\"}, \"m\": {\"base64\": \"\"}}'),
                    ('order', '8', 'X', '{}', '{\"n\": {\"base64\": \"AAECA\"}}'),
                    ('order', '9', 'X', '{}', '{\"n\": {\"base64\": [\"AAEC\"]}}'),
                    ('order', '10', 'X', '{}', '{\"n\": {\"base64\": \"AAEC\", \"hex\": \"00\"}}'),
                    ('order', '11', 'X', '{}', '{\"n\": {\"hex\": \"00\"}}'),
                    ('order', '12', 'X', '{}', 'null')",
        )
        .await;
    let found = world.doctor();
    found.has("event-topic-name", "character ' ' at position");
    found.has("event-headers", "not a flat JSON object");
    found.has("event-too-large", "message.max.bytes in [kafka.properties] is 1000000");
    assert!(!found.json.to_string().contains("secret"), "no payload is shown");
    let place = |code: &str| {
        let findings = found.json["findings"].as_array().unwrap().iter();
        let of_code = findings.filter(|finding| finding["code"] == code);
        of_code.map(|finding| finding["place"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(place("event-topic-name"), ["app.outbox, row 2"]);
    assert_eq!(place("event-headers"), ["app.outbox, rows 3, 4, 5, 8, 9 and more"]);
    assert_eq!(place("event-too-large"), ["app.outbox, row 6"]);
    assert_eq!(found.exit, 1);

    world.sql("UPDATE app.outbox SET aggregate_type = 'order', headers = NULL").await;
    world.relay = world.relay.clone().set_kafka_property("message.max.bytes", "3000000");
    let found = world.doctor();
    for code in ["event-topic-name", "event-headers", "event-too-large"] {
        found.has_not(code);
    }
    // Now the producer accepts the event, but the topic does not.
    found.has("payload-above-topic-limit", "max.message.bytes is 1048588");
    let topic = world.outbox.topic("order");
    world.outbox.cluster.alter(&topic, &[("max.message.bytes", "3000000")]).await;
    world.doctor().has_not("payload-above-topic-limit");
    world.drop().await;
}
