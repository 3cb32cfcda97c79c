"""Every step of the sender as a moment that can be held: what is on its way between the worker, its
database and the vendor at that moment, and what becomes of it when the worker has gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from tests.drills.behind import BehindProxies
from tests.drills.proxy import Gate
from tests.workers.floor import wait_until
from tests.workers.proxy import CLAIM, RECORD

_COMMIT = b"COMMIT"
_WRITE = b"POST /v1/payment_intents"


@dataclass
class Moment:
    """Where a worker is held. ``end`` says what becomes of what was on its way."""

    wait_for: Callable[[Sequence[UUID]], None]
    end: Callable[[], None]


@dataclass(frozen=True)
class Step:
    """``outcomes``: what the attempts come to where the worker is killed there (rule 6: without
    an individual answer there is doubt), and where it is told to end (``when_told``)."""

    name: str
    hold: Callable[[BehindProxies], Moment]
    outcomes: list[str]
    when_told: list[str]

    def __str__(self) -> str:
        return self.name


def _gate(gate: Gate, *, arrives: bool) -> Moment:
    end = gate.let_go if arrives else gate.lose
    return Moment(lambda ids: wait_until(gate.reached.is_set), end)


def _database(said: bytes, at: bytes, *, arrives: bool) -> Callable[[BehindProxies], Moment]:
    return lambda works: _gate(works.postgres.hold(said, at=at, held="questions"), arrives=arrives)


def _unheard(said: bytes) -> Callable[[BehindProxies], Moment]:
    return lambda works: _gate(works.postgres.hold(said, at=_COMMIT, held="answers"), arrives=False)


def _request(*, arrives: bool) -> Callable[[BehindProxies], Moment]:
    return lambda works: _gate(
        works.vendor.hold(_WRITE, at=_WRITE, held="questions"), arrives=arrives
    )


def _answer(*, arrives: bool) -> Callable[[BehindProxies], Moment]:
    return lambda works: _gate(
        works.vendor.hold(_WRITE, at=_WRITE, held="answers"), arrives=arrives
    )


def _connecting(works: BehindProxies) -> Moment:
    works.vendor.hang_connects()

    def asked(ids: Sequence[UUID]) -> None:
        wait_until(lambda: works.statuses(ids).get("in_flight"))
        wait_until(works.vendor.is_asked_to_connect)

    return Moment(asked, works.vendor.mend)


def _after(works: BehindProxies) -> Moment:
    return Moment(works.wait_until_settled, lambda: None)


_ONCE = ["receipt"]
_LOST_AND_FOUND = ["lease_expired"]
_LOST_AND_SENT = ["lease_expired", "receipt"]
STEPS = (
    Step("the claim's COMMIT, lost", _database(CLAIM, _COMMIT, arrives=False), _ONCE, _ONCE),
    Step(
        "the claim's COMMIT, which arrives",
        _database(CLAIM, _COMMIT, arrives=True), _LOST_AND_SENT, _ONCE,
    ),
    Step("the claim is committed, unheard", _unheard(CLAIM), _LOST_AND_SENT, _LOST_AND_SENT),
    Step("connecting to the vendor", _connecting, _LOST_AND_SENT, _ONCE),
    Step(
        "the request on the wire, lost",
        _request(arrives=False), _LOST_AND_SENT, ["lost", "receipt"],
    ),
    Step("the request on the wire, which arrives", _request(arrives=True), _LOST_AND_FOUND, _ONCE),
    Step("the answer on the wire, lost", _answer(arrives=False), _LOST_AND_FOUND, ["lost"]),
    Step("the answer on the wire, which arrives", _answer(arrives=True), _LOST_AND_FOUND, _ONCE),
    Step("the record, lost", _database(RECORD, RECORD, arrives=False), _LOST_AND_FOUND, _ONCE),
    Step("the record's COMMIT, lost", _database(RECORD, _COMMIT, arrives=False),
         _LOST_AND_FOUND, _ONCE),
    Step("the record's COMMIT, which arrives", _database(RECORD, _COMMIT, arrives=True),
         _ONCE, _ONCE),
    # What was not confirmed is offered again, and is no second answer.
    Step("the record is committed, unheard", _unheard(RECORD),
         _ONCE, ["receipt", "receipt (late)"]),
    Step("after the record", _after, _ONCE, _ONCE),
)  # fmt: skip
