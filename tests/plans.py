"""What the server would read for a statement of the store: its plan, and which tables of the ledger
that plan reads from end to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
from psycopg.rows import dict_row

from outbox.errors import OutboxError
from outbox.store.connection import Transaction

Ask = Callable[[Transaction], Any]
LEDGER = frozenset({"intents", "attempts", "settlements", "deliveries", "events", "webhook_inbox"})
# The newest 20,000 are all of a small table, and to read it whole is best. What is seen with these
# is whether there is another way; without them the plans are of a table that is large itself.
AS_IF_LARGE = ("enable_seqscan = off", "enable_hashjoin = off", "enable_mergejoin = off")
# As where a join of whole tables seems cheapest; what asks for one row at a time stays as it is.
AS_IF_JOINED = ("enable_nestloop = off",)
# As where the rows that are looked for seem to be everywhere: only an order leads to an index.
AS_IF_EVERYWHERE = (
    "enable_indexscan = off",
    "enable_indexonlyscan = off",
    "enable_bitmapscan = off",
    "enable_sort = off",
)
# Hold (nearly) every row of their table: without a condition they are as long as it is.
_WHOLE = frozenset(
    {
        "intents_pkey", "intents_key", "intents_run", "intents_receipt", "intents_seq",
        "intents_retained", "attempts_pkey", "attempts_intent", "events_pkey", "events_intent",
        "settlements_pkey", "settlements_intent_id_version_kind_key", "deliveries_pkey",
        "webhook_inbox_pkey", "webhook_inbox_vendor_account_mode_event_id_key",
    }
)  # fmt: skip
# They read all that is below them before they hand out a row: no LIMIT above bounds that.
_READ_FIRST = frozenset({"Sort", "Aggregate", "Hash", "WindowAgg", "Materialize", "SetOp"})


class Explaining(Transaction):
    """Explains the statements of a store function instead of running them. ``plans`` are as the
    server gives them in JSON."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        super().__init__(connection)
        self.plans: list[Any] = []

    def all(self, sql: Any, params: Any = None) -> list[dict[str, Any]]:
        """No row."""
        row = self.connection.execute(f"EXPLAIN (FORMAT JSON) {sql}".encode(), params).fetchone()
        assert row is not None
        self.plans.append(row["QUERY PLAN"])
        return []

    def one(self, sql: Any, params: Any = None) -> dict[str, Any] | None:
        """No row."""
        self.all(sql, params)
        return None

    def run(self, sql: Any, params: Any = None) -> int:
        """No row touched."""
        self.all(sql, params)
        return 0


class ExplainingOnce(Explaining):
    """The plan that is kept for a statement whatever its parameters, as a session of the product's
    has it that plans claims and records once. The statement is run for that: roll it back."""

    def all(self, sql: Any, params: Any = None) -> list[dict[str, Any]]:
        """No row."""
        self.connection.prepare_threshold = 0
        self.connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        self.connection.execute(sql, params)
        self.plans.append(kept_plans(self.connection)[-1])
        return []


def kept_plans(connection: psycopg.Connection[Any]) -> list[Any]:
    """The plans that this session keeps for any parameters, in the order of their making."""
    found = connection.execute(
        "SELECT name, parameter_types::text[] AS types FROM pg_prepared_statements "
        "ORDER BY prepare_time, name",
        prepare=False,
    ).fetchall()
    plans = []
    for one in found:
        nothing = ", ".join(f"NULL::{kind}" for kind in one["types"])
        said = f"EXECUTE {one['name']}" + (f"({nothing})" if nothing else "")
        row = connection.execute(f"EXPLAIN (FORMAT JSON) {said}".encode(), prepare=False).fetchone()
        assert row is not None
        plans.append(row["QUERY PLAN"])
    return plans


def explained(url: str, ask: Ask, *, once: bool = False, settings: Sequence[str] = ()) -> list[Any]:
    """The plans of the statements that ``ask`` comes to (none where it asks nothing of the
    database), up to the first that it needs a row of; ``settings`` are of that session alone.
    ``once``: as they are planned for any parameters."""
    with psycopg.connect(url, row_factory=dict_row) as connection:
        for setting in settings:
            connection.execute(f"SET LOCAL {setting}".encode())
        explaining = ExplainingOnce(connection) if once else Explaining(connection)
        try:
            ask(explaining)
        except (AssertionError, TypeError, OutboxError):
            # The function wanted a row of its own statement.
            assert explaining.plans, "nothing was explained"
        connection.rollback()
    return explaining.plans


def read_whole(plans: Any, *, some_of_it: bool = False) -> set[str]:
    """The ledger's tables that the plans read from end to end: by a sequential scan, or along an
    index of all rows without a condition. ``some_of_it``: along an index is right where a LIMIT
    ends it, for those that ask for the newest of all."""
    return {
        node["Relation Name"]
        for node, is_bounded in _nodes(plans, False)
        if node.get("Relation Name") in LEDGER and _reads_all(node, some_of_it and is_bounded)
    }


def indexes(plans: Any) -> set[str]:
    """The indexes that the plans read."""
    return {node["Index Name"] for node, _ in _nodes(plans, False) if "Index Name" in node}


def joined(plans: Any) -> set[str]:
    """The ledger's tables that a join reads without a row to look for: hashed, or merged."""
    found: set[str] = set()
    for node, _ in _nodes(plans, False):
        if node["Node Type"] in ("Hash", "Merge Join"):
            below = (each for each, _ in _nodes(node["Plans"], False))
            found |= {each["Relation Name"] for each in below if "Relation Name" in each}
    return found & LEDGER


def first_sorted_by(plans: Any) -> set[str]:
    """The first column of each sort, without its table."""
    return {
        node["Sort Key"][0].rpartition(".")[2] for node, _ in _nodes(plans, False)
        if "Sort Key" in node
    }  # fmt: skip


def _reads_all(node: dict[str, Any], is_bounded: bool) -> bool:
    kind = node["Node Type"]
    if kind == "Seq Scan":
        return True
    along = kind in ("Index Scan", "Index Only Scan") and "Index Cond" not in node
    return along and node["Index Name"] in _WHOLE and not is_bounded


def _nodes(part: Any, is_bounded: bool) -> Iterator[tuple[dict[str, Any], bool]]:
    if isinstance(part, list):
        for each in part:
            yield from _nodes(each, is_bounded)
    elif isinstance(part, dict):
        kind = part.get("Node Type")
        if kind is not None:
            yield part, is_bounded
            is_bounded = kind == "Limit" or (is_bounded and kind not in _READ_FIRST)
        for each in part.values():
            yield from _nodes(each, is_bounded)
