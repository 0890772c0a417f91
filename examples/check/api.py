"""The HTTP API with idempotency keys: replay, mismatch, refusal, a failed commit, a request in progress, and a kill."""

import http.client
import socket
from concurrent.futures import ThreadPoolExecutor

import psycopg

from processes import WITHIN, wait_until
from world import NO_SESSIONS, WAITING

BODY = '{"note": "a gift"}'


class Api:
    def __init__(self, scenario, command: list[str]):
        self.scenario, self.command = scenario, command
        self.port = int(scenario.world.listen.split(":")[1])
        self.start()

    def start(self) -> None:
        world = self.scenario.world
        self.process = world.processes.start(self.command, world.folder, world.env(), world.log("api"))
        wait_until("the API listens", self.listens)

    def listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def post(self, order: str, key: str | None, body: str = BODY) -> tuple[int, bytes, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WITHIN)
        headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {})
        connection.request("POST", f"/orders/{order}/payment", body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}


def check_replay(api: Api) -> None:
    scenario = api.scenario
    order, cents = scenario.new_order()
    scenario.require("status without a key", api.post(order, None)[0], 400)
    scenario.check_order(order, "placed", 0)
    first = api.post(order, "key-1")
    scenario.paid[order] = cents
    scenario.require("status of the first request", first[0], 201)
    again = api.post(order, "key-1")
    scenario.require("repeated response", again[:2], first[:2])
    replayed = (first[2].get("idempotent-replayed"), again[2].get("idempotent-replayed"))
    scenario.require("header Idempotent-Replayed", replayed, (None, "true"))
    scenario.require("status of another request with the key", api.post(order, "key-1", "{}")[0], 422)
    scenario.check_order(order, "paid", 1)


def check_refused(api: Api) -> None:
    """A refused payment is rolled back, and its key is released."""
    scenario = api.scenario
    order, _ = scenario.new_order(10**9)
    for attempt in ("first", "second"):
        scenario.require(f"status of the {attempt} refused request", api.post(order, "key-2")[0], 402)
    scenario.check_order(order, "placed", 0)


REFUSE_AT_COMMIT = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused at commit'; END $$;
CREATE CONSTRAINT TRIGGER refuse AFTER UPDATE ON account DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION refuse();
"""


def check_failed_commit(api: Api) -> None:
    """A commit that fails also discards the stored response, so the next attempt pays."""
    scenario, world = api.scenario, api.scenario.world
    order, cents = scenario.new_order()
    world.sql.execute(REFUSE_AT_COMMIT)
    scenario.require("status if the commit fails", api.post(order, "key-5")[0], 500)
    scenario.check_order(order, "placed", 0)
    world.sql.execute("DROP FUNCTION refuse CASCADE")
    scenario.require("status of the next attempt", api.post(order, "key-5")[0], 201)
    scenario.paid[order] = cents
    scenario.check_order(order, "paid", 1)


def check_in_progress(api: Api) -> None:
    scenario, world = api.scenario, api.scenario.world
    order, cents = scenario.new_order()
    with ThreadPoolExecutor(1) as background, psycopg.connect(world.url("postgres")) as other:
        other.execute("SELECT FROM customer_order WHERE id = %s FOR UPDATE", [order])
        first = background.submit(api.post, order, "key-3")
        begun = "SELECT count(*) = 1 FROM idempotency_key WHERE key = 'key-3'"
        wait_until("the first request has begun", lambda: world.value(begun))
        status, _, headers = api.post(order, "key-3")
        other.rollback()
        scenario.require("status while the first request runs", status, 409)
        scenario.require("Retry-After is 1 to 30", 1 <= int(headers["retry-after"]) <= 30, True)
        scenario.require("status of the first request", first.result(WITHIN)[0], 201)
    scenario.paid[order] = cents
    scenario.check_order(order, "paid", 1)


def check_killed(api: Api) -> None:
    """The API is killed in the transaction of a payment. After its lock has expired, the next attempt pays."""
    scenario, world = api.scenario, api.scenario.world
    order, cents = scenario.new_order()
    with ThreadPoolExecutor(1) as background, psycopg.connect(world.url("postgres")) as other:
        other.execute("SELECT FROM customer_order WHERE id = %s FOR UPDATE", [order])
        first = background.submit(api.post, order, "key-4")
        wait_until("the API waits for the order", lambda: world.value(WAITING))
        world.processes.kill(api.process)
        scenario.require("the killed API answers with an error", first.exception(WITHIN) is not None, True)
        other.rollback()
    wait_until("PostgreSQL rolls back for the killed API", lambda: world.value(NO_SESSIONS))
    scenario.check_order(order, "placed", 0)
    api.start()
    scenario.require("status while the lock is held", api.post(order, "key-4")[0], 409)
    world.sql.execute("UPDATE idempotency_key SET locked_until = now() WHERE key = 'key-4'")
    scenario.require("status of the next attempt", api.post(order, "key-4")[0], 201)
    scenario.paid[order] = cents
    scenario.check_order(order, "paid", 1)


def check_api(scenario, command: list[str]) -> None:
    api = Api(scenario, command)
    for check in (check_replay, check_refused, check_failed_commit, check_in_progress, check_killed):
        check(api)
    scenario.check_topic()
