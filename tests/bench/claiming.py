"""What a claim of 50 rows costs beside what else the ledger holds: the product's own `Claimer`,
in this process, on one ledger after the other, claim by claim."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from statistics import median

import psycopg

from outbox import Outbox, Scope
from outbox.outcomes import Business, Reading, Receipt, Standing, Wire
from outbox.store import records
from outbox.store.claims import Claimer
from outbox.store.connection import Store
from outbox.store.intents import Intent
from outbox.store.records import Ended
from resolvers.directory import Directory
from tests.bench import vendor
from tests.bench.harness import Run
from tests.bench.programs import Stuck
from tests.bench.rows import Pair
from tests.bench.stage import Place

_LIMIT = 50
_WARM = 3
_BY_COLUMN = {
    "id": "gen_random_uuid()",
    "key": "sha256(convert_to('key' || n || %(mark)s, 'UTF8'))",
    "fingerprint": "sha256(convert_to(n || %(mark)s, 'UTF8'))",
    "due_at": "outbox.clock()",
}
SETTLED = {
    "status": "'succeeded'",
    "first_sent_at": "outbox.clock()",
    "last_sent_at": "outbox.clock()",
    "settled_at": "outbox.clock()",
    "told_at": "outbox.clock()",
    "escalate_at": "NULL",
    "receipt_id": "'wr_' || n || %(mark)s",
    "business_status": "'paid'",
}
COLUMNS = """
SELECT attname AS name FROM pg_attribute WHERE attrelid = 'outbox.intents'::regclass
AND attnum > 0 AND NOT attisdropped AND attidentity = '' AND attgenerated = ''
"""
# What is copied stays as it is, in every repetition: it never comes to be claimed.
NEVER_DUE = """
UPDATE outbox.intents SET due_at = due_at + INTERVAL '1 year', escalate_at = NULL
WHERE id = %(row)s
"""


@dataclass
class Ledger:
    """One ledger with its claimer; ``row`` is the real intent that others are copied from,
    ``in_lane`` one in a lane where the ledger has a lane."""

    place: Place
    store: Store
    claimer: Claimer
    row: str
    in_lane: str
    copies: int = 0

    def add(self, count: int, values: Mapping[str, str] | None = None, of: str = "") -> None:
        """So many copies of a real intent (``row`` by default), each with a key of its own."""
        self.copies += 1
        said = {**_BY_COLUMN, **(values or {})}
        names = [row["name"] for row in self.place.sql(COLUMNS)]
        values_of = ", ".join(said.get(name, f"i.{name}") for name in names)
        statement = (
            f"INSERT INTO outbox.intents ({', '.join(names)}) SELECT {values_of} "
            "FROM generate_series(1, %(count)s) n, outbox.intents i WHERE i.id = %(row)s"
        )
        self.place.sql(
            statement, {"count": count, "row": of or self.row, "mark": f" of {self.copies}"}
        )

    def settle_in(self) -> None:
        """What autovacuum and the checkpointer do by themselves some time after so many rows have
        come: else each page that a claim reads would first have another one written."""
        self.place.sql("VACUUM (ANALYZE) outbox.intents")
        self.place.sql("CHECKPOINT")

    def run_through(self, count: int) -> None:
        """So many come, are claimed and land, as the sender writes that. Raises ``Stuck``."""
        self.add(count)
        done = 0
        while done < count:
            rows = self.claimer.claim(_LIMIT)
            if not rows:
                raise Stuck(f"{done} of {count} rows went through")
            with self.store.transaction(planned_once=True) as tx:
                records.record(tx, [Ended(row, _landed(row)) for row in rows])
            done += len(rows)

    def claim_ms(self) -> float:
        """One claim. Raises ``Stuck`` where it did not find what is there."""
        began = time.perf_counter()
        rows = self.claimer.claim(_LIMIT)
        took_ms = (time.perf_counter() - began) * 1000
        if len(rows) != _LIMIT:
            raise Stuck(f"a claim found {len(rows)} of {_LIMIT} rows")
        return took_ms


def _landed(row: Intent) -> Receipt:
    reading = Reading(
        receipt_id=f"wr_{row.id.hex}",
        standing=Standing.LANDED,
        business=Business.PAID,
        word="done",
        owner=str(row.id),
    )
    return Receipt(reading, Wire(http_status=200))


@contextmanager
def _ledger(run: Run, *, lane: bool = False) -> Iterator[Ledger]:
    with run.stage.place() as place:
        settings = place.settings
        outbox, args = Outbox(settings), {"number": 0, "amount": 1, "text": "x" * 150, "lane": 1}
        tools = [vendor.write_tool()]
        if lane:
            tools.append(vendor.write_tool("write_in_lane", lane=("lane",)))
        with closing(outbox), psycopg.connect(place.database_url.replace("+psycopg", "")) as own:
            scope = Scope(tenant="acme", run_id="claims")
            rows = [str(outbox.enqueue(own, tool, scope, args).intent_id) for tool in tools]
        store, directory = Store(settings, size=1), Directory.of(settings)
        with closing(store), closing(directory):
            claimer = Claimer(store, directory.sendable(), owner="bench", lease_s=3600.0)
            place.sql(NEVER_DUE, {"row": rows[0]})
            yield Ledger(place, store, claimer, rows[0], rows[-1])


@contextmanager
def _ledgers(run: Run) -> Iterator[dict[str, Ledger]]:
    """The empty ledger, and those that hold what the rows of the benchmark say; the lane's is
    compared with a lane of one row, which is claimed for in the same two statements."""
    sizes = run.sizes
    wanted: dict[str, Callable[[Ledger], None]] = {
        "claim-settled": lambda ledger: ledger.add(sizes.settled, SETTLED),
        "claim-pending": lambda ledger: ledger.add(sizes.pending),
        "claim-lane": lambda ledger: ledger.add(sizes.lane, of=ledger.in_lane),
    }
    with ExitStack() as exits:
        found = {"empty": exits.enter_context(_ledger(run))}
        for name, fill in wanted.items():
            if run.wants(name):
                found[name] = exits.enter_context(_ledger(run, lane=name == "claim-lane"))
                fill(found[name])
                if name != "claim-lane":
                    # A ledger in use, whose indexes are where the server works.
                    found[name].run_through(sizes.churn)
                run.limit_s(0.0)
        if run.wants("claim-lane"):
            found["short lane"] = exits.enter_context(_ledger(run, lane=True))
        if run.wants("claim-pinned"):
            found["claim-pinned"] = exits.enter_context(_ledger(run))
            found["claim-pinned"].add(sizes.settled, SETTLED)
        for ledger in found.values():
            ledger.settle_in()
        if run.wants("claim-pinned"):
            exits.enter_context(pinned(found["claim-pinned"].place))
            found["claim-pinned"].run_through(sizes.churn)
        yield found


@contextmanager
def pinned(place: Place) -> Iterator[None]:
    """Somebody's snapshot, left open: of what has changed since nothing may be removed, neither a
    row nor its entries in the indexes."""
    with psycopg.connect(place.database_url.replace("+psycopg", "")) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM outbox.consumers")
        yield
        connection.rollback()


def claims(run: Run) -> Mapping[str, Pair]:
    """The median of so many claims on each ledger, in turn."""
    ledgers = run.keep("ledgers", lambda: _ledgers(run))
    for ledger in ledgers.values():
        ledger.add((run.sizes.claims + _WARM) * _LIMIT)
    took: dict[str, list[float]] = {name: [] for name in ledgers}
    for number in range(run.sizes.claims + _WARM):
        run.limit_s(0.0)
        for name, ledger in ledgers.items():
            took_ms = ledger.claim_ms()
            if number >= _WARM:
                took[name].append(took_ms)
    p50 = {name: median(times) for name, times in took.items()}
    against = {"claim-lane": "short lane"}
    return {
        name: Pair(p50[name], p50[against.get(name, "empty")])
        for name in p50
        if name.startswith("claim-")
    }
