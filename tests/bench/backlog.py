"""A large backlog at once: one real intent and copies of it, each with the key and the id that its
own call would have made. What it takes to record a hundred thousand is not measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from outbox import Outbox, Scope
from outbox.fingerprint import canonical, fingerprint, intent_id, intent_key
from tests.bench import vendor
from tests.bench.stage import Place
from tests.statements import copied

_NAMES = ("id", "key", "fingerprint", "identity")
_TABLE = """
CREATE TEMPORARY TABLE made (
    n bigint PRIMARY KEY, id uuid, key bytea, fingerprint bytea, identity text) ON COMMIT DROP
"""
_COPY = b"COPY made (n, id, key, fingerprint, identity) FROM STDIN (FORMAT BINARY)"


@dataclass(frozen=True)
class Owner:
    """Whose a write is."""

    tenant: str = "acme"
    vendor: str = vendor.NAME
    account: str = "default"


def pile_up(place: Place, count: int, owner: Owner = Owner(), run: str = "backlog") -> None:
    """So many due intents in one commit. Nobody is told: the workers' poll finds them."""
    connection, outbox = place.sql.connection(), Outbox(place.settings)
    tool = vendor.write_tool(vendor=owner.vendor)
    scope = Scope(tenant=owner.tenant, run_id=run, account=owner.account)
    args = {"number": 0, "amount": 4900, "text": "x" * 150}
    with closing(outbox), connection.transaction(), connection.cursor() as cursor:
        first = outbox.enqueue(connection, tool, scope, args).intent_id
        cursor.execute(_TABLE)
        with cursor.copy(_COPY) as copy:
            copy.set_types(["int8", "uuid", "bytea", "bytea", "text"])
            for row in _made(count, owner, run):
                copy.write_row(row)
        made = {name: f"(SELECT made.{name} FROM made WHERE made.n = n.n)" for name in _NAMES}
        copied(place.sql, count - 1, made, of=first)


def _made(count: int, owner: Owner, run: str) -> Iterator[tuple[object, ...]]:
    """What the calls with the numbers from 1 on would have made of them."""
    for number in range(1, count):
        identity = {"number": number}
        print_ = fingerprint(identity)
        key = intent_key(
            tenant=owner.tenant, vendor=owner.vendor, account=owner.account, tool="write",
            once_per="run", run_id=run, epoch="", print_=print_, occurrence=0, supersedes=None,
        )  # fmt: skip
        yield number, intent_id(key), key, print_, canonical(identity, "identity")
