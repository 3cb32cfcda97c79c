"""What chaos is judged by sees each promise broken: planted one by one, and seen by its name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest

from outbox import Outbox, Scope
from tests.chaos.scene import ACCOUNTS, Scene, running
from tests.chaos.verdict import judge
from tests.workers.floor import CARD, CHARGE, wait_until

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Everything runs, and nothing is killed."""
    folder: Path = tmp_path_factory.mktemp("verdict")
    with running(folder, lambda: False) as made:
        yield made


def enqueued(scene: Scene, count: int) -> list[UUID]:
    """Charges of invoices that nobody has asked for before."""
    outbox = Outbox(scene.settings)
    asks = [
        (
            Scope(tenant="acme", run_id="run-1", account=ACCOUNTS[0]),
            {**CARD, "invoice_id": str(uuid4()), "customer": "cus_1"},
        )
        for _ in range(count)
    ]
    with psycopg.connect(scene.database_url) as connection:
        answers = outbox.enqueue_many(connection, CHARGE, asks)
    outbox.ring()
    outbox.close()
    return [answer.intent_id for answer in answers]


@pytest.fixture(scope="module")
def kept(scene: Scene) -> list[UUID]:
    """Charges that were done, once each."""
    made = enqueued(scene, 3)
    wait_until(lambda: not scene.sql("SELECT 1 FROM outbox.intents WHERE settled_at IS NULL"))
    return made


def test_where_every_promise_was_kept_nothing_is_found(scene: Scene, kept: list[UUID]) -> None:
    verdict = judge(scene, kept, [])
    assert verdict.ok, verdict.broken
    assert (verdict.intents, verdict.sends, verdict.asked) == (3, 3, 0)


def test_an_intent_that_the_ledger_does_not_have_is_lost(scene: Scene, kept: list[UUID]) -> None:
    verdict = judge(scene, [*kept, uuid4()], [])
    assert (verdict.ok, verdict.lost) == (False, 1)


def test_an_intent_that_nobody_asked_for_is_foreign(scene: Scene, kept: list[UUID]) -> None:
    assert judge(scene, kept[1:], kept[:1]).ok
    assert judge(scene, kept[1:], []).broken == [f"nobody asked for intent {kept[0]}"]


def test_a_page_that_is_of_no_question_is_found(scene: Scene, kept: list[UUID]) -> None:
    scene.pages.write_text(json.dumps({"dedup_key": "of-nothing"}) + "\n")
    assert judge(scene, kept, []).broken == ["the page of-nothing is of no question"]
    scene.pages.unlink()


def test_a_second_effect_is_doubled_whoever_made_it(scene: Scene, kept: list[UUID]) -> None:
    form = {
        "amount": 4900, "currency": "usd", "customer": "cus_1", "confirm": "true",
        "payment_method": "pm_card_visa", "metadata[outbox_id]": str(kept[0]),
    }  # fmt: skip
    answer = httpx.post(
        f"{scene.sandbox.url}/v1/payment_intents", data=form,
        headers={"Authorization": f"Bearer {scene.sandbox.api_key(ACCOUNTS[0])}"},
    )  # fmt: skip
    assert answer.status_code == 200
    verdict = judge(scene, kept, [])
    assert (verdict.ok, verdict.doubled) == (False, 1)
    assert any(problem.startswith("on the wire: ") for problem in verdict.broken)


def test_what_waits_and_nobody_is_asked_about_is_unseen(scene: Scene, kept: list[UUID]) -> None:
    for worker in scene.workers:
        worker.stop()
    made = enqueued(scene, 2)
    verdict = judge(scene, [*kept, *made], [])
    assert (verdict.ok, verdict.unseen) == (False, 2)
