"""The store under two connections whose statements and commits are interleaved in any way.

A second bookkeeper knows what became of every attempt in the world, and which of it was committed.
After each step the ledger is held to that, to what it was before, and to the product's invariants.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, ClassVar
from uuid import UUID

import psycopg
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from outbox import Scope
from outbox.errors import Busy, Denied, Invalid, NotFound, RetryTransaction, StaleEpoch
from outbox.states import TERMINAL, Status
from outbox.store import intents, records, redaction, retention, settlements, switches
from outbox.store.moves import Moved, log
from resolvers import sweeping, triage
from resolvers.directory import Directory
from resolvers.escalating import escalate_once
from resolvers.joining import join_once
from resolvers.looking import Looker
from resolvers.receiving import OK, receive
from tests.properties.odd_events import event
from tests.properties.scene import CHARGE, Scene
from tests.properties.two_connections import ARRIVES, DROPPED, REFUSED, Attempt, Held, Side, World
from tests.properties.webhook_signing import genuine

TURN = replace(CHARGE, name="charge_turn", once_per="epoch")
LANED = replace(CHARGE, name="charge_in_order", lane=("customer",))
TOOLS = {"run": CHARGE, "turn": TURN, "lane": LANED}
SIDES = st.sampled_from(["left", "right"])
PLACES = st.integers(0, 4)
# What becomes of each attempt of a claim, and whether the vendor accepts what arrives.
_FATE = st.tuples(st.sampled_from([ARRIVES, ARRIVES, REFUSED, DROPPED]), st.booleans())
FATES = st.lists(_FATE, min_size=4, max_size=4)
# Refused by a rule of the product, or by another transaction that is in the way: nothing happened.
_NOT_DONE = (Busy, Denied, Invalid, NotFound, RetryTransaction, StaleEpoch, Moved)
_IN_THE_WAY = (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled)
_UNUSED = frozenset({"due_and_not_sent", "settlement_not_taken", "transaction_held_open"})


@dataclass
class Kept:
    """What the bookkeeper knows of one intent; only what was committed."""

    attempts: list[Attempt] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    answered: set[int] = field(default_factory=set)
    seen: intents.Intent | None = None


class TwoConnections(RuleBasedStateMachine):
    """See the module."""

    scene: ClassVar[Scene]

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[UUID, Kept] = {}
        self.sides: dict[str, Side] = {}
        self.logged = 0
        self.written_to = ""

    @initialize(fates=FATES, heard=st.sampled_from([0, 1, 2, 3]))
    def begin(self, fates: list[tuple[str, bool]], heard: int) -> None:
        """One consumer, both sides at rest, and three writes of which each was sent once; some
        were answered, and the others are in doubt."""
        scene = self.scene
        scene.empty()
        settings = scene.settings
        contract = settings.policy.adapted(CHARGE.contract)
        self.world = World(contract, connect_s=1.0, read_s=1.0)
        self.directory = Directory(settings, {"stripe": self.world})
        settlements.register(scene.store, "billing")
        self.sides = {name: Side(Held(settings, size=2)) for name in ("left", "right")}
        self.lookers = {
            name: Looker(side.store, self.directory, threads=1) for name, side in self.sides.items()
        }
        for tool in TOOLS:
            self.enqueue(name="left", tool=tool, invoice=0, epoch="e1")
        self.claim(name="left", alone=False, fates=fates)
        for place in range(len(self.kept)):
            self.record(name="left", place=place, which=0, heard=place < heard)

    # -- transactions --------------------------------------------------------------------------

    @rule(name=SIDES, steps=st.integers(1, 6), kept=st.sampled_from([True, True, True, False]))
    def hold(self, name: str, steps: int, kept: bool) -> None:
        """For so many steps this side commits nothing; then all of it, or none."""
        if not self.sides[name].is_held:
            self.sides[name].hold(steps, kept=kept)

    @contextmanager
    def trying(self) -> Iterator[None]:
        """A step that may be refused; what it had written is taken back with it."""
        with suppress(*_NOT_DONE, *_IN_THE_WAY):
            yield

    # -- the caller ----------------------------------------------------------------------------

    @rule(
        name=SIDES,
        tool=st.sampled_from(sorted(TOOLS)),
        invoice=st.integers(0, 1),
        epoch=st.sampled_from(["e1", "e2"]),
    )
    def enqueue(self, name: str, tool: str, invoice: int, epoch: str) -> None:
        """A new write, or one that was asked for before."""
        side = self.sides[name]
        args = {"amount": 1200, "currency": "usd", "customer": "c", "invoice_id": f"in_{invoice}"}
        scope = Scope(tenant="acme", run_id="run", epoch=epoch if tool == "turn" else "")
        with self.trying(), side.store.transaction() as tx:
            answer = self.scene.outbox.enqueue(tx.connection, TOOLS[tool], scope, args)
            side.once_committed(lambda: self._know(answer.intent_id))

    def _know(self, intent_id: UUID) -> None:
        self.kept.setdefault(intent_id, Kept())

    @rule(
        name=SIDES,
        what=st.sampled_from(["e1", "e2", "e3", "ask", "redact", "prune", "on", "off"]),
        place=PLACES,
    )
    def aside(self, name: str, what: str, place: int) -> None:
        """The conversation goes on; the caller asks what became of a write, and is told; what is
        personal is taken out of a settled row, or of all that are over; the account is paused, or
        opened again."""
        found = self._one(place)
        with self.trying():
            if what == "ask":
                if found is not None:
                    self.scene.outbox.wait(found[0], 0)
                return
            with self.sides[name].store.transaction() as tx:
                if what == "redact":
                    row = intents.lock(tx, found[0]) if found else None
                    if row is not None and row.settled_at is not None:
                        redaction.empty(tx, [row])
                        log(tx, intent_id=row.id, kind="redacted", actor="alice")
                elif what == "prune":
                    before = intents.now(tx) + timedelta(days=1)
                    piece = retention.Piece(before=before, size=10, by="retention", reason="age")
                    retention.intents(tx, piece)
                    retention.matched_events(tx, piece)
                elif what == "on":
                    said = {"reason": "asked", "by": "alice"}
                    switches.pause(tx, "stripe", "default", kind="pause", **said)
                elif what == "off":
                    switches.resume(tx, "stripe", "default", by="alice", reason="asked")
                else:
                    self.scene.outbox.advance_epoch(tx.connection, "acme", "run", what)

    def _one(self, place: int) -> tuple[UUID, Kept] | None:
        known = list(self.kept.items())
        return known[place % len(known)] if known else None

    # -- the sender ----------------------------------------------------------------------------

    @rule(
        name=SIDES,
        alone=st.booleans(),
        fates=FATES,
    )
    def claim(self, name: str, alone: bool, fates: list[tuple[str, bool]]) -> None:
        """Whatever is due; what was claimed is sent once the claim is committed."""
        side = self.sides[name]
        claimer = self.scene.claimer(side.store)
        rows: list[intents.Intent] = []
        with self.trying():
            rows = claimer.claim_alone() if alone else claimer.claim(64)
        for row, (fate, lands) in zip(rows, [*fates * len(rows)], strict=False):
            assert row.state is Status.IN_FLIGHT
            assert row.veto is None
            assert row.contradicted_at is None
            assert row.lease_until is not None
            assert row.last_sent_at is not None
            assert row.window_ends_at is not None
            assert row.last_sent_at < row.window_ends_at
            assert row.id in self.kept or side.is_held, "only what is committed is seen"
            side.once_committed(self._sending(Attempt(row, fate), lands=lands))

    def _sending(self, attempt: Attempt, *, lands: bool) -> Callable[[], None]:
        def leaves() -> None:
            kept = self.kept[attempt.row.id]
            before = kept.attempts[-1].number if kept.attempts else 0
            assert attempt.number > before, "one lease after another"
            assert attempt.row.key == (kept.seen or attempt.row).key
            kept.attempts.append(attempt)
            if attempt.fate == ARRIVES:
                self.world.execute(attempt.row, lands=lands)

        return leaves

    @rule(
        name=SIDES,
        place=PLACES,
        which=st.integers(0, 2),
        heard=st.sampled_from([True, True, False]),
    )
    def record(self, name: str, place: int, which: int, heard: bool) -> None:
        """An attempt's answer, on time, late or once more; or that it was not heard in time."""
        found = self._one(place)
        if found is None or not found[1].attempts:
            return
        kept, side = found[1], self.sides[name]
        attempt = kept.attempts[-1 - which % len(kept.attempts)]
        outcome = self.world.answer(attempt) if heard else self.world.silence()
        ended = records.Ended(attempt.row, outcome, attempt.row.last_sent_at)
        with self.trying(), side.store.transaction() as tx:
            row = intents.read(tx, attempt.row.id)
            assert row is not None
            done = records.record(tx, [ended])
            if attempt.row.id in done.held:
                return
            live = row.lease_token == attempt.row.lease_token
            marks = kept.answered if heard else kept.lost
            if heard or live:
                side.once_committed(lambda: marks.add(attempt.number))

    # -- the resolvers -------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1, 6, 61, 61, 200, 3600, 80_000]))
    def forward(self, seconds: int) -> None:
        """Time passes."""
        self.scene.forward(seconds)

    @rule(
        name=SIDES, job=st.sampled_from(["expire", "look", "look", "withdraw", "escalate", "join"])
    )
    def run_job(self, name: str, job: str) -> None:
        """One tick of one job."""
        store = self.sides[name].store
        with self.trying():
            match job:
                case "expire":
                    sweeping.expire_once(store, self.directory)
                case "look":
                    self.lookers[name].once()
                case "withdraw":
                    sweeping.withdraw_once(store, self.directory)
                case "escalate":
                    escalate_once(store, self.directory)
                case "join":
                    join_once(store, self.directory)

    @rule(name=SIDES, place=PLACES)
    def webhook(self, name: str, place: int) -> None:
        """The vendor tells what landed."""
        found = self._one(place)
        if found is None or not self.world.landed(found[0]):
            return
        row = found[1].attempts[0].row
        made = event("", {"outbox_id": str(row.id), "outbox_key": row.key.hex()}, row.key.hex())
        made |= {"id": f"evt_{row.id}"}
        made["data"]["object"]["id"] = self.world.objects[row.id].receipt_id
        body = json.dumps(made).encode()
        side = self.sides[name]
        with self.trying():
            headers = genuine(body, self.scene.now())
            status, said = receive(
                side.store,
                self.directory,
                vendor="stripe",
                account="default",
                headers=headers,
                body=body,
            )
            assert status in (OK, 503), said

    # -- a person ------------------------------------------------------------------------------

    @rule(
        name=SIDES, place=PLACES, verb=st.sampled_from(["landed", "not_landed", "resend", "cancel"])
    )
    def rule_on(self, name: str, place: int, verb: str) -> None:
        """A verdict, which the vendor is asked about first."""
        found = self._one(place)
        if found is None:
            return
        store = self.sides[name].store
        seen = self.world.objects.get(found[0])
        said: dict[str, Any] = {"by": "alice", "reason": "asked"}
        with self.trying():
            if verb == "cancel":
                triage.cancel(store, found[0], **said)
            elif verb == "landed":
                receipt = seen.receipt_id if seen else "pi_none"
                triage.landed(store, self.directory, found[0], receipt, **said)
            else:
                getattr(triage, verb)(store, self.directory, found[0], **said)

    # -- what must hold ------------------------------------------------------------------------

    @invariant()
    def holds(self) -> None:
        """The committed ledger against its own past, the bookkeeper, the world and the rules."""
        for side in self.sides.values():
            side.step()
        written_to = self.scene.written_to()
        if written_to == self.written_to:
            return
        self.written_to = written_to
        rows, expired, logged = self.scene.ledger()
        for intent_id, number in expired:
            self.kept[intent_id].lost.add(number)
        assert logged >= self.logged, "attempts and events are only added to"
        self.logged = logged
        assert {row.id for row in rows} == set(self.kept), "nothing is lost, and nothing appears"
        for row in rows:
            kept = self.kept[row.id]
            if kept.seen is not None:
                follows(kept.seen, row)
            kept.seen = row
            self._is_true(row, kept)
        assert self.scene.broken() == []

    def _is_true(self, row: intents.Intent, kept: Kept) -> None:
        landed = self.world.landed(row.id)
        if row.state not in TERMINAL:
            assert row.doubt == len(kept.lost - kept.answered)
        if row.state is Status.SUCCEEDED:
            assert landed
        if row.state in (Status.FAILED_POISON, Status.CANCELLED) and row.contradicted_at is None:
            assert not landed, "never a false word"
        if row.state is Status.PENDING:
            assert kept.answered >= {attempt.number for attempt in kept.attempts}
        if row.state is Status.IN_FLIGHT:
            assert row.lease_token == kept.attempts[-1].row.lease_token

    def teardown(self) -> None:
        """Once every transaction has ended and every job has come by, nothing waits unseen."""
        try:
            if self.sides:
                for side in self.sides.values():
                    if side.is_held:
                        side.commit()
                self._settle()
        finally:
            for name, side in self.sides.items():
                self.lookers[name].close()
                side.close()

    def _settle(self) -> None:
        store = self.scene.store
        for _ in range(2):
            self.scene.forward(61)
            sweeping.expire_once(store, self.directory)
            join_once(store, self.directory)
            sweeping.withdraw_once(store, self.directory)
            escalate_once(store, self.directory)
        self.holds()
        late = [
            each
            for each in self.scene.broken(after_ticks=True)
            if each.split(":")[0] not in _UNUSED
        ]
        assert late == []


def follows(before: intents.Intent, row: intents.Intent) -> None:
    """What may have become of a row since it was last seen."""
    same = (
        "key",
        "fingerprint",
        "request_sha256",
        "seq",
        "created_at",
        "identity",
        "guard",
        "gate",
    )
    for name in same:
        assert getattr(row, name) == getattr(before, name), name
    assert row.version >= before.version
    assert row.lease_no >= before.lease_no
    assert row.request in (before.request, None)
    assert row.request is not None or row.settled_at is not None
    judged = ("status", "doubt", "veto", "lease_token", "receipt_id", "contradicted_at")
    if any(getattr(row, name) != getattr(before, name) for name in judged):
        assert row.version > before.version, "every move is compared and counted"
    assert row.veto is not None or before.veto is None
    if before.first_sent_at is not None and row.first_sent_at is not None:
        assert row.first_sent_at >= before.first_sent_at
    if before.state in TERMINAL and row.state is not before.state:
        assert before.state in (Status.FAILED_POISON, Status.CANCELLED)
        assert (row.state, row.settled_by) == (Status.SUCCEEDED, "ruling")
    if before.state is Status.SUCCEEDED:
        assert row.receipt_id == before.receipt_id
