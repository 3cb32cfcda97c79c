"""The examples for FastAPI and Django, each as a process of its own over HTTP: its own table, its
own transaction, the vendor's events at its own route."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from resolvers import joining
from tests.adoption.served import ROOT, UVICORN, WSGI, App, env_of, serving
from tests.workers.floor import CARD, SECRET, Floor, wait_until

pytestmark = pytest.mark.heavy


class Shop:
    """One of the two applications."""

    def __init__(self, app: App, floor: Floor, kind: str) -> None:
        self.app, self.floor, self.kind = app, floor, kind
        prefix = "/outbox" if kind == "fastapi" else ""
        self.webhook_url = f"{app.url}{prefix}/webhooks/stripe/default"

    def book(self) -> int:
        """Runs what carries results into the invoices; returns how many there were."""
        if self.kind == "fastapi":
            status, body = self.app.post("/results")
            assert status == 200, self.app.said
            return int(body["booked"])
        done = subprocess.run(
            [
                *(sys.executable, "-c"),
                "from tests.examples.django_app import book_results; print(book_results())",
            ],
            cwd=ROOT,
            env=dict(self.app.env),
            capture_output=True,
            text=True,
            check=True,
        )
        return int(done.stdout)

    def invoices(self) -> dict[str, str]:
        """The application's own table."""
        rows = self.floor.sql("SELECT id, status FROM invoices")
        return {row["id"]: row["status"] for row in rows}

    def intents(self) -> list[dict[str, Any]]:
        return self.floor.sql("SELECT * FROM outbox.intents ORDER BY seq")


@pytest.fixture(params=["fastapi", "django"])
def shop(request: pytest.FixtureRequest, floor: Floor) -> Iterator[Shop]:
    floor.sql("CREATE TABLE invoices (id text PRIMARY KEY, status text NOT NULL)")
    command = UVICORN if request.param == "fastapi" else WSGI
    with serving(command, env_of(floor)) as app:
        yield Shop(app, floor, request.param)


def test_an_invoice_is_charged_once_however_often_it_is_asked_for_and_booked_once(
    shop: Shop,
) -> None:
    first = shop.app.charge(shop.floor, "in_1")
    again = shop.app.charge(shop.floor, "in_1")
    assert (first["state"], first["business_status"]) == ("settled", "paid")
    assert again == {**first, "deduplicated": True}
    assert len(shop.floor.posts()) == 1
    assert shop.invoices() == {"in_1": "collecting"}
    assert (shop.book(), shop.book()) == (1, 0)
    assert shop.invoices() == {"in_1": "paid"}


def test_a_lost_answer_is_closed_by_the_event_at_the_applications_own_route(shop: Shop) -> None:
    shop.floor.sandbox.fault("lost_ack", account=shop.floor.account, times=1)
    shop.floor.sandbox.add_endpoint(shop.floor.account, shop.webhook_url, SECRET)
    assert shop.app.charge(shop.floor, "in_1")["state"] == "unknown"
    assert shop.floor.sandbox.wait_for_deliveries(shop.floor.account)
    answers = {d["status"] for d in shop.floor.sandbox.deliveries(shop.floor.account)}
    assert answers == {200}
    (intent,) = shop.intents()

    def joined() -> bool:
        joining.join_once(shop.floor.store, shop.floor.directory)
        return shop.floor.status(intent["id"]) == "succeeded"

    wait_until(joined)
    assert len(shop.floor.posts()) == 1
    assert shop.floor.row(intent["id"])["settled_by"] == "webhook"
    assert shop.book() == 1
    assert shop.invoices() == {"in_1": "paid"}


def test_a_forged_event_is_refused_at_the_applications_route_and_stores_nothing(
    shop: Shop,
) -> None:
    status, _ = shop.app.post(shop.webhook_url.removeprefix(shop.app.url), {"id": "evt_1"})
    assert status == 400
    assert shop.floor.sql("SELECT id FROM outbox.webhook_inbox") == []


def test_a_charge_that_is_refused_takes_the_applications_own_write_back_with_it(
    shop: Shop,
) -> None:
    body = {**CARD, "amount": "lots"}
    status, _ = shop.app.post("/invoices/in_1/charge", body)
    assert status == 500
    assert (shop.invoices(), shop.intents()) == ({}, [])
