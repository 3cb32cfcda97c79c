"""What a run has been told, and what it was told before that stopped being true: no second effect
comes of either, at the vendor's own ledger."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from outbox import Answer, Outbox, Scope
from outbox.errors import Denied
from outbox.store import intents
from outbox.store.contradictions import contradict
from resolvers import holding, triage
from tests.resolvers.hooks import Hooks
from tests.workers.floor import CARD, CHARGE, Floor, wait_until
from tests.workers.proxy import PostgresProxy
from workers.servers import Servers

TURN = replace(CHARGE, name="charge_turn", once_per="epoch")
INVOICE: Mapping[str, Any] = {**CARD, "invoice_id": "in_1"}
DECLINED: Mapping[str, Any] = {**INVOICE, "payment_method": "pm_card_chargeDeclined"}


@pytest.fixture
def agent(floor: Floor) -> Iterator[Outbox]:
    opened = Outbox(floor.settings)
    yield opened
    opened.close()


def ask(floor: Floor, agent: Outbox, epoch: str, args: Mapping[str, Any], **more: Any) -> Answer:
    """A turn of the conversation asks for the charge."""
    with psycopg.connect(floor.settings.database_url.replace("+psycopg", "")) as connection:
        if epoch:
            agent.advance_epoch(connection, "acme", "run", epoch)
        tool = TURN if epoch else CHARGE
        scope = Scope(tenant="acme", run_id="run", epoch=epoch)
        return agent.enqueue(connection, tool, scope, args, **more)


def paid(floor: Floor) -> int:
    """How many objects of the invoice were paid, by the vendor's own ledger."""
    objects = floor.sandbox.objects(floor.account, "payment_intents")
    return len([one for one in objects if one["status"] == "succeeded"])


def questions(floor: Floor) -> dict[UUID, list[str]]:
    """The reasons of the open questions, by intent."""
    return {e["intent_id"]: e["reasons"] for e in floor.escalations() if not e["closed_at"]}


def told_as_failed_and_then_paid(floor: Floor, agent: Outbox, hooks: Hooks, first: Answer) -> None:
    """The run hears "failed"; then the customer pays that very object in the browser."""
    floor.drain()
    assert agent.wait(first).told == "failed"
    hooks()
    pay(floor, hooks, first)


def pay(floor: Floor, hooks: Hooks, intent: Answer) -> None:
    floor.sandbox.move(floor.row(intent.intent_id)["receipt_id"], "succeeded")
    hooks()
    assert questions(floor)[intent.intent_id] == ["contradiction"]


def doubt_again(floor: Floor, intent: Answer) -> None:
    """Somebody says that another object is of this intent."""
    with floor.store.transaction() as tx:
        row = intents.lock(tx, intent.intent_id)
        assert row is not None
        assert contradict(tx, row, "contradiction", ["pi_of_nobody"], "an event")


def rule_not_landed(floor: Floor, intent: Answer) -> None:
    floor.advance(3600)
    triage.not_landed(floor.store, floor.directory, intent.intent_id, by="me", reason="not ours")


def test_a_wait_that_is_cancelled_does_not_let_the_next_turn_charge_again(
    floor: Floor, agent: Outbox
) -> None:
    first = ask(floor, agent, "e1", INVOICE)

    async def turn() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(agent.await_settled(first), 0.1)
        await asyncio.to_thread(floor.drain)

    asyncio.run(turn())
    for waiting in [t for t in threading.enumerate() if t.name == "outbox-waiting"]:
        waiting.join()
    assert floor.row(first.intent_id)["status"] == "succeeded"
    assert floor.row(first.intent_id)["told_at"] is None
    second = ask(floor, agent, "e2", INVOICE)
    assert (second.intent_id, second.told) == (first.intent_id, "settled")
    floor.drain()
    assert paid(floor) == 1


@pytest.mark.parametrize("lost", ["lose_commit_reply", "lose_commit"])
def test_a_lost_commit_of_the_mark_loses_no_answer_and_makes_no_second_charge(
    floor: Floor, agent: Outbox, servers: Servers, lost: str
) -> None:
    first = ask(floor, agent, "e1", INVOICE)
    floor.drain()
    with (
        tempfile.TemporaryDirectory(prefix="obx") as folder,
        PostgresProxy(Path(folder), servers.run_dir / ".s.PGSQL.5432") as proxy,
    ):
        url = proxy.url(floor.settings.database_url)
        far = Outbox(replace(floor.settings, database_url=url))
        proxy.what = b"SET told_at"
        setattr(proxy, lost, 1)
        answer = far.wait(first, 0)
        far.close()
        assert proxy.lost == 1
    assert (answer.told, answer.business_status) == ("settled", "paid")
    marked = lost == "lose_commit_reply"
    if marked:  # Postgres commits it in its own time: nobody waits for its reply
        wait_until(lambda: floor.row(first.intent_id)["told_at"] is not None)
    # It was told: another turn may rightly ask again, where that is what was recorded.
    assert ask(floor, agent, "e2", INVOICE).deduplicated != marked


