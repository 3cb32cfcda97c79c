"""A vendor is back, and everything that was sent while it was away is in doubt: how long until all
is settled by look-ups, by how many reads, and what another vendor's writes notice of it. And one
that stays away until the time of all its writes is over: how often people are paged about them."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Thread

from tests.bench import stripe_lists, vendor
from tests.bench.harness import Run
from tests.bench.programs import wait_until
from tests.bench.rows import Pair
from tests.bench.stage import Place
from tests.bench.stripe_sdk import SETTINGS, served

_LIMIT_S = 900.0
# Nobody listens there.
_AWAY = {**SETTINGS, "STRIPE_API_BASE": "http://127.0.0.1:9", "OUTBOX_TICK_ESCALATE_S": "2"}
# Nobody waits for a tick here: without a beat it comes with every third.
_SETTINGS = {**SETTINGS, "OUTBOX_CHILDREN": "3", "OUTBOX_TICK_RESOLVE_S": "0.2"}
_IN_DOUBT = """
UPDATE outbox.intents SET status = 'unknown', version = version + 1, doubt = 1, attempts = 1,
    lease_no = 1, mode = 'test',
    vendor_account = %(owner)s, first_sent_at = outbox.clock(), last_sent_at = outbox.clock(),
    last_lease_end = outbox.clock(), window_ends_at = outbox.clock() + INTERVAL '22 hours',
    due_at = outbox.clock() + INTERVAL '1 day'
WHERE vendor = 'stripe' RETURNING id, key
"""
_OVERDUE = """
UPDATE outbox.intents SET version = version + 1, ttl_at = outbox.clock(),
    escalate_at = outbox.clock() WHERE vendor = 'stripe' RETURNING seq
"""
_ASKED = """
SELECT (SELECT count(*) FROM outbox.escalations WHERE closed_at IS NULL AND intent_id IS NOT NULL)
    = %(count)s AND NOT EXISTS (SELECT FROM outbox.pages
        WHERE state = 'due' AND due_at <= outbox.clock()) AS yes
"""
_DUE = """
UPDATE outbox.intents SET version = version + 1, due_at = outbox.clock()
WHERE vendor = 'stripe' RETURNING seq
"""
_LEFT = """
SELECT id FROM outbox.intents WHERE vendor = %(vendor)s AND account = 'default'
AND settled_at IS NULL LIMIT 1
"""


def outage(run: Run) -> Mapping[str, Pair]:
    """So many charges in doubt, all of which took effect; the bare client reads the same pages."""
    count, beside = run.sizes.outage, run.sizes.outage_beside
    run.limit_s(0.0)
    with run.stage.place(_SETTINGS) as place, served(place):
        place.run("tests.bench.enqueuer", str(count), "--backlog", "--stripe")
        for row in place.sql(_IN_DOUBT, {"owner": vendor.OWNER}):
            place.ledger.add(bytes(row["key"]), row["id"].bytes, b"")
        bare = place.run("tests.bench.bare_lists")
        read = stripe_lists.reads(place.env[vendor.LEDGER])
        with place.workers():
            alone = _sent_per_s(run, place, beside, 0)
            place.sql(_DUE)
            began = time.monotonic()
            rates: list[float] = []
            other = Thread(target=lambda: rates.append(_sent_per_s(run, place, beside, beside)))
            other.start()
            _wait(run, place, "stripe")
            took_s = time.monotonic() - began
            other.join()
            place.check(count + 2 * beside)
        requests = stripe_lists.reads(place.env[vendor.LEDGER]) - read
        run.take(place)
    return {
        "outage-settle": Pair(took_s, (bare["ended_ns"] - bare["began_ns"]) / 1e9),
        "outage-reads": Pair(requests, bare["pages"]),
        "outage-beside": Pair(rates[0], alone),
    }


def asked(run: Run) -> Mapping[str, Pair]:
    """The time of so many writes in doubt is over at once, until a question about each is open and
    every page of them told. A target of pages that tells of a known question again, as a file
    does, is told each time that their number has doubled."""
    count = run.sizes.outage
    run.limit_s(0.0)
    with run.stage.place(_AWAY) as place:
        pages = Path(place.env[vendor.LEDGER], "pages.jsonl")
        place.env["OUTBOX_PAGERS"] = f"file:{pages}"
        place.run("tests.bench.enqueuer", str(count), "--backlog", "--stripe")
        place.sql(_IN_DOUBT, {"owner": vendor.OWNER})
        place.sql(_OVERDUE)
        with place.workers():
            wait_until(
                lambda: place.sql(_ASKED, {"count": count})[0]["yes"],
                run.limit_s(_LIMIT_S),
                "a question about each",
            )
        if len(place.ledger) or place.unsettled() != count:
            run.faults.append(f"{count - place.unsettled()} settled without a vendor")
        return {"outage-page": Pair(len(pages.read_text().splitlines()), math.log2(count))}


def _sent_per_s(run: Run, place: Place, count: int, first: int) -> float:
    """A backlog of the other vendor's, until it is settled."""
    told = place.run("tests.bench.enqueuer", str(count), "--backlog", "--first", str(first))
    _wait(run, place, vendor.NAME)
    return float(count / (time.monotonic() - told["began_ns"] / 1e9))


def _wait(run: Run, place: Place, name: str) -> None:
    wait_until(
        lambda: not place.sql(_LEFT, {"vendor": name}),
        run.limit_s(_LIMIT_S),
        f"all of {name} settled",
    )
