"""The examples for FastAPI and Django, each as a process of its own over HTTP: its own table, its
own transaction, the vendor's events at its own route."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from outbox import Outbox, Scope
from resolvers import joining
from tests.adoption.served import ROOT, UVICORN, WSGI, App, env_of, serving
from tests.cli.desk import SCRIPT
from tests.examples.charge import charge as CHARGE
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


def test_bad_input_is_answered_with_its_field_and_takes_the_applications_own_write_back(
    shop: Shop,
) -> None:
    for path, body, field in (
        ("in_1", {**CARD, "amount": "lots"}, "args.amount"),
        ("in_1", {**CARD, "amount": 10**40}, "args.amount"),
        ("in_1%00", CARD, "args.invoice_id"),
    ):
        status, said = shop.app.post(f"/invoices/{path}/charge", body)
        assert (status, json.loads(said["text"])["fields"]) == (422, [field])
    status, _ = shop.app.post("/invoices/in_1/charge", [CARD])
    assert status == 422, "no object at all"
    assert (shop.invoices(), shop.intents()) == ({}, [])


def test_another_amount_for_the_same_invoice_is_a_conflict_and_changes_nothing(shop: Shop) -> None:
    shop.app.charge(shop.floor, "in_1")
    status, said = shop.app.post("/invoices/in_1/charge", {**CARD, "amount": 1})
    assert (status, json.loads(said["text"])["fields"]) == (409, ["amount"])
    assert len(shop.floor.posts()) == 1
    assert (shop.book(), shop.invoices()) == (1, {"in_1": "paid"})


def test_a_retry_after_the_result_was_booked_leaves_it_booked(shop: Shop) -> None:
    """The answer was lost on its way, or an agent asks once more."""
    shop.app.charge(shop.floor, "in_1")
    assert shop.book() == 1
    assert shop.app.charge(shop.floor, "in_1")["deduplicated"]
    assert (shop.book(), shop.invoices()) == (0, {"in_1": "paid"})
    assert len(shop.floor.posts()) == 1


def test_results_of_others_are_passed_by_and_hold_up_none(shop: Shop) -> None:
    """Another tenant's invoice of the same name, one that is not in the table, another tool's."""
    refund = replace(CHARGE, name="refund_invoice")
    other = replace(CHARGE, name="buy_label", identity=("label",))
    numbered = {**CARD, "invoice_id": 7}
    with psycopg.connect(shop.floor.settings.database_url.replace("+psycopg", "")) as connection:
        for tool, tenant, args in (
            (CHARGE, "globex", {**CARD, "invoice_id": "in_1"}),
            (CHARGE, "acme", {**CARD, "invoice_id": "elsewhere"}),
            (CHARGE, "acme", numbered),
            (refund, "acme", {**CARD, "invoice_id": "in_1"}),
            (other, "acme", {**CARD, "label": "l_1"}),
        ):
            Outbox(shop.floor.settings).enqueue(
                connection, tool, Scope(tenant=tenant, run_id="other"), args
            )
    shop.floor.settle()
    shop.floor.sql("INSERT INTO invoices VALUES ('in_1', 'open')")
    assert (shop.book(), shop.invoices()) == (5, {"in_1": "open"})
    shop.floor.sql("DELETE FROM invoices")
    shop.app.charge(shop.floor, "in_2")
    assert (shop.book(), shop.invoices()) == (1, {"in_2": "paid"})


def test_the_script_and_its_consumer_stand_a_retry_bad_input_and_results_of_others(
    floor: Floor,
) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words], cwd=ROOT, env=env_of(floor, OUTBOX_WAIT_S="0.1"),
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    def book() -> list[dict[str, Any]]:
        floor.settle()
        done = run(str(SCRIPT), "consume", "tests.examples.billing:apply",
                   "--consumer", "billing", "--once")  # fmt: skip
        assert done.returncode == 0, done.stderr
        return floor.sql("SELECT id, status FROM invoices ORDER BY id")

    script = "-m", "tests.examples.charge"
    assert run(*script, "mine").returncode == 0
    floor.enqueue(1)  # of an invoice that is not in the table
    assert book() == [{"id": "mine", "status": "paid"}]
    assert run(*script, "mine").returncode == 0
    assert book() == [{"id": "mine", "status": "paid"}]
    assert len(floor.posts()) == 2
    refused = run(*script, "x" * 10_000)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "invoice_id: is longer than" in refused.stderr
