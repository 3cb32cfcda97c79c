"""The beat process: it sends the ticks of every job, which carry no data."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

from celery.signals import beat_init

from outbox.settings import Settings
from workers.process import build_app


def run_beat(settings: Settings) -> int:
    """Beat, until SIGTERM. Its ticks carry no data, so it keeps no schedule file; two beats at
    once do no harm."""
    app = build_app(settings)
    logging.getLogger("celery.beat").addFilter(_in_one_line)
    beat = app.Beat(
        loglevel="WARNING",
        quiet=True,
        scheduler_cls="celery.beat:Scheduler",
        max_interval=min(settings.policy.tick_drain_s, 1.0),
        schedule=str(Path(os.devnull)),
    )
    # Once its service runs, a SIGTERM ends it in order.
    beat_init.connect(_say_ticking, weak=False)
    beat.run()
    return 0


def _say_ticking(**_: Any) -> None:
    print("beat: ticking", file=sys.stderr, flush=True)


def _in_one_line(record: logging.LogRecord) -> bool:
    """A broker that is away is one line at each tick, and not two stacks of a hundred."""
    if record.exc_info and isinstance(record.msg, str) and record.msg.startswith("Message Error"):
        record.msg, record.args = "a tick was not sent: %s", (record.exc_info[1],)
        record.exc_info = None
    return True
