"""A ledger as it is after years: so many settled intents with all that is kept beside them, so many
that are due, and one that is empty to compare it with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

from outbox import Outbox, Scope
from outbox.store.claims import Claimer
from outbox.store.connection import Store
from resolvers.directory import Directory
from tests.bench import vendor
from tests.bench.claiming import COLUMNS, NEVER_DUE, SETTLED
from tests.bench.harness import Run
from tests.bench.stage import Place

TENANT = "acme"
_PIECE = 250_000
# How many of the intents were enqueued for real, spread over the whole of the ledger.
RECORDED = 200
# So many, in doubt or never sent, are due for a person in both ledgers.
OVERDUE = 200
# Ids and receipts begin as their keys do, which is how enqueue and the vendor make them; sorted,
# because the pages of four indexes are then written once for each piece and not once for each row.
_COPIES = """
INSERT INTO outbox.intents ({names}) SELECT {values} FROM (
    SELECT n, key, encode(substr(key, 1, 16), 'hex')::uuid AS id FROM (
        SELECT n, sha256(uuid_send(gen_random_uuid())) AS key
        FROM generate_series(%(first)s::bigint, %(last)s::bigint) n) s
    ORDER BY key) k, outbox.intents i WHERE i.id = %(row)s
"""
_BY_COLUMN = {
    "id": "k.id",
    "key": "k.key",
    "fingerprint": "k.key",
    "run_id": "'run-' || k.n / 4",
    "due_at": "outbox.clock()",
    "escalate_at": "outbox.clock() - INTERVAL '1 hour'",
}
_SETTLED = {
    **SETTLED,
    "version": "3",
    "attempts": "1",
    "lease_no": "1",
    "settled_by": "'reply'",
    "receipt_id": "'wr_' || k.id",
}
_DOUBTFUL = {
    "status": "'unknown'",
    "version": "3",
    "attempts": "1",
    "lease_no": "1",
    "doubt": "1",
    "first_sent_at": "outbox.clock()",
    "last_sent_at": "outbox.clock()",
}
# What the sender writes with each result.
_BESIDE = """
WITH made AS ({copies} RETURNING id, created_at, settled_at, receipt_id), tried AS (
    INSERT INTO outbox.attempts (intent_id, lease_no, started_at, ended_at, outcome, http_status)
    SELECT id, 1, created_at, settled_at, 'receipt', 200 FROM made
), noted AS (
    INSERT INTO outbox.events (intent_id, at, actor, kind)
    SELECT id, settled_at, 'agent', 'enqueue_noted' FROM made WHERE get_byte(uuid_send(id), 0) < 8
), heard AS (
    INSERT INTO outbox.webhook_inbox (vendor, account, mode, event_id, state, intent_id,
        received_at)
    SELECT 'bench', 'default', 'test', 'evt_' || id, 'joined', id, settled_at
    FROM made WHERE get_byte(uuid_send(id), 1) < 8
), told AS (
    INSERT INTO outbox.settlements (intent_id, version, kind, status, told, business_status,
        receipt_id, settled_by, at)
    SELECT id, 3, 'settled', 'succeeded', 'settled', 'paid', receipt_id, 'reply', settled_at
    FROM made RETURNING id
)
INSERT INTO outbox.deliveries (consumer, settlement_id, consumed_at)
SELECT 'billing', id, outbox.clock() FROM told
"""
_CONSUMER = """
INSERT INTO outbox.consumers (name, registered_at, filled_to)
VALUES ('billing', outbox.clock(), NULL) ON CONFLICT DO NOTHING
"""
_SETTLE = """
UPDATE outbox.intents SET status = 'succeeded', first_sent_at = outbox.clock(),
    settled_at = outbox.clock(), told_at = outbox.clock(), settled_by = 'reply',
    escalate_at = NULL, receipt_id = 'wr_' || id
WHERE status = 'pending' AND tenant = %(tenant)s AND run_id = 'recorded'
"""


@dataclass
class Grown:
    """One ledger with the product's own parts over it. ``row`` is the intent that others are copied
    from; ``recorded`` are the arguments of intents that were enqueued and are settled."""

    place: Place
    outbox: Outbox
    own: psycopg.Connection[Any]
    store: Store
    directory: Directory
    claimer: Claimer
    row: str = ""
    recorded: list[dict[str, Any]] = field(default_factory=list)
    copies: int = 0
    numbers: int = 0

    def args(self) -> dict[str, Any]:
        """Arguments that nobody has enqueued yet."""
        self.numbers += 1
        return {"number": self.numbers, "amount": 1, "text": "x" * 150, "lane": 1}

    def enqueue(self, args: Mapping[str, Any], run_id: str = "new") -> Any:
        """One enqueue in a transaction of its own; the answer."""
        scope = Scope(tenant=TENANT, run_id=run_id)
        with self.own.transaction():
            return self.outbox.enqueue(self.own, vendor.write_tool(), scope, args)

    def record(self, count: int) -> None:
        """So many intents that an enqueue finds again, settled and told."""
        for _ in range(count):
            args = self.args()
            self.enqueue(args, "recorded")
            self.recorded.append(args)
        self.place.sql(_SETTLE, {"tenant": TENANT})

    def add(self, count: int, values: Mapping[str, str], *, settled: bool = False) -> None:
        """So many copies, at once. Nothing that a foreign key names is missing, and is not looked
        for again."""
        names = [row["name"] for row in self.place.sql(COLUMNS)]
        said = {**_BY_COLUMN, **values}
        copies = _COPIES.format(
            names=", ".join(names),
            values=", ".join(said.get(name, f"i.{name}") for name in names),
        )
        first, self.copies = self.copies + 1, self.copies + count
        self.place.sql("SET session_replication_role = replica")
        try:
            self.place.sql(
                _BESIDE.format(copies=copies) if settled else copies,
                {"first": first, "last": self.copies, "row": self.row},
            )
        finally:
            self.place.sql("RESET session_replication_role")

    def fill(self, run: Run) -> None:
        """All that the ledger holds before anything is measured."""
        self.place.sql(_CONSUMER)
        for first in range(0, run.sizes.grown, _PIECE):
            run.limit_s(0.0)
            piece = min(_PIECE, run.sizes.grown - first)
            self.add(piece, _SETTLED, settled=True)
            self.record(RECORDED * piece // run.sizes.grown)
        for first in range(0, run.sizes.grown_due, _PIECE):
            run.limit_s(0.0)
            self.add(min(_PIECE, run.sizes.grown_due - first), {})

    def ready(self) -> None:
        """As many recorded intents and open questions in each ledger, and what autovacuum does by
        itself some time after so many rows have come."""
        self.record(RECORDED - len(self.recorded))
        self.add(OVERDUE, {})
        self.add(OVERDUE, _DOUBTFUL)
        self.place.sql("VACUUM (ANALYZE)")


@contextmanager
def open_grown(run: Run) -> Iterator[Grown]:
    """A ledger with one intent in it, until the block ends."""
    with run.stage.place() as place:
        settings = place.settings
        outbox, store = Outbox(settings), Store(settings, size=1)
        directory = Directory.of(settings)
        url = place.database_url.replace("+psycopg", "")
        with closing(outbox), closing(store), closing(directory), psycopg.connect(url) as own:
            claimer = Claimer(store, directory.sendable(), owner="bench", lease_s=3600.0)
            ledger = Grown(place, outbox, own, store, directory, claimer)
            ledger.row = str(ledger.enqueue(ledger.args(), "copied").intent_id)
            place.sql(NEVER_DUE, {"row": ledger.row})
            yield ledger
