"""pgqueuer: jobs in Postgres; its own log of a job is the durable result."""

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

_SETTINGS = peer.SETTINGS["pgqueuer"]
_BATCH = 1000


async def _setup() -> None:
    connection = await asyncpg.connect(peer.database_url())
    queries = Queries.from_asyncpg_connection(connection)
    await queries.install()
    await queries.optimize_autovacuum()
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

    @queuer.entrypoint("write")
    async def write(job: Any) -> None:
        peer.arrive(int(job.payload.split(b" ", 1)[0]))
        if latency_s:
            await asyncio.sleep(latency_s)

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, queuer.shutdown.set)
    print("ready", flush=True)
    await queuer.run(
        dequeue_timeout=timedelta(seconds=_SETTINGS["dequeue_timeout_s"]),
        batch_size=_SETTINGS["batch_size"],
        max_concurrent_tasks=_SETTINGS["max_concurrent_tasks"],
    )
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
