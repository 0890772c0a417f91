"""Pays an order with SQLAlchemy. The change and its event are committed together, or neither is."""

import os
import sys
from uuid import UUID

from sqlalchemy import JSON, create_engine, func, literal, make_url
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "account"
    customer: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int]


class Order(Base):
    __tablename__ = "customer_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    cents: Mapped[int]
    status: Mapped[str]


def pay(session: Session, order_id: int) -> UUID:
    # Lock the order first, so that the writers of this key take turns and its events are in commit order.
    # populate_existing: the session may have read the order before another payment committed.
    order = session.get_one(Order, order_id, with_for_update=True, populate_existing=True)
    if order.status != "placed":
        raise LookupError(f"order {order_id} is already paid")
    order.status = "paid"

    # Then insert the event in the same transaction.
    payload = {"order_id": order.id, "customer": order.customer, "cents": order.cents}
    event_id = session.scalar(func.outbox_enqueue("order", str(order.id), "OrderPaid", literal(payload, JSON)))

    # If the balance is too low, the CHECK constraint fails, and the order and the event are rolled back too.
    account = session.get_one(Account, order.customer)
    account.cents = Account.cents - order.cents  # an expression, so the database subtracts
    return event_id


if __name__ == "__main__":
    engine = create_engine(make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+psycopg"))
    with Session(engine) as session, session.begin():  # commits at the end, or rolls back on an exception
        event_id = pay(session, int(sys.argv[1]))
    print("committed event", event_id)
