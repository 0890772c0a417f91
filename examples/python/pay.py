"""Pays an order. The change and its event are committed together, or neither is."""

import os
import sys
from uuid import UUID

import psycopg
from psycopg.types.json import Json


def pay(connection: psycopg.Connection, order_id: int) -> UUID:
    with connection.transaction():
        # Lock the order first, so that the writers of this key take turns and its events are in commit order.
        order = connection.execute(
            "UPDATE customer_order SET status = 'paid' WHERE id = %s AND status = 'placed' RETURNING customer, cents",
            [order_id],
        ).fetchone()
        if order is None:
            raise LookupError(f"order {order_id} does not exist or is already paid")
        customer, cents = order

        # Then insert the event in the same transaction.
        payload = {"order_id": order_id, "customer": customer, "cents": cents}
        (event_id,) = connection.execute(
            "SELECT outbox_enqueue('order', %s, 'OrderPaid', %s)", [str(order_id), Json(payload)]
        ).fetchone()

        # If the balance is too low, the CHECK constraint fails, and the order and the event are rolled back too.
        connection.execute("UPDATE account SET cents = cents - %s WHERE customer = %s", [cents, customer])
        return event_id


if __name__ == "__main__":
    # With autocommit, only `with connection.transaction()` begins a transaction, committed when its block ends.
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        print("committed event", pay(connection, int(sys.argv[1])))
