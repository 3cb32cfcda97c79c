"""`outbox worker` over the worst of brokers: a message is acknowledged only once its task has
ended, and one that takes longer than three seconds is handed to somebody else meanwhile. Each
begin and end of a task is a line in the file that the first argument names."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from celery import Celery
from celery.signals import task_postrun, task_prerun

from outbox.settings import Settings
from workers import process
from workers.startup import checked

VISIBLE_S = 3
_of_the_product = process.build_app


def build_app(settings: Settings) -> Celery:
    """The product's application, with a broker's options that its settings would refuse."""
    app = _of_the_product(settings)
    app.conf.task_acks_late = True
    app.conf.broker_transport_options = {
        **app.conf.broker_transport_options,
        "visibility_timeout": VISIBLE_S,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    }
    return app


def _note(what: str, task: Any, task_id: str) -> None:
    line = {
        "what": what,
        "task": task.name,
        "message": task_id,
        "redelivered": bool((task.request.delivery_info or {}).get("redelivered")),
        "process": os.getpid(),
        "at": time.monotonic(),
    }
    file = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, (json.dumps(line) + "\n").encode())
    os.close(file)


def main() -> int:
    """The worker, until SIGTERM."""
    process.build_app = build_app
    task_prerun.connect(lambda task, task_id, **_: _note("begun", task, task_id), weak=False)
    task_postrun.connect(lambda task, task_id, **_: _note("ended", task, task_id), weak=False)
    return process.run_worker(checked(Settings.from_env()))


if __name__ == "__main__":
    sys.exit(main())
