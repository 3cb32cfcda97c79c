"""Plain Celery as a careful team would have it: the write's row is committed before its message,
the task marks the row, calls, and marks it again; acknowledged late."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from celery import Celery
from celery.signals import worker_process_init, worker_ready
from psycopg_pool import ConnectionPool

from tests.bench import peer

_SCHEMA = """
CREATE TABLE writes (
    id bigint PRIMARY KEY,
    key bytea NOT NULL UNIQUE,
    status text NOT NULL DEFAULT 'pending',
    request text NOT NULL,
    receipt text)
"""
_CELERY = peer.SETTINGS["celery"]
app = Celery("writes", broker=os.environ["BENCH_BROKER_URL"])
app.conf.update(_CELERY["conf"])
_lock = threading.Lock()
_pools: dict[int, ConnectionPool[Any]] = {}


def _pool() -> ConnectionPool[Any]:
    """One pool in each process, made after the fork."""
    found = _pools.get(os.getpid())
    if found is None:
        with _lock:
            found = _pools.get(os.getpid())
            if found is None:
                found = ConnectionPool(peer.database_url(), min_size=1, max_size=20, open=True)
                _pools[os.getpid()] = found
    return found


@app.task(name="write")
def write(number: int) -> None:
    """Commit the claim; call; commit the outcome."""
    with _pool().connection() as connection:
        took = connection.execute(
            "UPDATE writes SET status = 'in_flight' WHERE id = %s AND status = 'pending'", (number,)
        ).rowcount
    if not took:
        return
    receipt = peer.call(number)
    with _pool().connection() as connection:
        connection.execute(
            "UPDATE writes SET status = 'done', receipt = %s WHERE id = %s", (receipt, number)
        )


def _enqueue(number: int) -> int:
    with _pool().connection() as connection:
        connection.execute(
            "INSERT INTO writes (id, key, request) VALUES (%s, %s, %s)",
            (number, peer.key_of(number), peer.REQUEST),
        )
    committed = time.monotonic_ns()
    write.delay(number)
    return committed


def _say_ready(**_: Any) -> None:
    # Celery takes what is printed for its log.
    os.write(1, b"ready\n")


def main() -> None:
    """One verb of ``peer.arguments``; --kind is threads or prefork."""
    given = peer.arguments()
    if given.verb == "setup":
        with _pool().connection() as connection:
            connection.execute(_SCHEMA)
        print("{}")
    elif given.verb == "enqueue":
        _pool().wait()
        with app.connection_for_write() as broker:
            broker.ensure_connection(max_retries=1)
        peer.enqueue_each(given, _enqueue)
    else:
        kind = _CELERY[given.kind]
        worker_ready.connect(_say_ready, weak=False)
        worker_process_init.connect(lambda **_: _pool().wait(), weak=False)
        app.worker_main(
            ["worker", "--loglevel=ERROR", f"--pool={kind['pool']}", "--without-gossip",
             "--without-mingle", f"--concurrency={kind['concurrency']}"]
        )  # fmt: skip
    for pool in _pools.values():
        pool.close()


if __name__ == "__main__":
    main()
