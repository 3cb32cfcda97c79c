"""How `settle` lets time pass: nothing that would happen is left out, nobody is asked in vain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import psycopg
import pytest

from outbox import Scope
from tests.testing.test_box import charge
from tests.workers.floor import CARD, CHARGE, query
from vendors.sandbox.client import Sandbox
from workers.testing import OutboxBox

HOUR = 3600.0


@pytest.fixture
def listening(outbox_sandbox: Sandbox) -> Iterator[Sandbox]:
    yield outbox_sandbox
    outbox_sandbox.accept_connections(True)


class TestOfARowThatCanNeverBeSent:
    @pytest.fixture
    def outbox_env(self) -> Mapping[str, str]:
        """Fewer tries in the same time."""
        return {"OUTBOX_NOT_SENT_MAX_S": "300"}

    def test_it_is_tried_at_its_pace_and_asked_about_and_the_resolvers_rest_in_between(
        self, outbox_box: OutboxBox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A day of it took minutes: every resolver was asked twice at each of 1440 tries."""
        charge(outbox_box)
        query(outbox_box.database_url, "UPDATE outbox.intents SET request = '[]'")
        resolved = 0
        resolve = outbox_box.resolve

        def counted() -> int:
            nonlocal resolved
            resolved += 1
            return resolve()

        monkeypatch.setattr(outbox_box, "resolve", counted)
        assert not outbox_box.settle(within_s=5 * HOUR)
        (row,) = query(outbox_box.database_url, "SELECT attempts, status FROM outbox.intents")
        assert row["status"] == "pending"
        # 1, 2, 4 ... 256 s, and then every five minutes for the rest of five hours.
        assert 60 <= row["attempts"] <= 75
        (question,) = outbox_box.escalations()
        assert question["reasons"] == ["ttl"]
        assert len([p for p in outbox_box.pages() if p["action"] == "trigger"]) >= 1
        assert resolved < row["attempts"] / 2

    def test_another_row_beside_it_is_settled_as_soon_as_ever(self, outbox_box: OutboxBox) -> None:
        charge(outbox_box)
        query(outbox_box.database_url, "UPDATE outbox.intents SET request = '[]'")
        outbox_box.fault("lost_ack", attempts=[1])
        with psycopg.connect(outbox_box.database_url.replace("+psycopg", "")) as connection:
            scope = Scope(tenant="acme", run_id="run-2")
            good = outbox_box.outbox.enqueue(connection, CHARGE, scope, {**CARD, "invoice_id": "2"})
        assert not outbox_box.settle(within_s=60)
        outbox_box.assert_one_effect(good)


def test_rows_that_a_breaker_holds_are_settled_by_its_probe(
    outbox_box: OutboxBox, listening: Sandbox
) -> None:
    """They are all due already, and nothing else waits: it ended there, with the vendor back."""
    with psycopg.connect(outbox_box.database_url.replace("+psycopg", "")) as connection:
        for number in range(12):
            args = {**CARD, "invoice_id": f"in_{number}"}
            scope = Scope(tenant="acme", run_id="run-1")
            outbox_box.outbox.enqueue(connection, CHARGE, scope, args)
    listening.accept_connections(False)
    outbox_box.drain()
    assert query(outbox_box.database_url, "SELECT kind FROM outbox.switches") == [
        {"kind": "breaker"}
    ]
    query(outbox_box.database_url, "UPDATE outbox.intents SET due_at = outbox.clock()")
    listening.accept_connections(True)
    assert outbox_box.settle(within_s=120)
    done = "SELECT status, count(*) AS n FROM outbox.intents GROUP BY status"
    assert query(outbox_box.database_url, done) == [{"status": "succeeded", "n": 12}]


def test_what_a_send_sets_off_is_done_at_its_own_moment(outbox_box: OutboxBox) -> None:
    """The second try's answer is lost; its event is joined then, and no look is waited for."""
    outbox_box.fault("rate_limited_429", attempts=[1])
    outbox_box.fault("lost_ack", attempts=[2])
    intent = charge(outbox_box)
    assert outbox_box.settle(within_s=60)
    outbox_box.assert_one_effect(intent)
    (row,) = query(outbox_box.database_url, "SELECT settled_by FROM outbox.intents")
    assert row["settled_by"] == "webhook"
    assert outbox_box.clock.offset < 4, "the first look is due after five seconds"


def test_time_that_is_not_enough_is_not_passed_over(outbox_box: OutboxBox) -> None:
    outbox_box.fault("lost_request")
    charge(outbox_box)
    assert not outbox_box.settle(within_s=30)
    assert outbox_box.clock.offset <= 30
