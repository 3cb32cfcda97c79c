"""pgqueuer: jobs in Postgres. Its own log of a job says that it ended and not what the vendor
answered, so the job writes the receipt down, as whoever must know the charge's id would."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.queries import Queries

from tests.bench import peer

_SCHEMA = "CREATE TABLE writes (id bigint PRIMARY KEY, receipt text NOT NULL)"
_RECORD = "INSERT INTO writes (id, receipt) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING"
_SETTINGS = peer.SETTINGS["pgqueuer"]
_BATCH = 1000


async def _setup() -> None:
    connection = await asyncpg.connect(peer.database_url())
    queries = Queries.from_asyncpg_connection(connection)
    await queries.install()
    await queries.optimize_autovacuum()
    await connection.execute(_SCHEMA)
    await connection.close()


async def _enqueue(count: int) -> None:
    connection = await asyncpg.connect(peer.database_url())
    queries = Queries.from_asyncpg_connection(connection)
    began = time.monotonic_ns()
    for first in range(0, count, _BATCH):
        numbers = range(first, min(first + _BATCH, count))
        payloads: list[bytes | None] = [f"{n} {peer.REQUEST}".encode() for n in numbers]
        await queries.enqueue(["write"] * len(payloads), payloads, [0] * len(payloads))
    ended = time.monotonic_ns()
    await connection.close()
    print(f'{{"began_ns": {began}, "ended_ns": {ended}, "committed": []}}')


async def _work() -> None:
    connection = await asyncpg.connect(peer.database_url())
    queuer = PgQueuer.from_asyncpg_connection(connection)
    latency_s = float(os.environ.get("BENCH_LATENCY_MS", "0")) / 1000
    size = _SETTINGS["pool_size"]
    # All open from the start, as ours are: none is opened while it is measured.
    pool = await asyncpg.create_pool(peer.database_url(), min_size=size, max_size=size)

    @queuer.entrypoint("write")
    async def write(job: Any) -> None:
        number = int(job.payload.split(b" ", 1)[0])
        peer.arrive(number)
        if latency_s:
            await asyncio.sleep(latency_s)
        # Committed before the job ends: one that is repeated finds its receipt and not none.
        await pool.execute(_RECORD, number, f"wr_{number}")

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, queuer.shutdown.set)
    print("ready", flush=True)
    await queuer.run(
        dequeue_timeout=timedelta(seconds=_SETTINGS["dequeue_timeout_s"]),
        batch_size=_SETTINGS["batch_size"],
        max_concurrent_tasks=_SETTINGS["max_concurrent_tasks"],
    )
    await pool.close()
    await connection.close()


def main() -> None:
    """One verb of ``peer.arguments``."""
    given = peer.arguments()
    if given.verb == "setup":
        asyncio.run(_setup())
        print("{}")
    elif given.verb == "enqueue":
        asyncio.run(_enqueue(given.count))
    else:
        asyncio.run(_work())


if __name__ == "__main__":
    main()
