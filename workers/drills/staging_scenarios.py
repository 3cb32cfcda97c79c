"""The scenarios of ``outbox drill staging``: how each is played, and what the agent is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from outbox import Answer, IntentMismatch, Outbox, Scope, WriteTool
from outbox.store.connection import Store
from vendors.sandbox import RECIPES
from workers.demo import CHARGE
from workers.demo_faults import parameters
from workers.drills.parts import HELD_S, TENANT, Parts, ask, next_moment, posts, row_of
from workers.testing import OutboxBox

_CHARGE_ARGS = {"invoice_id": "in_1", **parameters("none")}
_CONTACT_ARGS = {"email": "ann@example.com", "name": "Ann"}
_SLOW_S = 4.0
_DEADLINE = {"OUTBOX_CALL_DEADLINE_S": "1"}


@dataclass
class Scene:
    """One scenario being played: what the agent is told is noted as it hears it."""

    box: OutboxBox
    told: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def calls(self, args: Mapping[str, Any], tool: WriteTool = CHARGE) -> Answer | None:
        """The agent calls its tool; None where it is told of a conflict."""
        try:
            answer = ask(self.box, tool, args)
        except IntentMismatch:
            self.told.append("conflict")
            return None
        self.told.append(answer.told)
        return answer

    def asks(self, answer: Answer) -> None:
        """The agent asks again with the intent's id."""
        self.told.append(self.box.outbox.wait(answer, timeout_s=0).told)

    def calls_again(self, first: Answer, args: Mapping[str, Any], tool: WriteTool = CHARGE) -> None:
        """The agent calls its tool once more; it must be the first intent that answers."""
        again = self.calls(args, tool)
        self.expects(again is not None and again.intent_id == first.intent_id, "another intent")
        self.expects(again is not None and again.deduplicated, "not said to be recorded already")

    def expects(self, holds: bool, otherwise: str) -> None:
        """Notes what is not as it must be."""
        if not holds:
            self.problems.append(otherwise)


@dataclass(frozen=True, slots=True)
class Scenario:
    """``play`` returns the first answer; ``told`` is what the agent must have been told."""

    name: str
    play: Callable[[Scene], Answer]
    told: tuple[str, ...]
    requests: int
    settings: Callable[[Parts], Mapping[str, str]] = lambda _: {}


def _first(
    scene: Scene, args: Mapping[str, Any] = _CHARGE_ARGS, tool: WriteTool = CHARGE
) -> Answer:
    answer = scene.calls(args, tool)
    assert answer is not None, "a first call cannot conflict"
    return answer


def _slow_success(scene: Scene) -> Answer:
    """The vendor charges at once and answers after our client has hung up."""
    scene.box.fault("slow", after_s=_SLOW_S, attempts=[1])
    answer = _first(scene)
    scene.box.drain()
    scene.asks(answer)
    scene.calls_again(answer, _CHARGE_ARGS)
    scene.box.settle()
    scene.asks(answer)
    return answer


def _double_resume(scene: Scene) -> Answer:
    """Two workers of the harness resume the same run from before the call, at the same moment; the
    answer is lost; and then the whole history is replayed."""
    scene.box.fault("lost_ack", attempts=[1])
    together = threading.Barrier(2)
    with ThreadPoolExecutor(2) as lives:
        both = list(lives.map(lambda _: _one_life(scene.box, together), range(2)))
    scene.told += [answer.told for answer in both]
    scene.expects(both[0].intent_id == both[1].intent_id, "another intent")
    scene.expects([a.deduplicated for a in both].count(True) == 1, "both recorded it, or none")
    scene.box.drain()
    scene.asks(both[0])
    scene.box.settle()
    scene.calls_again(both[0], _CHARGE_ARGS)
    return both[0]


def _one_life(box: OutboxBox, together: threading.Barrier) -> Answer:
    """A resumed process of the harness: connections of its own."""
    outbox, store = Outbox(box.settings), Store(box.settings)
    try:
        with store.transaction() as tx:
            together.wait(timeout=30)
            scope = Scope(tenant=TENANT, run_id="run_1")
            return outbox.enqueue(tx.connection, CHARGE, scope, _CHARGE_ARGS)
    finally:
        outbox.close()
        store.close()


