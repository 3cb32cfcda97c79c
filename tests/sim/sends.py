"""What must hold as a request leaves: of the rows as committed, and of what left before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from outbox.states import Status
from tests.sim.hosts import Host
from vendors.sandbox.wire import Request

if TYPE_CHECKING:
    from tests.sim.timeline import Timeline

# Of a row that is being sent: whether an answer stands under its key, whether its account was
# closed before it was claimed, whether a person looks at it, and whether its window was counted
# anew while an earlier send of it is in doubt.
_FORBIDDEN = """
SELECT EXISTS (SELECT FROM outbox.attempts a WHERE a.intent_id = i.id
        AND (a.http_status = 500 OR a.should_retry IS FALSE)) AS stored,
    EXISTS (SELECT FROM outbox.switches s WHERE s.kind NOT IN ('clock', 'breaker')
        AND starts_with(i.gate, s.gate_prefix)
        AND s.xmin::text::bigint < i.xmin::text::bigint) AS closed,
    EXISTS (SELECT FROM outbox.escalations e WHERE e.intent_id = i.id AND e.closed_at IS NULL
        AND e.acked_until > outbox.clock()) AS looked_at,
    EXISTS (SELECT FROM outbox.attempts a WHERE a.intent_id = i.id
        AND a.started_at < i.first_sent_at AND i.doubt > 0 AND NOT EXISTS (
            SELECT FROM outbox.attempts b WHERE b.intent_id = i.id AND b.lease_no = a.lease_no
            AND b.outcome = 'not_sent')) AS anew
FROM outbox.intents i WHERE i.id = %(id)s
"""


Row = dict[str, Any]


class Violation(Exception):
    """A rule was broken; ``rule`` is its number."""

    def __init__(self, rule: int, what: str) -> None:
        self.rule = rule
        super().__init__(f"rule {rule}: {what}")


@dataclass(slots=True)
class Sends:
    """One timeline's."""

    line: Timeline
    _out: dict[UUID, Any] = field(default_factory=dict)  # since when each may have been applied
    _bodies: dict[UUID, bytes] = field(default_factory=dict)

    def leaves(self, host: Host, request: Request, rows: Sequence[Row]) -> None:
        """A request leaves. Raises ``Violation``."""
        if host.store.open:
            raise Violation(3, f"a transaction is open while a {request.method} is on the wire")
        if request.method == "GET":
            return
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
        self._vetoes(row, again=again)

    def _vetoes(self, row: Row, *, again: bool) -> None:
        known = self.line.ground.rows(_FORBIDDEN, id=row["id"])[0]
        honours_keys = self.line.scenario.honours_keys
        if self.line.is_clock_doubted and (again or not honours_keys):
            raise Violation(12, "a request was sent while the clock is in doubt")
        if known["closed"]:
            raise Violation(9, "a request was sent for an account that was closed before its claim")
        if again and honours_keys and known["stored"]:
            raise Violation(2, "a request was sent again after an answer that stands under its key")
        if again and known["looked_at"]:
            raise Violation(9, "a request was sent again while a person looks")
        if known["anew"]:
            raise Violation(8, "the window was counted anew while an earlier send is in doubt")

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
