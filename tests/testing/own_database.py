"""A user's test file on a database of the user's own (`test_plugin.py`)."""

from __future__ import annotations

import os

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from outbox import Scope
from tests.testing.charging import CARD, CHARGE
from workers.testing import OutboxBox


@pytest.fixture
def outbox_database_url() -> str:
    return os.environ["DATABASE_OF_MY_TESTS"]


@pytest.mark.parametrize("nth", [1, 2])
def test_each_test_begins_with_an_empty_ledger_and_keeps_other_tables(
    outbox_box: OutboxBox, nth: int, request: pytest.FixtureRequest
) -> None:
    assert "outbox_servers" not in request.fixturenames
    engine = create_engine(outbox_box.database_url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS mine (nth int)"))
        connection.execute(text("INSERT INTO mine VALUES (:nth)"), {"nth": nth})
        assert connection.execute(text("SELECT count(*) FROM mine")).scalar() == nth
        assert connection.execute(text("SELECT count(*) FROM outbox.intents")).scalar() == 0
        scope = Scope(tenant="acme", run_id="run-1")
        intent = outbox_box.outbox.enqueue(
            connection, CHARGE, scope, {**CARD, "invoice_id": "in_1"}
        )
    assert outbox_box.clock.offset == 0
    outbox_box.drain()
    outbox_box.assert_one_effect(intent)
    outbox_box.travel(60)
