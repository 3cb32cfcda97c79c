"""A ledger after everything that may rightly happen: of all that, `doctor` finds nothing."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from click.testing import CliRunner
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from outbox import Outbox, Scope, WriteTool
from outbox.store import switches
from outbox.store.connection import Store
from resolvers import triage
from resolvers.doctoring import findings
from resolvers.health import release
from tests.cli.test_doctor import ROLES
from tests.workers.floor import CARD, SECRET, Floor, enqueue, in_lane, open_floor
from vendors.sandbox.client import Sandbox
from workers.cli import root

PER_TURN = WriteTool(
    "charge_per_turn",
    vendor="stripe",
    operation="payment_intents.create",
    side_effect="charge",
    identity=("invoice_id",),
    guard=("amount", "currency", "customer"),
    money=("amount", "currency"),
    once_per="epoch",
)

FAULTS = (
    "lost_ack",
    "lost_request",
    "half_body",
    "bad_gateway_after",
    "redelivery",
    "in_use_409",
    "rate_limited_429",
    "unavailable_503",
)


@pytest.fixture
def floor(database: str, sandbox: Sandbox) -> Iterator[Floor]:
    with open_floor(database, sandbox, OUTBOX_PAGERS="none") as opened:
        yield opened


def _everything(floor: Floor) -> None:
    """Answers of every kind, doubt that is settled in every way, and what people do."""
    account, sandbox = floor.account, floor.sandbox
    floor.enqueue(40)
    floor.drain()
    for fault in FAULTS:
        sandbox.fault(fault, account=account, times=2)
        floor.enqueue(3)
        floor.drain()
    sandbox.clear_faults()
    floor.enqueue(3, tool=in_lane("hold"))
    floor.enqueue(3, tool=in_lane("continue"))
    floor.enqueue(2, payment_method="pm_card_chargeDeclined")
    floor.settle()
    _turns(floor)
    # One that a person withdraws, one that a person is asked about, and some that wait.
    triage.cancel(floor.store, str(floor.one()), by="alice", reason="withdrawn")
    sandbox.fault("do_not_retry", account=account, times=1)
    floor.one()
    floor.drain()
    floor.escalate()
    floor.enqueue(2)


def _turns(floor: Floor) -> None:
    outbox = Outbox(floor.settings)
    with psycopg.connect(floor.settings.database_url.replace("+psycopg", "")) as connection:
        for turn in ("turn-1", "turn-2"):
            outbox.advance_epoch(connection, "acme", "talk", turn)
            scope = Scope(tenant="acme", run_id="talk", epoch=turn)
            outbox.enqueue(connection, PER_TURN, scope, {**CARD, "invoice_id": turn})
    outbox.close()


def _consume(floor: Floor) -> int:
    outbox, engine = Outbox(floor.settings), create_engine(floor.settings.database_url)
    with Session(engine) as session, session.begin():
        taken = len(outbox.settlements(session, "billing", limit=1000))
    engine.dispose()
    outbox.close()
    return taken


def test_of_a_busy_ledger_in_good_order_nothing_is_found(floor: Floor) -> None:
    enqueue(floor.settings, 1)
    _consume(floor)
    _everything(floor)
    assert _consume(floor) > 40
    floor.clock.remove()
    with floor.store.transaction() as tx:
        for role in ROLES:
            switches.beat(tx, role, "worker-1", {"release": release()})
    assert {row["status"] for row in floor.sql("SELECT DISTINCT status FROM outbox.intents")} == {
        "succeeded",
        "failed_poison",
        "cancelled",
        "unknown",
        "pending",
    }
    store = Store(floor.settings)
    found = findings(store, floor.directory)
    store.close()
    assert [f for f in found if not f.ok] == []
    assert len(found) > 50
    env = {
        "DATABASE_URL": floor.settings.database_url,
        "OUTBOX_PROFILE": "demo",
        "OUTBOX_PAGERS": "none",
        "STRIPE_API_KEY": floor.sandbox.api_key(floor.account),
        "STRIPE_WEBHOOK_SECRET": SECRET,
        "STRIPE_API_BASE": floor.sandbox.url,
    }
    ran = CliRunner(env=env).invoke(root, ["doctor"])
    assert (ran.exit_code, ran.stdout) == (0, "check\trule\tok\tcount\tdetail\tsample\n")