def _invented_arguments(scene: Scene) -> Answer:
    """After a lost answer the model words the same charge anew, with a key and a run of its own."""
    scene.box.fault("lost_ack", attempts=[1])
    answer = _first(scene, {**_CHARGE_ARGS, "description": "Invoice 1"})
    scene.box.drain()
    scene.asks(answer)
    invented = {"idempotency_key": "retry-2", "run_id": "run_2", "description": "INV-1, retried"}
    scene.calls_again(answer, {**_CHARGE_ARGS, **invented})
    scene.box.settle()
    scene.asks(answer)
    charged = scene.box.sandbox.objects(scene.box.account, "payment_intents")
    scene.expects([c["description"] for c in charged] == ["Invoice 1"], "other words were sent")
    return answer


def _duplicate_error(scene: Scene) -> Answer:
    """The first request lands when nothing more was seen of it and just before the second, which
    the vendor refuses as a duplicate: proof of the first, and no failure."""
    box = scene.box
    box.fault("late_commit", after_s=HELD_S, attempts=[1])
    answer = _first(scene, _CONTACT_ARGS, _contact())
    box.drain()
    scene.asks(answer)
    while row_of(box, answer).status == "unknown" and next_moment(box):
        pass
    box.sandbox.release(box.account, "late_commit")
    box.drain()
    statuses = [p["status"] for p in posts(box.sandbox, box.account)]
    scene.expects(statuses == [None, 409], "the vendor did not call it a duplicate")
    scene.asks(answer)
    next_moment(box)
    scene.asks(answer)
    return answer


def _contact() -> WriteTool:
    """Only now: its vendor is known once the settings were read."""
    return WriteTool(
        "add_contact",
        vendor="contacts",
        operation="contacts.create",
        identity=("email",),
        resend_when_absent=True,
    )


def _contacts(parts: Parts) -> Mapping[str, str]:
    """A vendor without idempotency keys, at which the id that we give a contact is unique."""
    accounts = parts.folder / "contacts.toml"
    accounts.write_text(
        "[contacts.default]\n"
        'credential_env = "STRIPE_API_KEY"\n'
        'mode = "test"\n'
        f'base_url = "{parts.sandbox.json_url("external_ids")}"\n',
        encoding="utf-8",
    )
    return {
        "OUTBOX_VENDORS": str(RECIPES / "contacts.toml"),
        "OUTBOX_ACCOUNTS": str(accounts),
    }


def _stored_500(scene: Scene) -> Answer:
    """The vendor answers 500, keeps that answer under the key, and charges all the same; only its
    webhook tells."""
    box = scene.box
    box.fault("stored_500_object_later", after_s=HELD_S, attempts=[1])
    answer = _first(scene)
    box.drain()
    scene.asks(answer)
    box.sandbox.release(box.account, "object_later")
    box.deliver_webhooks()
    box.resolve()
    scene.asks(answer)
    scene.expects(row_of(box, answer).settled_by == "webhook", "something else settled it")
    return answer


def _another_amount(scene: Scene) -> Answer:
    """The same invoice once more, for more: before the first was sent, and after it was done."""
    answer = _first(scene)
    more = {**_CHARGE_ARGS, "amount": _CHARGE_ARGS["amount"] + 1000}
    scene.calls(more)
    scene.box.settle()
    scene.calls(more)
    scene.asks(answer)
    charged = [e["amount"] for e in scene.box.sandbox.effects(scene.box.account)]
    scene.expects(charged == [_CHARGE_ARGS["amount"]], "another amount was charged")
    return answer


SCENARIOS = (
    Scenario(
        "slow success with client timeout",
        _slow_success,
        ("accepted", "unknown", "unknown", "settled"),
        requests=1,
        settings=lambda _: _DEADLINE,
    ),
    Scenario(
        "double harness resume",
        _double_resume,
        ("accepted", "accepted", "unknown", "settled"),
        requests=1,
    ),
    Scenario(
        "the model invents new arguments for the same intent",
        _invented_arguments,
        ("accepted", "unknown", "unknown", "settled"),
        requests=1,
    ),
    Scenario(
        "upstream duplicate error",
        _duplicate_error,
        ("accepted", "unknown", "unknown", "settled"),
        requests=2,
        settings=_contacts,
    ),
    Scenario(
        "500 and a later webhook", _stored_500, ("accepted", "unknown", "settled"), requests=1
    ),
    Scenario(
        "same key with another amount",
        _another_amount,
        ("accepted", "conflict", "conflict", "settled"),
        requests=1,
    ),
)
