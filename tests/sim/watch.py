"""What must hold in a timeline, by the numbers of the rules (README, "What is proved"): asked at
the wire, after each round, and at the end; of the rows as committed, the vendor's ledger, the pages
and what the agent was told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from outbox import Answer
from outbox.answers import answer_of
from outbox.states import TERMINAL, Status
from tests.sim.hosts import Host
from vendors.sandbox.wire import Request

if TYPE_CHECKING:
    from tests.sim.timeline import Timeline

_CONSUMER = "billing"
_NAMED = 3
_LOOK = """
SELECT id, status, doubt, version, created_at, contradicted_at, business_status, receipt_id,
    failure_code, tool, key, lane, lease_until, lease_no, first_sent_at, window_ends_at, veto,
    settled_at, seq, attempts, looks, outbox.clock() AS now
FROM outbox.intents WHERE id = ANY(%(ids)s::uuid[]) ORDER BY seq
"""


Row = dict[str, Any]


class Violation(Exception):
    """A rule was broken; ``rule`` is its number."""

    def __init__(self, rule: int, what: str) -> None:
        self.rule = rule
        super().__init__(f"rule {rule}: {what}")


@dataclass(slots=True)
class _Seen:
    version: int
    status: str
    looks: int


@dataclass(slots=True)
class Watch:
    """One timeline's."""

    line: Timeline
    _seen: dict[UUID, _Seen] = field(default_factory=dict)
    _out: dict[UUID, Any] = field(default_factory=dict)  # since when each may have been applied
    handed: list[int] = field(default_factory=list)
    _bodies: dict[UUID, bytes] = field(default_factory=dict)
    found: Violation | None = None
    _last: list[Row] = field(default_factory=list)
    said: list[tuple[UUID, str]] = field(default_factory=list)
    _heard: set[UUID] = field(default_factory=set)

    # -- at the wire -----------------------------------------------------------------------------

    def leaves(self, host: Host, request: Request) -> None:
        """A request leaves. An adapter takes whatever is raised at it for the vendor's trouble, so
        a violation is kept, and the process is ended."""
        try:
            if request.method == "GET":
                self._read(host)
            else:
                self._sent(host, request)
        except Violation as violation:
            self.found = self.found or violation
            host.kill()

    def _sent(self, host: Host, request: Request) -> None:
        if host.store.open:
            raise Violation(3, "a transaction is open while a call is on the wire")
        rows = self._rows()
        row = self._row_of(request, rows)
        if row is None:
            raise Violation(3, "a request of no committed intent is on the wire")
        if row["first_sent_at"] is None:
            raise Violation(3, "a request left before its claim was committed")
        # An attempt that was proved not sent began anew: it is no send before this one.
        again = self._out.get(row["id"]) == row["first_sent_at"]
        self._out[row["id"]] = row["first_sent_at"]
        self._frozen(row, request)
        if row["status"] != Status.IN_FLIGHT or row["now"] > row["lease_until"]:
            raise Violation(3, "a request left after its claim's own time")
        if any(self._before(row, rows)):
            raise Violation(4, "a request left before the head of its lane was settled")
        if self.line.is_clock_doubted and again:
            raise Violation(12, "a request was sent again while the clock is in doubt")
        if again and self.line.scenario.honours_keys and self._is_known_as_stored(row):
            raise Violation(2, "a request was sent again after an answer that stands under its key")

    def _is_known_as_stored(self, row: Row) -> bool:
        return bool(
            self.line.ground.rows(
                "SELECT FROM outbox.attempts WHERE intent_id = %(id)s "
                "AND (http_status = 500 OR should_retry IS FALSE)",
                id=row["id"],
            )
        )

    def _read(self, host: Host) -> None:
        if host.store.open:
            raise Violation(3, "a transaction is open while a look-up is on the wire")

    def _before(self, row: Row, rows: Sequence[Row]) -> Iterator[bool]:
        """Of each row that was enqueued before it in its lane, whether it is still open."""
        for other in rows:
            if other["lane"] is not None and other["lane"] == row["lane"]:
                yield other["seq"] < row["seq"] and other["settled_at"] is None

    def _frozen(self, row: Row, request: Request) -> None:
        sent = request.path.encode() + b"\n" + request.body
        if self._bodies.setdefault(row["id"], sent) != sent:
            raise Violation(2, "another request than the first under the same key")

    def _row_of(self, request: Request, rows: Sequence[Row]) -> Row | None:
        key = request.headers.get("idempotency-key", "")
        for row in rows:
            if row["key"].hex() == key or str(row["id"]).encode() in request.body:
                return row
        return None

    # -- after each round ------------------------------------------------------------------------

    def look(self) -> None:
        """Versions rise, what is settled stays, and no word is false."""
        for row in self._rows():
            before = self._seen.get(row["id"])
            now = _Seen(row["version"], row["status"], row["looks"])
            if before is not None:
                if now.version < before.version:
                    raise Violation(5, "a version went back")
                if now != before and now.version == before.version:
                    raise Violation(5, "evidence came or a status changed, and no version rose")
                if Status(before.status) in TERMINAL and now.status != before.status:
                    self._way_out(row, before)
            self._seen[row["id"]] = now
            answer = answer_of(row)
            self.told(answer)
            if row["contradicted_at"] is not None and answer.told != "unknown":
                raise Violation(10, f"a contradiction is told as {answer.told}")

    def _way_out(self, row: Row, before: _Seen) -> None:
        if row["id"] not in self.line.person.ruled or row["status"] != Status.SUCCEEDED:
            raise Violation(10, f"{before.status} became {row['status']}")

    def heard(self, answer: Answer) -> None:
        """The agent was told this, and heard it."""
        self.told(answer)
        self.said.append((answer.intent_id, answer.told))
        if answer.told in ("settled", "failed", "cancelled"):
            self._heard.add(answer.intent_id)

    def told(self, answer: Answer) -> None:
        """What an agent hears against what the vendor did."""
        if answer.intent_id in self.line.person.ruled and not self.line.scenario.can_look_up:
            return  # a person's word where nobody can look
        landed = self._landed(answer.intent_id)
        ruled = answer.intent_id in self.line.person.ruled
        if answer.told in ("failed", "cancelled") and landed and not ruled:
            raise Violation(7, f"told {answer.told}, and the vendor applied it")
        if answer.told == "settled" and not landed:
            raise Violation(6, "told settled, and the vendor applied nothing")

    # -- the agent, the consumer, the door -------------------------------------------------------

    def same_row(self, answer: Answer) -> None:
        """The same turn's repeat."""
        if answer.intent_id not in self.line.intents:
            raise Violation(1, "a repeat of the same turn made a second intent")
        self.heard(answer)

    def untold(self, intent: UUID) -> bool:
        """Whether a next turn must be given the first row, and not one of its own."""
        row = next(row for row in self._rows() if row["id"] == intent)
        return intent not in self._heard and row["status"] != Status.CANCELLED

    def twin(self, answer: Answer, untold: bool) -> None:
        """The next turn's."""
        if untold and answer.intent_id not in self.line.intents:
            raise Violation(13, "a twin was made while the first was not told")

    def received(self, status: int | None, *, forged: bool) -> None:
        """What the door answered."""
        if forged and status == 200:
            raise Violation(10, "a forged event was taken")

    def consume(self, *, keep: bool) -> None:
        """A consumer takes its results."""
        agent = self.line.ground.agent
        taken = self.line.ground.outbox.settlements(agent, consumer=_CONSUMER)
        if keep:
            agent.commit()
            self.handed += [one.id for one in taken]
        else:
            agent.rollback()

    # -- at the end ------------------------------------------------------------------------------

    def is_settled(self) -> bool:
        """Whether nothing was open at the last look."""
        return all(row["settled_at"] is not None for row in self._last)

    def is_asked(self) -> bool:
        """Whether a person was asked about all that was open at the last look."""
        return all(row["settled_at"] is not None or self._asked(row) for row in self._last)

    def verdict(self) -> str:
        """The status of each intent, or how many there are; whether a question is open."""
        rows = self._last
        asked = any(row["settled_at"] is None for row in rows) or any(map(self._asked, rows))
        each = "+".join(sorted(row["status"] for row in rows))
        return (each if len(rows) <= _NAMED else f"{len(rows)} intents") + ", asked" * asked

    def live(self) -> None:
        """Faults stopped: settled, or a person was asked."""
        self._live(self._rows())

    def _live(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if row["settled_at"] is None and not self._asked(row):
                raise Violation(9, f"{row['status']} and nobody was asked")

    def end(self) -> None:
        """Everything, by the ledger's own questions and the vendor's."""
        self.look()
        self._live(self._last)
        self._effects()
        self._invariants()
        self.consume(keep=True)
        self._delivered()

    def _effects(self) -> None:
        scenario = self.line.scenario
        for row in self._last:
            standing = self._standing(row["id"])
            if len(standing) > 1 and not self._is_asked_about_two(row):
                raise Violation(10, f"{len(standing)} effects, and nobody was asked")
            excused = "redelivery", "pruned_early"
            if len(standing) > 1 and not (set(self._kinds()) & set(excused)):
                raise Violation(8, f"{len(standing)} effects of one intent")
            if len(standing) > 1 and scenario.honours_keys and "pruned_early" not in self._kinds():
                raise Violation(1, f"{len(standing)} effects at a vendor with keys")
        found = [v["check"] for v in self.line.ground.vendor.violations()]
        # What was answered and never recorded, by a process that was killed, is nobody's to know:
        # what was recorded is asked at the wire.
        known = {"more_than_one_effect", "post_after_stored_500", "post_after_do_not_retry"}
        if set(found) - known:
            raise Violation(2, f"the vendor saw {sorted(set(found) - known)}")

    def _is_asked_about_two(self, row: Row) -> bool:
        if not self.line.scenario.can_look_up:
            return True  # nothing can be seen there; what the tool may do is said beforehand
        return self._asked(row) or row["id"] in self.line.person.ruled

    def _kinds(self) -> list[str]:
        return [kind for _, kind in self.line.wire.happened]

    def _invariants(self) -> None:
        for broken, ids in self.line.ground.broken():
            raise Violation(broken.rule or 0, f"{broken.check}: {ids}")

    def _delivered(self) -> None:
        rows = self.line.ground.rows("SELECT id, intent_id, kind FROM outbox.settlements")
        settled = [row["intent_id"] for row in rows if row["kind"] == "settled"]
        if len(settled) > len(set(settled)):
            raise Violation(10, "an intent was settled twice")
        every = [row["id"] for row in rows]
        if sorted(self.handed) != sorted(every):
            raise Violation(11, f"results {sorted(every)}, delivered {sorted(self.handed)}")

    # -- what is known ---------------------------------------------------------------------------

    def receipt(self, intent: UUID, *, wrong: bool) -> str:
        """What a person states as the receipt."""
        if wrong:
            return "pi_of_somebody_else"
        landed = self._landed(intent)
        return str(landed[0]["object_id"]) if landed else ""

    def _rows(self) -> list[Row]:
        self._last = self.line.ground.rows(_LOOK, ids=[str(i) for i in self.line.intents])
        return self._last

    def _asked(self, row: Row) -> bool:
        return bool(
            self.line.ground.rows(
                "SELECT FROM outbox.escalations e WHERE e.closed_at IS NULL AND ("
                "e.intent_id = %(id)s OR e.holder IS NOT NULL OR e.intent_id IN ("
                "SELECT h.id FROM outbox.intents h WHERE h.lane = %(lane)s "
                "AND h.settled_at IS NULL))",
                id=row["id"], lane=row["lane"],
            )
        )  # fmt: skip

    def _of(self, intent: UUID) -> list[Row]:
        known = {row["id"]: row["key"] for row in self._last}
        if intent not in known:
            known = {row["id"]: row["key"] for row in self._rows()}
        key = known[intent].hex()
        return [
            effect for effect in self.line.ground.vendor.effects()
            if effect["outbox_id"] == str(intent) or effect["key"] == key
        ]  # fmt: skip

    def _landed(self, intent: UUID) -> list[Row]:
        return [effect for effect in self._of(intent) if effect["outcome"] == "applied"]

    def _standing(self, intent: UUID) -> list[str]:
        undone = [e["object_id"] for e in self._of(intent) if e["outcome"] == "reversed"]
        return [e["object_id"] for e in self._landed(intent) if e["object_id"] not in undone]
