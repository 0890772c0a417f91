"""Pays an order with SQLAlchemy. The event is an object of the session."""

import os
import sys
import uuid

from sqlalchemy import JSON, BigInteger, Identity, create_engine, make_url
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column


class Base(DeclarativeBase):
    pass


class OutboxEvent(Base):
    """The columns that an application may set, and the generated id. Do not map created_at and sent_at."""

    __tablename__ = "outbox"
    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    event_id: Mapped[uuid.UUID] = mapped_column(default=uuid.uuid4)
    aggregate_type: Mapped[str]
    aggregate_id: Mapped[str]
    event_type: Mapped[str]
    # Without none_as_null, None becomes the JSON value null.
    payload: Mapped[dict | None] = mapped_column(JSON(none_as_null=True))
    headers: Mapped[dict | None] = mapped_column(JSONB(none_as_null=True))


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


def pay(session: Session, order_id: int) -> OutboxEvent:
    # A flush does not keep the order of these lines, so lock the order with the first statement. populate_existing: the session may
    # have read the order before another payment committed.
    order = session.get_one(Order, order_id, with_for_update=True, populate_existing=True)
    if order.status != "placed":
        raise LookupError(f"order {order_id} is already paid")
    order.status = "paid"
    event = OutboxEvent(
        aggregate_type="order",
        aggregate_id=str(order.id),
        event_type="OrderPaid",
        payload={"order_id": order.id, "customer": order.customer, "cents": order.cents},
    )
    session.add(event)
    account = session.get_one(Account, order.customer)
    account.cents = Account.cents - order.cents  # an expression, so the database subtracts
    session.flush()
    return event


if __name__ == "__main__":
    engine = create_engine(make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+psycopg"))
    with Session(engine) as session, session.begin():
        event = pay(session, int(sys.argv[1]))
        ids = event.id, event.event_id
    print("committed event", *ids)