@pytest.mark.parametrize("ruled", [False, True])
def test_a_twin_of_what_was_paid_after_all_is_not_charged(
    floor: Floor, agent: Outbox, ruled: bool
) -> None:
    hooks = Hooks(floor)
    first = ask(floor, agent, "e1", DECLINED)
    told_as_failed_and_then_paid(floor, agent, hooks, first)
    if ruled:
        triage.landed(
            floor.store,
            floor.directory,
            first.intent_id,
            floor.row(first.intent_id)["receipt_id"],
            by="me",
            reason="paid in the browser",
        )
    second = ask(floor, agent, "e2", INVOICE)
    floor.drain()
    assert (second.intent_id, second.deduplicated) == (first.intent_id, True)
    assert second.told == ("settled" if ruled else "unknown")
    assert paid(floor) == 1
    # The run has the present word now, if there is one: a later turn may ask again.
    assert ask(floor, agent, "e3", INVOICE).deduplicated != ruled


def test_a_ruling_that_nothing_landed_gives_the_next_turn_its_charge_once_it_is_told(
    floor: Floor, agent: Outbox
) -> None:
    first = ask(floor, agent, "e1", DECLINED)
    floor.drain()
    assert agent.wait(first).told == "failed"
    doubt_again(floor, first)
    assert ask(floor, agent, "e2", INVOICE).told == "unknown"
    rule_not_landed(floor, first)
    assert ask(floor, agent, "e3", INVOICE).told == "failed"
    third = ask(floor, agent, "e4", INVOICE)
    assert not third.deduplicated
    floor.drain()
    assert (floor.row(third.intent_id)["status"], paid(floor)) == ("succeeded", 1)


@pytest.mark.parametrize("repeats", ["a twin of the next epoch", "a successor"])
def test_what_waits_to_repeat_a_charge_that_was_paid_after_all_stays_and_a_person_is_asked(
    floor: Floor, agent: Outbox, repeats: str
) -> None:
    hooks = Hooks(floor)
    of_turns = repeats == "a twin of the next epoch"
    first = ask(floor, agent, "e1" if of_turns else "", DECLINED)
    floor.drain()
    assert agent.wait(first).told == "failed"
    hooks()
    holding.pause(floor.store, floor.directory, "stripe", "default", by="me", reason="x")
    if of_turns:
        second = ask(floor, agent, "e2", INVOICE)
    else:
        second = ask(floor, agent, "", INVOICE, supersedes=first.intent_id)
    assert not second.deduplicated
    pay(floor, hooks, first)
    holding.resume(floor.store, floor.directory, "stripe", "default", by="me", reason="x")
    floor.drain()
    floor.escalate()
    assert floor.row(second.intent_id)["status"] == "pending"
    assert questions(floor) == {
        first.intent_id: ["contradiction"],
        second.intent_id: ["predecessor"],
    }
    # The run hears the present word of the first, and what it asked for before stays held.
    receipt = floor.row(first.intent_id)["receipt_id"]
    triage.landed(floor.store, floor.directory, first.intent_id, receipt, by="me", reason="paid")
    assert agent.wait(first).told == "settled"
    floor.advance(3600)
    floor.drain()
    assert (floor.row(second.intent_id)["status"], paid(floor)) == ("pending", 1)
    triage.cancel(floor.store, second.intent_id, by="me", reason="it was paid")
    assert questions(floor) == {}


def test_what_was_held_goes_out_once_a_person_has_ruled_that_nothing_landed(
    floor: Floor, agent: Outbox
) -> None:
    first = ask(floor, agent, "", DECLINED)
    floor.drain()
    assert agent.wait(first).told == "failed"
    holding.pause(floor.store, floor.directory, "stripe", "default", by="me", reason="x")
    second = ask(floor, agent, "", INVOICE, supersedes=first.intent_id)
    doubt_again(floor, first)
    holding.resume(floor.store, floor.directory, "stripe", "default", by="me", reason="x")
    floor.drain()
    floor.escalate()
    assert questions(floor)[second.intent_id] == ["predecessor"]
    rule_not_landed(floor, first)
    floor.jump(second.intent_id)
    floor.drain()
    assert (floor.row(second.intent_id)["status"], paid(floor)) == ("succeeded", 1)
    assert questions(floor) == {}


def test_a_successor_that_is_recorded_is_found_again_whatever_became_of_the_first(
    floor: Floor, agent: Outbox
) -> None:
    hooks = Hooks(floor)
    first = ask(floor, agent, "", DECLINED)
    floor.drain()
    hooks()
    second = ask(floor, agent, "", INVOICE, supersedes=first.intent_id)
    pay(floor, hooks, first)
    again = ask(floor, agent, "", INVOICE, supersedes=first.intent_id)
    assert (again.intent_id, again.deduplicated) == (second.intent_id, True)
    # Another one is still refused.
    with pytest.raises(Denied, match="rule first"):
        ask(floor, agent, "", {**INVOICE, "invoice_id": "in_2"}, supersedes=first.intent_id)
