"""Adds up the payments of each customer. A record that arrives again changes nothing."""

import json
import os
import signal

import psycopg
from confluent_kafka import Consumer, KafkaException, Message

SUBSCRIBER = "totals-python"  # the consumer group, and the name in the inbox


def process(connection: psycopg.Connection, message: Message) -> None:
    headers = dict(message.headers() or [])  # values are bytes, and those of other headers may not be text
    if headers["event_type"] != b"OrderPaid":
        return
    event_id, event = headers["event_id"].decode(), json.loads(message.value())
    with connection.transaction():
        # The mark and the effect are in one transaction. If the event is already marked, its effect has been committed.
        (first,) = connection.execute("SELECT inbox_receive(%s, %s)", [SUBSCRIBER, event_id]).fetchone()
        if first:
            connection.execute(
                """INSERT INTO customer_total AS t VALUES (%(customer)s, %(cents)s)
                   ON CONFLICT (customer) DO UPDATE SET cents = t.cents + excluded.cents""",
                event,
            )
    print("added" if first else "duplicate", event_id, flush=True)


def main() -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": os.environ["KAFKA"],
            "group.id": SUBSCRIBER,
            "auto.offset.reset": "earliest",  # a new group reads the records that are already there
            "enable.auto.commit": False,  # offsets are committed after the effect
            "session.timeout.ms": 10_000,  # after a crash, another consumer takes over after this time
        }
    )
    consumer.subscribe([os.environ["TOPIC"]])
    stopping = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.append(True))
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        while not stopping:
            message = consumer.poll(0.5)
            if message is None:
                continue
            if message.error():
                raise KafkaException(message.error())
            process(connection, message)  # an exception ends the program; after a restart, the record is read again
            consumer.commit(message, asynchronous=False)
    consumer.close()


if __name__ == "__main__":
    main()
