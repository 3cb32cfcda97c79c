"""What the product's statements cost beside ten million settled intents and a million due ones,
against an empty table, in turn. In both ledgers somebody holds a snapshot from before the first of
them: what they leave behind is the same, and the size of the ledger is all that differs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from outbox import Scope
from outbox.intent import draft
from outbox.store import intents, overdue
from outbox.store.invariants import OF_INTENTS, OF_SEEN
from outbox.store.invariants_beside import BESIDE
from resolvers import doctoring
from tests import reads
from tests.bench import vendor
from tests.bench.claiming import pinned
from tests.bench.grown import OVERDUE, TENANT, Grown, open_grown
from tests.bench.harness import Run
from tests.bench.programs import Stuck
from tests.bench.rows import Pair
from tests.plans import AS_IF_LARGE, Ask, explained, read_whole

_LIMIT = 50
_WARM = 3
_ASKED = 100
_PLAIN = 3
_LARGE = 1_000_000
_ALL = "of the unsettled intents"
_INDEX_BYTES = """
SELECT c.relname AS of, x.indexrelid::regclass::text AS name,
    pg_relation_size(x.indexrelid) AS bytes
FROM pg_index x JOIN pg_class c ON c.oid = x.indrelid
WHERE c.relnamespace = 'outbox'::regnamespace AND pg_relation_size(c.oid) > 0
UNION ALL
SELECT relname, '', pg_table_size(oid) FROM pg_class
WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r' AND pg_relation_size(oid) > 0
ORDER BY 1, 3 DESC
"""


@dataclass
class _Both:
    """The two ledgers that are compared."""

    empty: Grown
    grown: Grown


class _Undone(Exception):
    """Takes back what a measurement has locked."""


@contextmanager
def _both(run: Run) -> Iterator[_Both]:
    with ExitStack() as exits:
        both = _Both(*(exits.enter_context(open_grown(run)) for _ in range(2)))
        both.grown.fill(run)
        for ledger in (both.empty, both.grown):
            ledger.ready()
        run.told["growth"] = _bytes(both.grown)
        _check_plans(run, both.grown)
        for ledger in (both.empty, both.grown):
            exits.enter_context(pinned(ledger.place))
        yield both


def _bytes(ledger: Grown) -> dict[str, Any]:
    """``intents`` there are, and for each of them the bytes of every table and index."""
    (row,) = ledger.place.sql("SELECT count(*) AS n FROM outbox.intents")
    count = int(row["n"])
    bytes_of = {
        (found["of"] if not found["name"] else found["name"].removeprefix("outbox.")):
        round(found["bytes"] / count, 1)
        for found in ledger.place.sql(_INDEX_BYTES)
    }  # fmt: skip
    return {"intents": count, "bytes_per_intent": bytes_of}


def _check_plans(run: Run, ledger: Grown) -> None:
    """Notes every statement of these paths that reads a table of the ledger from end to end."""
    made = draft(vendor.write_tool(), Scope(tenant=TENANT, run_id="new"), ledger.args())
    enqueueing = reads.enqueueing(made)
    found = ("a recorded key", "what was told", "what became of it")
    check = partial(_check, run, ledger)
    check("growth-claim", reads.claiming(reads.claim_params(ledger.claimer)), once=True)
    check("growth-enqueue", {name: ask for name, ask in enqueueing.items() if name not in found})
    check("growth-find", {name: enqueueing[name] for name in found})
    check("growth-escalate", reads.due(vendor.NAME, "default"))
    # Its joins of the newest 20,000 are as they are for a large table, or not at all.
    settings = () if run.sizes.grown >= _LARGE else AS_IF_LARGE
    check("growth-doctor", reads.doctor(ledger.directory), some_of_it=True, settings=settings)


def _check(
    run: Run,
    ledger: Grown,
    row: str,
    asked: Mapping[str, Ask],
    *,
    once: bool = False,
    some_of_it: bool = False,
    settings: Sequence[str] = (),
) -> None:
    url = ledger.place.database_url.replace("+psycopg", "")
    for name, ask in asked.items():
        run.limit_s(0.0)
        plans = explained(url, ask, once=once, settings=settings)
        tables = read_whole(plans, some_of_it=some_of_it)
        if tables:
            run.fault(f"{name}: reads all of {', '.join(sorted(tables))}", row)


def _claim(ledger: Grown) -> None:
    rows = ledger.claimer.claim(_LIMIT)
    if len(rows) != _LIMIT:
        raise Stuck(f"a claim found {len(rows)} of {_LIMIT} rows")


def _enqueue(ledger: Grown) -> None:
    if ledger.enqueue(ledger.args()).deduplicated:
        raise Stuck("a new intent was there before")


def _find(ledger: Grown) -> None:
    args = ledger.recorded[ledger.numbers % len(ledger.recorded)]
    if not ledger.enqueue(args, "recorded").deduplicated:
        raise Stuck("a recorded intent was not found")


def _escalate(ledger: Grown) -> None:
    """A tick's questions, with a full batch of each kind; what they lock is let go."""
    try:
        with ledger.store.transaction() as tx:
            since = intents.now(tx)
            (place,) = overdue.places(tx, since)
            found = len(overdue.claim_sent(tx, since, _ASKED))
            found += len(overdue.claim_waiting(tx, place, since, _ASKED))
            overdue.held_lanes(tx, wait_s=900.0, limit=_ASKED)
            if found != 2 * _ASKED:
                raise Stuck(f"a tick found {found} of {2 * _ASKED} overdue rows")
            raise _Undone
    except _Undone:
        pass


def _doctor(run: Run, ledger: Grown) -> Pair:
    """All of `doctor` beside one plain read, for each question that looks at all that is unsettled,
    of just that. It grows with those rows and with nothing else."""
    plain_s = _plain_read_s(ledger)
    began = time.perf_counter()
    found = doctoring.findings(ledger.store, ledger.directory)
    took_s = time.perf_counter() - began
    for finding in found:
        if finding.detail.startswith("not checked"):
            run.fault(f"doctor: {finding.check}: {finding.detail}", "growth-doctor")
    return Pair(took_s, plain_s * sum(i.looks_at.startswith(_ALL) for i in (*OF_INTENTS, *BESIDE)))


def _plain_read_s(ledger: Grown) -> float:
    took_s = []
    for _ in range(_PLAIN):
        began = time.perf_counter()
        ledger.place.sql(f"SELECT count(request) FROM {OF_SEEN} i")
        took_s.append(time.perf_counter() - began)
    return median(took_s)


_IN_TURN: Mapping[str, Callable[[Grown], None]] = {
    "growth-claim": _claim,
    "growth-enqueue": _enqueue,
    "growth-find": _find,
    "growth-escalate": _escalate,
}


def growth(run: Run) -> Mapping[str, Pair]:
    """The median of so many of each, on both ledgers in turn."""
    both = run.keep("both", lambda: _both(run))
    rounds = run.sizes.claims + _WARM
    both.empty.add(rounds * _LIMIT + OVERDUE, {})
    took: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds):
        run.limit_s(0.0)
        for name, do in _IN_TURN.items():
            for which, ledger in (("empty", both.empty), ("grown", both.grown)):
                began = time.perf_counter()
                do(ledger)
                took_ms = (time.perf_counter() - began) * 1000
                if number >= _WARM:
                    took.setdefault((name, which), []).append(took_ms)
    found = {
        name: Pair(median(took[name, "grown"]), median(took[name, "empty"])) for name in _IN_TURN
    }
    if run.wants("growth-doctor"):
        found["growth-doctor"] = _doctor(run, both.grown)
    return found
