"""A key of the ring is lost for good: what was sealed by it is sent no more, and what needs only
the intent's key, its path and the vendor's word still ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import pytest

from outbox import Scope, WriteTool
from outbox.api import Outbox
from outbox.contract import Account
from outbox.errors import Denied
from outbox.store import intents
from resolvers import triage
from tests.privacy.rings import BOTH, NEW, OLD
from tests.privacy.sealed import PERSON, Process, everything, landed_event, process, settings
from tests.privacy.test_sealed_rows import lose
from tests.workers.floor import PRODUCTION, Floor, enqueue, open_floor
from vendors.sandbox.client import Sandbox

WHO: Mapping[str, Any] = {"by": "ann", "reason": "the ring is lost"}


@pytest.fixture
def floor(database: str, sandbox: Sandbox) -> Iterator[Floor]:
    with open_floor(database, sandbox, PRODUCTION) as opened:
        yield opened


def _sent(floor: Floor, *, landed: bool) -> UUID:
    """A write that is in doubt, sealed by a key that no process has any more."""
    (intent,) = enqueue(settings(floor, OLD), description=PERSON)
    with process(floor, OLD) as worker:
        if landed:
            floor.sandbox.fault("lost_ack", account=floor.account, times=1)
            worker.drain()
        else:
            lose(worker)
    assert floor.status(intent) == "unknown"
    return intent


def _object_of(floor: Floor) -> str:
    (made,) = floor.sandbox.objects(floor.account, "payment_intents")
    return str(made["id"])


def _quiet(floor: Floor, intent: UUID) -> None:
    """Nothing that was sent can land any more."""
    contract = floor.directory.contract("stripe")
    assert contract is not None
    policy = floor.settings.policy
    floor.until(policy.lease_s + policy.quiet_after_s(contract) + 60, intent)


@pytest.fixture
def worker(floor: Floor) -> Iterator[Process]:
    """A process of the ring that there is now."""
    with process(floor, NEW) as opened:
        yield opened


def test_a_readable_webhook_settles_it(floor: Floor, worker: Process) -> None:
    intent = _sent(floor, landed=True)
    worker.receive(landed_event(floor, intent, _object_of(floor)))
    worker.join()
    (event,) = floor.sql("SELECT state, detail FROM outbox.webhook_inbox")
    assert (event["state"], event["detail"]) == ("joined", "")
    row = floor.row(intent)
    assert (row["status"], row["settled_by"]) == ("succeeded", "webhook")
    assert PERSON not in everything(floor)


def test_a_look_settles_it(floor: Floor, worker: Process) -> None:
    intent = _sent(floor, landed=True)
    floor.jump(intent)
    worker.looker.once()
    row = floor.row(intent)
    assert (row["status"], row["settled_by"]) == ("succeeded", "lookup")
    assert row["receipt_id"] == _object_of(floor)


def test_a_person_rules_that_it_landed_by_its_receipt(floor: Floor, worker: Process) -> None:
    intent = _sent(floor, landed=True)
    ruled = triage.landed(worker.store, floor.directory, intent, _object_of(floor), **WHO)
    assert ruled.changed
    assert floor.status(intent) == "succeeded"


def test_a_person_rules_that_it_never_landed(floor: Floor, worker: Process) -> None:
    intent = _sent(floor, landed=False)
    _quiet(floor, intent)
    assert triage.not_landed(worker.store, floor.directory, intent, **WHO).changed
    assert floor.status(intent) == "failed_poison"


def test_that_it_never_landed_is_refused_where_it_did(floor: Floor, worker: Process) -> None:
    intent = _sent(floor, landed=True)
    _quiet(floor, intent)
    with pytest.raises(Denied) as refused:
        triage.not_landed(worker.store, floor.directory, intent, **WHO)
    assert refused.value.code == "landed"


def test_no_re_send_is_approved_that_no_process_here_can_send(
    floor: Floor, worker: Process
) -> None:
    intent = _sent(floor, landed=False)
    for _ in range(6):
        floor.jump(intent)
        worker.looker.once()
        assert worker.drain() == 0
    row = floor.row(intent)
    assert (row["status"], row["resends"]) == ("unknown", 0)
    assert row["looks"] >= 6
    with pytest.raises(Denied) as refused:
        triage.resend(worker.store, floor.directory, intent, **WHO)
    assert refused.value.code == "unsendable"
    # Whoever has the key approves it, and sends it.
    with process(floor, BOTH) as restored:
        floor.jump(intent)
        restored.looker.once()
        assert restored.drain() == 1
    assert floor.status(intent) == "succeeded"


def test_the_object_that_a_write_was_to_change_is_known_without_its_request(
    floor: Floor, worker: Process
) -> None:
    capture = WriteTool(
        "capture",
        vendor="stripe",
        operation="payment_intents.capture",
        identity=("payment_intent",),
    )
    sealing = Outbox(settings(floor, OLD))
    with floor.store.transaction() as tx:
        scope = Scope(tenant="acme", run_id="run-1")
        answer = sealing.enqueue(tx.connection, capture, scope, {"payment_intent": "pi_7"})
    sealing.close()
    with worker.store.transaction() as tx:
        row = intents.read(tx, answer.intent_id)
    assert row is not None
    call = row.call_to_read(Account("default", "test"))
    assert (call.path, call.whole) == ("/v1/payment_intents/pi_7/capture", False)
    assert not call.params
    assert call.asked is None
