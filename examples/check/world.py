"""Where the programs of one language run: their own database, topic and relay."""

import os
import socket
import threading
from pathlib import Path

import psycopg
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from processes import WITHIN, Failed, Processes, wait_until

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = ROOT / "examples" / "shop.sql"
ADA = "ada"

# Whether a program waits for a lock, and whether none is connected.
SESSIONS = "FROM pg_stat_activity WHERE datname = current_database() AND usename = 'shop'"
WAITING = f"SELECT count(*) = 1 {SESSIONS} AND wait_event_type = 'Lock'"
NO_SESSIONS = f"SELECT count(*) = 0 {SESSIONS}"

roles = threading.Lock()  # the roles belong to the server, so only one world at a time may change them


# The command of Kafka's distributions that the pages use.
CONSOLE_CONSUMER = """#!/bin/sh
exec java -XX:TieredStopAtLevel=1 -XX:SharedArchiveFile="$OUTBOX_RELAY_TEST_KAFKA_CLASSES" \\
    -Dorg.slf4j.simpleLogger.defaultLogLevel=error \\
    -cp "$OUTBOX_RELAY_TEST_KAFKA_LIB/*" org.apache.kafka.tools.consumer.ConsoleConsumer "$@" 2>/dev/null
"""


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()[1]


class World:
    def __init__(
        self,
        name: str,
        folder: Path,
        logs: Path,
        variables: list[str],
        processes: Processes,
        relay: dict[str, str] | None = None,
    ):
        self.relay = relay or {}  # more environment variables of the relay
        self.folder, self.logs, self.variables, self.processes = folder, logs, variables, processes
        own = f"examples_{name}_{os.getpid()}"
        self.database, self.topic, self.aggregates = own, f"{own}.order", own + ".{aggregate_type}"
        self.admin_url = os.environ["OUTBOX_RELAY_TEST_POSTGRES_URL"]
        self.server = self.admin_url.split("@")[1].split("/")[0]
        self.kafka = os.environ["OUTBOX_RELAY_TEST_KAFKA"]
        self.admin = AdminClient({"bootstrap.servers": self.kafka, "log_level": 3})
        self.listen = f"127.0.0.1:{free_port()}"  # of the API
        self.group = f"totals-{name}"  # in the program, and its name in the inbox
        with psycopg.connect(self.admin_url, autocommit=True) as server:
            server.execute(f"CREATE DATABASE {self.database}")
        self.sql = psycopg.connect(self.url("postgres"), autocommit=True)
        self.admin.create_topics([NewTopic(self.topic, 1, 1)])[self.topic].result(WITHIN)

    def url(self, role: str) -> str:
        return f"postgres://{role}@{self.server}/{self.database}"

    def env(self) -> dict[str, str]:
        """The variables of the programs that the page sets, with other addresses."""
        values = {
            "DATABASE_URL": self.url("shop"),
            "JDBC_URL": f"jdbc:postgresql://{self.server}/{self.database}?user=shop",
            "KAFKA": self.kafka,
            "TOPIC": self.topic,
            "LISTEN": self.listen,
        }
        return {name: values[name] for name in self.variables}

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def start(self) -> None:
        """Creates the tables and the roles as on the pages, and starts the relay."""
        relay = [os.environ["RELAY"]]
        env = {
            "OUTBOX_RELAY_CONFIG": "",
            "OUTBOX_RELAY__KAFKA__BOOTSTRAP_SERVERS": self.kafka,
            "OUTBOX_RELAY__OUTBOX__TOPIC": self.aggregates,
            "OUTBOX_RELAY__ADMIN__LISTEN": "off",
            **self.relay,
        }
        as_admin = {**env, "OUTBOX_RELAY__POSTGRES__URL": self.url("postgres")}
        self.must_run([*relay, "migrate", "--with", "inbox,idempotency"], as_admin, "migrate")
        self.must_run([*relay, "migrate", "--print-roles"], as_admin, "roles")
        with roles:
            self.sql.execute(self.log("roles").read_text())
            self.sql.execute(SCHEMA.read_text())
        as_relay = {**env, "OUTBOX_RELAY__POSTGRES__URL": self.url("outbox_relay")}
        self.processes.start([*relay, "run"], self.folder, as_relay, self.log("relay"))

    def run_shell(self, text: str, log: Path) -> int:
        """Runs a block of the page, with the variables that the page sets."""
        programs = self.logs / "programs"
        programs.mkdir(exist_ok=True)
        tool = programs / "kafka-console-consumer.sh"
        tool.write_text(CONSOLE_CONSUMER)
        tool.chmod(0o755)
        env = {**self.env(), "PATH": f"{programs}:{os.environ['PATH']}"}
        return self.processes.run(["bash", "-euo", "pipefail", "-c", text], self.folder, env, log)

    def must_run(self, command: list[str], env: dict[str, str], name: str) -> None:
        if self.processes.run(command, self.folder, env, self.log(name)) != 0:
            raise Failed(f"{' '.join(command)} failed:\n{self.log(name).read_text()}")

    def end(self) -> None:
        """Ends all processes, and deletes what the servers would keep."""
        self.processes.kill_all()
        self.sql.close()
        with psycopg.connect(self.admin_url, autocommit=True) as server:
            server.execute(f"DROP DATABASE {self.database} WITH (FORCE)")
        self.admin.delete_topics([self.topic])[self.topic].result(WITHIN)

    # --- What is in the database ---

    def row(self, query: str, *values):
        return self.sql.execute(query, values).fetchone()

    def value(self, query: str, *values):
        row = self.row(query, *values)
        return row and row[0]

    def total(self) -> int:
        return self.value("SELECT coalesce(sum(cents), 0)::bigint FROM customer_total") or 0

    def wait_until_sent(self) -> None:
        wait_until(
            "the relay publishes all events",
            lambda: self.value("SELECT count(*) FROM outbox WHERE sent_at IS NULL") == 0,
        )

    # --- What is in Kafka ---

    def records(self) -> list[tuple[str, str, dict[str, str]]]:
        """The key, value and headers of every record of the topic."""

        def decoded(message: Message) -> tuple[str, str, dict[str, str]]:
            headers = {name: value.decode() for name, value in message.headers()}
            return message.key().decode(), message.value().decode(), headers

        return [decoded(message) for message in self.messages()]

    def messages(self) -> list[Message]:
        """Every record of the topic."""
        reader = Consumer({"bootstrap.servers": self.kafka, "group.id": "none", "enable.auto.commit": False, "log_level": 3})
        try:
            partition = TopicPartition(self.topic, 0, 0)
            _, end = reader.get_watermark_offsets(partition, timeout=WITHIN)
            reader.assign([partition])
            messages = []
            while len(messages) < end:
                message = reader.poll(WITHIN)
                if message is None or message.error():
                    raise Failed(f"the topic cannot be read: {message and message.error()}")
                messages.append(message)
            return messages
        finally:
            reader.close()

    def committed(self) -> int:
        """The offset that the consumer group has committed; 0 if there is none."""
        request = ConsumerGroupTopicPartitions(self.group, [TopicPartition(self.topic, 0)])
        answer = self.admin.list_consumer_group_offsets([request])[self.group].result(WITHIN)
        return max(answer.topic_partitions[0].offset, 0)

    def rewind(self) -> None:
        """Makes the group read the topic again. Kafka allows it as soon as the group has no members."""

        def done():
            request = ConsumerGroupTopicPartitions(self.group, [TopicPartition(self.topic, 0, 0)])
            try:
                answer = self.admin.alter_consumer_group_offsets([request])[self.group].result(WITHIN)
            except Exception:  # the group still has a member
                return False
            return answer.topic_partitions[0].error is None

        wait_until("the consumer has left its group", done)
