"""What must hold in a timeline, by the numbers of the rules (README, "What is proved"): asked at
the wire, after each round, and at the end; of the rows as committed, the vendor's ledger, the pages
and what the agent was told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from outbox import Answer
from outbox.answers import answer_of
from outbox.states import TERMINAL, Status
from tests.sim import shown
from tests.sim.hosts import Host
from tests.sim.results import Results
from tests.sim.sends import Row, Sends, Violation
from tests.sim.shown import QUESTIONS
from vendors.sandbox.wire import Request

if TYPE_CHECKING:
    from tests.sim.timeline import Timeline

_NAMED = 3
# Two ticks of whoever asks: nothing waits unseen for longer.
_UNSEEN_S = 30.0
# After so long a list of any of the vendors shows what it did.
_SHOWN_S = 60.0
_LOOK = """
SELECT id, status, doubt, version, created_at, contradicted_at, business_status, receipt_id,
    failure_code, tool, key, lane, lease_until, lease_no, first_sent_at, window_ends_at, veto,
    settled_at, seq, attempts, looks, ttl_s, verify_at,
    outbox.clock() AS now
FROM outbox.intents WHERE id = ANY(%(ids)s::uuid[]) ORDER BY seq
"""


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
    sends: Sends = field(init=False)
    results: Results = field(init=False)
    found: Violation | None = None
    _last: list[Row] = field(default_factory=list)
    said: list[tuple[UUID, str]] = field(default_factory=list)
    _heard: dict[UUID, str] = field(default_factory=dict)
    _amended: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.sends = Sends(self.line)
        self.results = Results(self.line.ground)

    def leaves(self, host: Host, request: Request) -> None:
        """A request leaves. An adapter takes whatever is raised at it for the vendor's trouble, so
        a violation is kept, and the process is ended."""
        try:
            self.sends.leaves(host, request, self._rows())
        except Violation as violation:
            self.found = self.found or violation
            host.kill()

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
            self._heard[answer.intent_id] = answer.told

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
        is_told = self._heard.get(intent) == answer_of(row).told  # and was not taken back since
        return not is_told and row["status"] != Status.CANCELLED

    def twin(self, answer: Answer, untold: bool) -> None:
        """The next turn's."""
        if untold and answer.intent_id not in self.line.intents:
            raise Violation(13, "a twin was made while the first was not told")

    def received(self, status: int | None, event_id: str, *, forged: bool) -> None:
        """What the door answered."""
        if forged and status == 200:
            raise Violation(10, "a forged event was taken")
        if status == 200 and not forged and not self._is_kept(event_id):
            raise Violation(11, "the vendor was thanked for an event that was not stored")
        if status == 200 and event_id.endswith("_amended"):
            self._amended.add(event_id)

    def _is_kept(self, event_id: str) -> bool:
        return bool(
            self.line.ground.rows(
                "SELECT FROM outbox.webhook_inbox WHERE event_id = %(id)s", id=event_id
            )
        )

    # -- the person ------------------------------------------------------------------------------

    def ruled(self, verdict: str, intent: UUID) -> None:
        """A verdict was taken. Where the vendor can be asked, it was not taken against its word."""
        if not self.line.scenario.can_look_up:
            return
        landed = self._landed(intent)
        if verdict == "landed_as_another" and self._receipt_of(intent) not in {
            effect["object_id"] for effect in landed
        }:
            raise Violation(10, "a person's word was taken for an object of somebody else")
        now_s = self.line.ground.vendor.now_s
        if verdict == "not_landed" and any(e["at"] < now_s - _SHOWN_S for e in landed):
            raise Violation(10, "ruled not landed, and the vendor shows that it landed")

    def _receipt_of(self, intent: UUID) -> str:
        return str(next(row["receipt_id"] for row in self._rows() if row["id"] == intent))

    # -- at the end ------------------------------------------------------------------------------

    def is_settled(self) -> bool:
        """Whether nothing was open at the last look, and nothing is still to be read back."""
        return all(row["settled_at"] is not None and not row["verify_at"] for row in self._last)

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

    def overdue(self) -> None:
        """Faults have stopped: a person is asked once the time is up that an intent may wait,
        counted from its first send, however often it was sent since."""
        self._rows()
        left_s = self.unseen_in_s()
        if left_s is not None and left_s < 0:
            raise Violation(9, "in doubt for longer than the TTL, and nobody was asked")

    def unseen_in_s(self) -> float | None:
        """Seconds until that is so of the first one, as they were at the last look; None where
        somebody is asked about all that was sent, or it is settled."""
        return min(
            (
                row["ttl_s"] + _UNSEEN_S - (row["now"] - row["first_sent_at"]).total_seconds()
                for row in self._last
                if row["settled_at"] is None and row["first_sent_at"] and not self._asked(row)
            ),
            default=None,
        )

    def end(self) -> None:
        """Everything, by the ledger's own questions and the vendor's."""
        self.look()
        self._live(self._last)
        self._effects()
        self._invariants()
        self._asked_about_amounts()
        self.results.consume(keep=True)
        for rule, problem in self.results.problems(self._last):
            raise Violation(rule, problem)
        for problem in shown.problems(self.line.ground.pages, self.line.ground.rows(QUESTIONS)):
            raise Violation(9, problem)

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

    def _asked_about_amounts(self) -> None:
        """An object of another amount was seen: a person was asked, whoever ruled since."""
        seen = self.line.ground.rows(
            "SELECT w.event_id FROM outbox.webhook_inbox w JOIN outbox.intents i "
            "ON i.id = w.intent_id WHERE w.event_id = ANY(%(ids)s) AND i.amount_minor IS NOT NULL "
            "AND w.kind = 'payment_intent.succeeded' AND NOT EXISTS ("
            "SELECT FROM outbox.escalations e WHERE e.intent_id = i.id "
            "AND 'another_amount' = ANY(e.reasons))",
            ids=sorted(self._amended),
        )
        if seen:
            raise Violation(10, f"{seen[0]['event_id']} shows another amount, and nobody was asked")

    def _is_asked_about_two(self, row: Row) -> bool:
        if not self.line.scenario.can_look_up:
            return True  # nothing can be seen there; what the tool may do is said beforehand
        return self._asked(row) or row["id"] in self.line.person.ruled

    def _kinds(self) -> list[str]:
        return [kind for _, kind in self.line.wire.happened]

    def _invariants(self) -> None:
        for broken, ids in self.line.ground.broken():
            raise Violation(broken.rule or 0, f"{broken.check}: {ids}")

    # -- what is known ---------------------------------------------------------------------------

    def receipt(self, intent: UUID, *, wrong: bool) -> str:
        """What a person states as the receipt."""
        if wrong:
            return self.line.wire.of_somebody_else() or "pi_of_somebody_else"
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
