"""What every language must show: a rolled-back transaction, a duplicate delivery and a killed consumer."""

import json
import signal
import subprocess

import psycopg

from pages import Page
from processes import Failed, wait_until
from world import ADA, NO_SESSIONS, WAITING, World

TOO_MUCH = 10**9  # more than any account has


class Scenario:
    def __init__(self, world: World, page: Page):
        self.world, self.page = world, page
        self.pay_commands, self.consume = page.pay(), page.consume()
        self.next_order = 100
        self.paid: dict[str, int] = {}  # the cents of each paid order
        self.consumers = 0

    def require(self, what: str, is_value, wanted) -> None:
        if is_value != wanted:
            logs = self.world.logs
            raise Failed(f"{what}: expected {wanted!r}, found {is_value!r}; logs are in {logs}")

    # --- The page ---

    def read_page(self) -> None:
        """Runs the commands of the page as they are. They pay the first orders of shop.sql, but not the last."""
        for number, block in enumerate(self.page.blocks):
            if block.name not in ("pay", "refused", "arrived"):
                continue
            log = self.world.log(f"page-{number}")
            code = self.world.run_shell(block.text, log)
            self.require(f"{block.text!r} succeeds", code == 0, block.name != "refused")
            output = log.read_text()
            if not block.fits(output):
                raise Failed(f"{block.text!r} prints\n{output}\nand not\n{block.prints}")
            if block.name != "arrived":
                order = block.command()[-1]
                cents = self.world.value("SELECT cents FROM customer_order WHERE id = %s", order)
                self.paid |= {order: cents} if code == 0 else {}
                self.check_order(order, "paid" if code == 0 else "placed", 1 if code == 0 else 0)

    # --- Paying ---

    def new_order(self, cents: int | None = None) -> tuple[str, int]:
        self.next_order += 1
        cents = cents or self.next_order
        self.world.sql.execute(
            "INSERT INTO customer_order (id, customer, cents) VALUES (%s, %s, %s)", [self.next_order, ADA, cents]
        )
        return str(self.next_order), cents

    def run_pay(self, command: list[str], order: str) -> bool:
        world = self.world
        return world.processes.run([*command, order], world.folder, world.env(), world.log("pay")) == 0

    def pay(self, command: list[str]) -> str:
        order, cents = self.new_order()
        self.require(f"{command} pays order {order}", self.run_pay(command, order), True)
        self.paid[order] = cents
        self.check_order(order, "paid", 1)
        return order

    def check_order(self, order: str, status: str, events: int) -> None:
        value = self.world.value
        self.require(f"status of order {order}", value("SELECT status FROM customer_order WHERE id = %s", order), status)
        count = value("SELECT count(*) FROM outbox WHERE aggregate_id = %s", order)
        self.require(f"events of order {order}", count, events)
        spent = value("SELECT 100000 - cents FROM account WHERE customer = %s", ADA)
        self.require("cents taken from the account", spent, sum(self.paid.values()))

    def check_pay(self, command: list[str]) -> None:
        order = self.pay(command)
        too_much, _ = self.new_order(TOO_MUCH)
        self.require(f"{command} reports that order {too_much} is refused", self.run_pay(command, too_much), False)
        self.check_order(too_much, "placed", 0)
        self.require(f"{command} reports that order {order} is paid already", self.run_pay(command, order), False)
        self.check_order(order, "paid", 1)

    def check_topic(self) -> None:
        """Each paid order, and no other, has one event in Kafka, complete, and possibly several times."""
        self.world.wait_until_sent()
        keys = {}
        for key, payload, headers in self.world.records():
            cents = self.paid.get(key)
            wanted = {"order_id": int(key), "customer": ADA, "cents": cents}
            self.require(f"payload of order {key}", json.loads(payload), wanted)
            self.require("header event_type", headers["event_type"], "OrderPaid")
            keys.setdefault(key, set()).add(headers["event_id"])
        self.require("orders with records", sorted(keys), sorted(self.paid))
        for key, ids in keys.items():
            stored = self.world.value("SELECT event_id::text FROM outbox WHERE aggregate_id = %s", key)
            self.require(f"event ids of order {key}", ids, {stored})

    # --- Consuming ---

    def start_consumer(self) -> subprocess.Popen:
        world = self.world
        self.consumers += 1
        return world.processes.start(self.consume, world.folder, world.env(), world.log(f"consume-{self.consumers}"))

    def stop(self, consumer: subprocess.Popen) -> None:
        code = self.world.processes.stop(consumer)
        self.require("the consumer ends cleanly on SIGTERM", code in (0, 143), True)  # 143 is what a JVM returns

    def wait_until_consumed(self, what: str) -> None:
        """Waits until the consumer has committed every offset, then checks that each payment was added once."""
        world, records = self.world, len(self.world.records())
        wait_until(f"{what}: the consumer reads the topic", lambda: world.committed() == records)
        self.require(f"{what}: total of the payments", world.total(), sum(self.paid.values()))
        marks = world.value("SELECT count(*) FROM processed_message WHERE subscriber = %s", world.group)
        self.require(f"{what}: events in the inbox", marks, len(self.paid))

    def check_duplicate(self) -> None:
        """The relay publishes an event again, with the same event id."""
        before = len(self.world.records())
        order = min(self.paid)
        self.world.sql.execute("UPDATE outbox SET sent_at = NULL WHERE aggregate_id = %s", [order])
        self.world.wait_until_sent()
        self.pay(self.pay_commands[0])
        self.world.wait_until_sent()
        keys = [key for key, _, _ in self.world.records()]
        self.require(f"records, with order {order} twice", (len(keys), keys.count(order)), (before + 2, 2))
        self.wait_until_consumed("duplicate")

    def check_kill(self, consumer: subprocess.Popen) -> None:
        """The consumer is killed in its transaction: before the commit, and before the offset of the record."""
        world, before = self.world, self.world.total()
        with psycopg.connect(world.url("postgres")) as other:
            other.execute("SELECT FROM customer_total FOR UPDATE")
            self.pay(self.pay_commands[0])
            wait_until("the consumer waits for the row", lambda: world.value(WAITING))
            consumer.send_signal(signal.SIGKILL)
            consumer.wait()
            other.rollback()
        wait_until("PostgreSQL rolls back for the killed consumer", lambda: world.value(NO_SESSIONS))
        # PostgreSQL notices the closed connection when it answers. A statement with autocommit would have been committed.
        self.require("total after the kill", world.total(), before)

    def run(self) -> None:
        self.read_page()
        for command in self.pay_commands:
            self.check_pay(command)
        self.check_topic()
        if self.consume is None:  # Rust, whose consumer is in examples/payments
            return
        consumer = self.start_consumer()
        self.wait_until_consumed("first run")
        self.check_duplicate()
        self.check_kill(consumer)
        consumer = self.start_consumer()
        self.wait_until_consumed("after the kill")
        self.stop(consumer)
        # A consumer that dies after the commit and before the offset leaves the same: records that had their effect.
        self.world.rewind()
        consumer = self.start_consumer()
        self.wait_until_consumed("all records again")
        self.check_topic()
        self.stop(consumer)
