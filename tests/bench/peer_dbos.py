"""DBOS: a durable workflow for each write, its call a step, on a queue in Postgres."""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import time

from dbos import DBOS, DBOSClient, DBOSConfig

from tests.bench import peer

_SETTINGS = peer.SETTINGS["dbos"]
_QUEUE = "writes"


@DBOS.step()
def post(number: int) -> str:
    """The call; its result is kept by DBOS."""
    return peer.call(number)


@DBOS.workflow()
def write(number: int, request: str) -> str:
    """One write."""
    return str(post(number))


def _url() -> str:
    return peer.database_url().replace("postgresql://", "postgresql+psycopg://", 1)


def _launch() -> None:
    config: DBOSConfig = {
        "name": "writes",
        "system_database_url": _url(),
        "application_version": "1",
        "log_level": "ERROR",
    }
    DBOS(config=config)
    DBOS.launch()
    DBOS.register_queue(
        _QUEUE,
        worker_concurrency=_SETTINGS["worker_concurrency"],
        polling_interval_sec=_SETTINGS["polling_interval_s"],
    )


def _enqueue(count: int) -> None:
    client = DBOSClient(system_database_url=_url())
    began = time.monotonic_ns()
    for number in range(count):
        client.enqueue(
            {"queue_name": _QUEUE, "workflow_name": write.__qualname__, "app_version": "1"},
            number,
            peer.REQUEST,
        )
    ended = time.monotonic_ns()
    client.destroy()
    print(json.dumps({"began_ns": began, "ended_ns": ended, "committed": []}))


def main() -> None:
    """One verb of ``peer.arguments``."""
    given = peer.arguments()
    if given.verb == "enqueue":
        _enqueue(given.count)
        return
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    _launch()
    if given.verb == "work":
        print("ready", flush=True)
        told.wait()
    DBOS.destroy()
    print("{}")


if __name__ == "__main__":
    main()
