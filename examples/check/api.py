"""The HTTP API with idempotency keys: replay, mismatch, refusal, a failed commit, a request in progress,
a client that disconnects, and a kill."""

import http.client
import socket
import threading
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

    def start(self, database: str | None = None) -> None:
        """With another address of PostgreSQL, if it is given."""
        world, env = self.scenario.world, self.scenario.world.env()
        if database:
            env["DATABASE_URL"] = env["DATABASE_URL"].replace(world.server, database)
        self.process = world.processes.start(self.command, world.folder, env, world.log("api"))
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
    for key in ("a\tb", "schl\u00fcssel"):
        scenario.require(f"status of the key {key!r}", api.post(order, key)[0], 400)
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


class SlowNetwork:
    """Passes everything between the API and PostgreSQL. The answers of PostgreSQL wait while `flows` is cleared."""

    def __init__(self, server: str):
        host, port = server.split(":")
        self.server, self.flows = (host, int(port)), threading.Event()
        self.flows.set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            client = self.listener.accept()[0]
            server = socket.create_connection(self.server)
            threading.Thread(target=self.copy, args=(client, server, None), daemon=True).start()
            threading.Thread(target=self.copy, args=(server, client, self.flows), daemon=True).start()

    @staticmethod
    def copy(source: socket.socket, target: socket.socket, flows: threading.Event | None) -> None:
        try:
            while received := source.recv(65536):
                if flows:
                    flows.wait()
                target.sendall(received)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # one of the two has closed the connection


def check_disconnected(api: Api) -> None:
    """The client disconnects after PostgreSQL has locked its key, and before the API knows. A retry need not wait for the lock."""
    scenario, world = api.scenario, api.scenario.world
    network = SlowNetwork(world.server)
    world.processes.kill(api.process)
    api.start(network.address)
    warm, cents = scenario.new_order()
    scenario.require("status through the slow network", api.post(warm, "key-6")[0], 201)
    scenario.paid[warm] = cents
    order, cents = scenario.new_order()
    network.flows.clear()
    with socket.create_connection(("127.0.0.1", api.port)) as client:
        head = f"POST /orders/{order}/payment HTTP/1.1\r\nHost: shop\r\nIdempotency-Key: key-7\r\n"
        client.sendall(f"{head}Content-Length: {len(BODY)}\r\n\r\n{BODY}".encode())
        wait_until("the key is locked", lambda: world.value("SELECT count(*) = 1 FROM idempotency_key WHERE key = 'key-7'"))
    network.flows.set()
    # If the API notices too late, it has paid the order, and the retry gets the stored response.
    released = """SELECT count(*) = 0 FROM idempotency_key
                  WHERE key = 'key-7' AND finished_at IS NULL AND locked_until > clock_timestamp()"""
    wait_until("the key is released, long before its lock of 30 s expires", lambda: world.value(released), 15)
    scenario.require("status of the retry", api.post(order, "key-7")[0], 201)
    scenario.paid[order] = cents
    scenario.check_order(order, "paid", 1)


def check_api(scenario, command: list[str]) -> None:
    api = Api(scenario, command)
    for check in (
        check_replay,
        check_refused,
        check_failed_commit,
        check_in_progress,
        check_disconnected,
        check_killed,
    ):
        check(api)
    scenario.check_topic()
