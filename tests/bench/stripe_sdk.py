"""Through the vendor's real SDK: the product beside the bare SDK with as many threads, both against
the same small server."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.bench import vendor
from tests.bench.effects import duplicates
from tests.bench.harness import Run
from tests.bench.programs import Child, wait_until
from tests.bench.rows import Pair
from tests.bench.stage import Place

_LIMIT_S = 300.0
# One sender of 64 threads, as the bare SDK's one process has.
SETTINGS = {
    "OUTBOX_CHILDREN": "2",
    "OUTBOX_THREADS": "64",
    "STRIPE_API_KEY": "sk_test_bench",
    "STRIPE_ACCOUNT_ID": vendor.OWNER,
    "STRIPE_API_BASE": "",
}


@contextmanager
def served(place: Place) -> Iterator[None]:
    """The server, whose address the place's programs get."""
    with place.child([sys.executable, "-m", "tests.bench.stripe_server"]) as child:
        place.env["STRIPE_API_BASE"] = f"http://127.0.0.1:{_port(child)}"
        yield


def _port(child: Child) -> int:
    return next(int(line.split()[1]) for line in child.said if line.startswith("ready"))


def stripe_sdk(run: Run) -> Mapping[str, Pair]:
    """A backlog of charges, and as many bare calls."""
    count = run.sizes.stripe
    run.limit_s(0.0)
    with run.stage.place(SETTINGS) as place, served(place):
        with place.workers():
            told = place.run("tests.bench.enqueuer", str(count), "--backlog", "--stripe")
            wait_until(place.is_settled, run.limit_s(_LIMIT_S), "all charges settled")
            ours = count / (time.monotonic() - told["began_ns"] / 1e9)
            place.check(count)
        run.take(place)
    run.limit_s(0.0)
    with run.stage.place(SETTINGS) as place, served(place):
        told = place.run("tests.bench.bare_sdk", str(count))
        if len(place.ledger) != count or duplicates(place.ledger):
            run.faults.append(f"the bare SDK made {len(place.ledger)} calls for {count} writes")
        return {"stripe": Pair(ours, count / (told["ended_ns"] - told["began_ns"]) * 1e9)}
