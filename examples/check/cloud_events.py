"""Records in CloudEvents format, read with the official SDK for Python."""

import json

from cloudevents.core.bindings.kafka import KafkaMessage, from_kafka_event

from processes import Failed
from world import World

RELAY = {
    "OUTBOX_RELAY__OUTBOX__ENVELOPE": "cloudevents",
    "OUTBOX_RELAY__OUTBOX__CLOUDEVENTS_SOURCE": "/shop/{aggregate_type}",
}
INSERT = """
    INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, headers)
    VALUES ('order', %s, 'order.paid', %s, '{"traceparent": "00-ab"}')
    RETURNING event_id::text, created_at
"""
PAYLOADS = {"7": {"cents": 700, "customer": "ada"}, "Łódź 8": {"customer": "Zoë"}, "9": [1, None, "two"]}


def require(what: str, value, wanted) -> None:
    if value != wanted:
        raise Failed(f"{what}: expected {wanted!r}, found {value!r}")


def check_cloud_events(world: World) -> None:
    """The SDK finds every attribute, the key and the data of each record, and nothing else."""
    inserted = {key: world.row(INSERT, key, json.dumps(payload)) for key, payload in PAYLOADS.items()}
    world.wait_until_sent()
    messages = world.messages()
    require("number of records", len(messages), len(inserted))
    for message in messages:
        headers = dict(message.headers())
        require("headers that occur once", len(headers), len(message.headers()))
        event = from_kafka_event(KafkaMessage(headers, message.key(), message.value()))
        key = message.key().decode()
        event_id, created_at = inserted.pop(key)
        wanted = {
            "specversion": "1.0",
            "id": event_id,
            "source": "/shop/order",
            "type": "order.paid",
            "subject": key,
            "time": created_at,
            "datacontenttype": "application/json",
            "partitionkey": key,
        }
        require(f"attributes of the event of {key}", event.get_attributes(), wanted)
        require(f"data of the event of {key}", event.get_data(), PAYLOADS[key])
        require(f"header traceparent of {key}", headers["traceparent"], b"00-ab")
    require("events without a record", list(inserted), [])
