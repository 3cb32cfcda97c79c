"""The scenarios of ``outbox drill leases``: how each is played."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast
from uuid import UUID

from outbox import Answer, Unreachable, WriteTool
from outbox.contract import Call, Vendor
from outbox.outcomes import Outcome
from outbox.store.connection import Store
from resolvers import sweeping
from resolvers.directory import Directory
from workers.demo import CHARGE
from workers.demo_faults import parameters
from workers.drills.lost_commits import LostCommits
from workers.drills.parts import (
    HELD_S,
    another_worker,
    ask,
    attempts_of,
    next_moment,
    posts,
    row_of,
)
from workers.testing import OutboxBox

CALLS = 6
_SLACK_S = 1.0
_DECLINED = 2
_WAIT_S = 60.0
# Once per turn of the conversation, so that a key belongs to an epoch.
_CHARGE = replace(CHARGE, name="charge_invoice_each_turn", once_per="epoch")
_REFUND = WriteTool(
    "refund_charge",
    vendor="stripe",
    operation="refunds.create",
    side_effect="compensation",
    identity=("payment_intent",),
    guard=("amount",),
)
# What is said in the transactions whose answers get lost.
_ENQUEUE, _CLAIM = b"outbox.intents", b"lease_token"
_READS = "GET /v1/[!a]*"


@dataclass
class Played:
    """What a scenario leaves: its calls, how each must end, and what compensates which. ``added``:
    something was sent or applied by a time-out alone; ``bound``: a late answer moved a row."""

    calls: list[Answer]
    ends: Mapping[str, int]
    compensations: Mapping[UUID, Answer] = field(default_factory=dict)
    added: bool = False
    bound: bool = False
    problems: list[str] = field(default_factory=list)


Play = Callable[[OutboxBox], Played]


def _charge(
    box: OutboxBox,
    number: int,
    *,
    epoch: str = "m1",
    fault: str = "none",
    store: Store | None = None,
) -> Answer:
    args = {"invoice_id": f"in_{number}", **parameters(fault)}
    return ask(box, _CHARGE, args, epoch=epoch, store=store)


def _times_out(box: OutboxBox) -> bool:
    """The leases end, and workers go on working; whether they sent or applied anything by that."""
    before = _done(box)
    box.travel(box.settings.policy.lease_s + _SLACK_S)
    sweeping.expire_once(box.store, box.directory)
    # Past every back-off too: whatever would be sent by the time alone is due by now.
    box.travel(box.settings.policy.not_sent_max_s + _SLACK_S)
    box.drain()
    return _done(box) != before


def _done(box: OutboxBox) -> tuple[int, int]:
    return len(posts(box.sandbox, box.account)), len(box.sandbox.effects(box.account))


# -- timeout then late success -------------------------------------------------------------------


def _late_success(box: OutboxBox) -> Played:
    """Half of the writes land before anything else is tried, half after a re-send has answered. In
    its next turn the agent asks for all of them again; two are not wanted any more, and refunded.
    """
    box.fault("late_commit", after_s=HELD_S, attempts=[1], lose="hang")
    half = CALLS // 2
    calls = [_charge(box, n) for n in range(half)]
    box.drain()
    added = _times_out(box) or _done(box) != (half, 0)
    box.sandbox.release(box.account, "late_commit")
    box.deliver_webhooks()
    box.resolve()
    calls += [_charge(box, n) for n in range(half, CALLS)]
    box.drain()
    added = _times_out(box) or added
    box.settle()
    box.sandbox.release(box.account, "late_commit")
    again = [_charge(box, n, epoch="m2") for n in range(CALLS)]
    landed = [call for call in (calls[0], calls[-1]) if row_of(box, call).receipt_id]
    refunds = {call.intent_id: _refund(box, call) for call in landed}
    box.settle()
    problems = [] if again_is(calls, again) else ["the next turn recorded another intent"]
    return Played(
        calls, {"commit": CALLS - 2, "compensate": 2}, refunds, added=added, problems=problems
    )


def again_is(calls: list[Answer], again: list[Answer]) -> bool:
    """Whether the very same intents answered."""
    return [c.intent_id for c in calls] == [a.intent_id for a in again]


def _refund(box: OutboxBox, call: Answer) -> Answer:
    row = row_of(box, call)
    return ask(box, _REFUND, {"payment_intent": row.receipt_id, "amount": row.amount_minor})


# -- lease recycled then late body ---------------------------------------------------------------


class _Stalled:
    """The real adapter in a worker that comes to a halt with the answer in its hands."""

    def __init__(self, vendor: Vendor) -> None:
        self._vendor = vendor
        self.go_on = threading.Event()
        self.came = threading.Semaphore(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._vendor, name)

    def perform(self, call: Call) -> Outcome:
        outcome = self._vendor.perform(call)
        self.came.release()
        self.go_on.wait(_WAIT_S)
        return outcome


def _late_body(box: OutboxBox) -> Played:
    """A worker halts with the answers read and not recorded; its leases end, nothing can be read at
    the vendor, and another worker sends under new leases. Then the first goes on."""
    stripe = box.directory.vendor("stripe")
    assert stripe is not None, "the box has an account at Stripe"
    stalled = _Stalled(stripe)
    directory = Directory(box.settings, {"stripe": cast(Vendor, stalled)})
    for (vendor, _), account in box.directory.accounts.items():
        directory.learn(vendor, account)
    box.fault("unavailable_503", endpoint=_READS)
    calls = [_charge(box, n) for n in range(CALLS)]
    with another_worker(box, directory=directory) as first, ThreadPoolExecutor(1) as beside:
        draining = beside.submit(first.drain, _WAIT_S)
        try:
            came = all(stalled.came.acquire(timeout=_WAIT_S) for _ in calls)
            added = _times_out(box)
            while any(row_of(box, c).status == "unknown" for c in calls) and next_moment(box):
                pass
            box.drain()
            before = [_settled(box, c) for c in calls]
        finally:
            stalled.go_on.set()
        draining.result(_WAIT_S)
    after = [_settled(box, c) for c in calls]
    late = [a for c in calls for a in attempts_of(box, c) if a["late"] and a["lease_no"] == 1]
    problems = [] if came and len(late) == CALLS else ["the bodies did not come late"]
    box.sandbox.clear_faults(box.account)
    box.settle()
    return Played(calls, {"commit": CALLS}, added=added, bound=after != before, problems=problems)


def _settled(box: OutboxBox, call: Answer) -> tuple[Any, ...]:
    row = row_of(box, call)
    return row.status, row.lease_no, row.receipt_id, row.settled_by, row.settled_at


# -- lost admit acknowledgement ------------------------------------------------------------------


def _lost_acknowledgement(box: OutboxBox) -> Played:
    """The agent's COMMIT stands and its answer is lost, so that it records its call once more; then
    the same befalls the worker's claim. Two of the cards are declined."""
    problems = []
    with LostCommits(box.settings.database_url) as way:
        store = Store(replace(box.settings, database_url=way.url))
        try:
            calls = []
            for number in range(CALLS):
                fault = "declined_card" if number < _DECLINED else "none"
                way.lose = _ENQUEUE
                if not _is_lost(partial(_charge, box, number, fault=fault, store=store)):
                    problems.append("an acknowledgement was not lost")
                calls.append(_charge(box, number, fault=fault))
            if not all(call.deduplicated for call in calls):
                problems.append("a call was recorded twice")
            with another_worker(box, store=store) as worker:
                way.lose = _CLAIM
                if not _is_lost(worker.drain):
                    problems.append("the claim's acknowledgement was not lost")
        finally:
            store.close()
    claimed = [row_of(box, call) for call in calls]
    if any((row.status, row.lease_no) != ("in_flight", 1) for row in claimed):
        problems.append("the claim does not stand")
    added = _times_out(box) or _done(box) != (0, 0)
    box.settle()
    return Played(
        calls, {"commit": CALLS - _DECLINED, "reject": _DECLINED}, added=added, problems=problems
    )


def _is_lost(step: Callable[[], object]) -> bool:
    try:
        step()
    except Unreachable:
        return True
    return False


SCENARIOS: Mapping[str, tuple[Play, dict[str, str]]] = {
    "timeout then late success": (_late_success, {"OUTBOX_CALL_DEADLINE_S": "1"}),
    "lease recycled then late body": (_late_body, {}),
    "lost admit acknowledgement": (_lost_acknowledgement, {}),
}
