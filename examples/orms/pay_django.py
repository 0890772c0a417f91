"""Pays an order with Django. The event is an instance of a model."""

import os
import sys
import uuid
from urllib.parse import parse_qsl, unquote, urlsplit

import django
from django.conf import settings

url = urlsplit(os.environ["DATABASE_URL"])
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": unquote(url.path[1:]),
            "USER": unquote(url.username or ""),
            "PASSWORD": unquote(url.password or ""),
            "HOST": url.hostname,
            "PORT": url.port or "",
            "OPTIONS": dict(parse_qsl(url.query)),  # such as sslmode
        }
    }
)
django.setup()

from django.db import models, transaction  # noqa: E402
from django.db.models import F  # noqa: E402


class OutboxEvent(models.Model):
    """The columns that an application may set, and the generated id. Leave out created_at and sent_at."""

    id = models.BigAutoField(primary_key=True)
    event_id = models.UUIDField(default=uuid.uuid4)
    aggregate_type = models.TextField()
    aggregate_id = models.TextField()
    event_type = models.TextField()
    payload = models.JSONField(null=True)
    headers = models.JSONField(null=True)

    class Meta:
        app_label = "shop"
        db_table = "outbox"
        managed = False  # `outbox-relay migrate` creates the table


class Account(models.Model):
    customer = models.TextField(primary_key=True)
    cents = models.BigIntegerField()

    class Meta:
        app_label = "shop"
        db_table = "account"
        managed = False


class Order(models.Model):
    id = models.BigIntegerField(primary_key=True)
    customer = models.TextField()
    cents = models.BigIntegerField()
    status = models.TextField()

    class Meta:
        app_label = "shop"
        db_table = "customer_order"
        managed = False


@transaction.atomic
def pay(order_id: int) -> OutboxEvent:
    # Lock the order first, so that the writers of this key take turns and its events are in commit order.
    order = Order.objects.select_for_update().get(id=order_id, status="placed")
    order.status = "paid"
    order.save()
    event = OutboxEvent.objects.create(
        aggregate_type="order",
        aggregate_id=str(order.id),
        event_type="OrderPaid",
        payload={"order_id": order.id, "customer": order.customer, "cents": order.cents},
    )
    Account.objects.filter(customer=order.customer).update(cents=F("cents") - order.cents)
    return event


if __name__ == "__main__":
    event = pay(int(sys.argv[1]))
    print("committed event", event.id, event.event_id)
