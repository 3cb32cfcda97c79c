"""An agent's process: enqueues writes of the zero-cost vendor, and tells when.

`python -m tests.bench.enqueuer COUNT` commits each by itself and rings; `--backlog` all in one
transaction; `--per-second N` at that pace; `--each N` so many to a commit; `--lanes N` spreads them
over so many ordered lanes; `--timed` tells what each took; `--stripe` makes them charges;
`--first N` is the number of the first; `--tenant`, `--vendor`, `--account` and `--run` say whose
they are.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import psycopg

from outbox import Outbox, Scope, WriteTool
from tests.bench import vendor

# What else an agent says with a write.
_TEXT = "a line of text such as an invoice, a ticket or a mail has, some hundred bytes of it" * 2


def main() -> int:
    """Prints one object: ``began_ns``, ``ended_ns`` (CLOCK_MONOTONIC), ``committed``, a list of
    [intent id, ns], and ``took_ns``, from a write's enqueue until it is committed and rung for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("--backlog", action="store_true")
    parser.add_argument("--per-second", type=float, default=0.0)
    parser.add_argument("--lanes", type=int, default=0)
    parser.add_argument("--each", type=int, default=1)
    parser.add_argument("--timed", action="store_true")
    parser.add_argument("--stripe", action="store_true")
    parser.add_argument("--tenant", default="acme")
    parser.add_argument("--vendor", default=vendor.NAME)
    parser.add_argument("--account", default="default")
    parser.add_argument("--run", default="")
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    vendor.install()
    outbox = Outbox.from_env()
    url = outbox.settings.database_url.replace("+psycopg", "")
    with psycopg.connect(url) as connection:
        enqueue = _backlog if given.backlog else _one_by_one
        told = enqueue(outbox, connection, given)
    outbox.close()
    print(json.dumps(told))
    return 0


def _write(number: int) -> dict[str, Any]:
    return {"number": number, "amount": 4900, "lane": 0, "text": _TEXT}


def charge(number: int) -> dict[str, Any]:
    """What is asked of Stripe."""
    return {
        "invoice_id": f"in_{number}",
        "amount": 4900,
        "currency": "usd",
        "customer": "cus_bench",
        "confirm": True,
        "payment_method": "pm_card_visa",
    }


def _charges() -> WriteTool:
    return WriteTool(
        "charge_invoice",
        vendor="stripe",
        operation="payment_intents.create",
        side_effect="charge",
        identity=("invoice_id",),
        guard=("amount", "currency", "customer"),
        money=("amount", "currency"),
    )


def _scope(given: argparse.Namespace, run: str) -> Scope:
    return Scope(tenant=given.tenant, run_id=given.run or run, account=given.account)


def _backlog(outbox: Outbox, connection: Any, given: argparse.Namespace) -> dict[str, Any]:
    tool = vendor.write_tool(lane=("lane",) if given.lanes else (), vendor=given.vendor)
    scope = _scope(given, "backlog")
    numbers = range(given.first, given.first + given.count)
    asks = [(scope, {**_write(n), "lane": n % max(given.lanes, 1)}) for n in numbers]
    if given.stripe:
        tool, asks = _charges(), [(scope, charge(n)) for n in numbers]
    outbox.enqueue_many(connection, tool, asks)
    began = time.monotonic_ns()
    connection.commit()
    outbox.ring()
    return {"began_ns": began, "ended_ns": time.monotonic_ns(), "committed": [], "took_ns": []}


def _one_by_one(outbox: Outbox, connection: Any, given: argparse.Namespace) -> dict[str, Any]:
    tool, scope = vendor.write_tool(vendor=given.vendor), _scope(given, "live")
    outbox.enqueue(connection, tool, scope, _write(-1))  # imports, and opens connections
    connection.rollback()
    committed, took = [], []
    began = time.monotonic_ns()
    for first in range(0, given.count, given.each):
        if given.per_second:
            left_s = began / 1e9 + first / given.per_second - time.monotonic()
            time.sleep(max(left_s, 0.0))
        started = time.monotonic_ns()
        if given.each == 1:
            answers = [outbox.enqueue(connection, tool, scope, _write(first))]
        else:
            numbers = range(first, min(first + given.each, given.count))
            answers = outbox.enqueue_many(connection, tool, [(scope, _write(n)) for n in numbers])
        connection.commit()
        at = time.monotonic_ns()
        outbox.ring()
        took.append(time.monotonic_ns() - started)
        committed += [[answer.intent_id.hex, at] for answer in answers]
    ended = time.monotonic_ns()
    return {
        "began_ns": began,
        "ended_ns": ended,
        "committed": committed if given.per_second else [],
        "took_ns": took if given.timed else [],
    }


if __name__ == "__main__":
    sys.exit(main())
