"""A broker that hands a message out again while its task still runs: copies, and one effect."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from outbox import Settings, SettingsError
from tests.drills import redelivered_worker
from tests.drills.works import Works, open_works
from tests.workers.floor import wait_until
from workers.broker import DRAIN_TASK, SEND_QUEUE, broker_url_of

_WORKERS = 3
_ANSWERS_AFTER_S = 9.0
# The call fits its lease; the message that rang for it is handed out three times meanwhile. No
# tick and no poll comes between: what is sent is sent because a message said so.
_SLOW = {
    "OUTBOX_CALL_DEADLINE_S": "12",
    "OUTBOX_LEASE_S": "20",
    "OUTBOX_SOFT_LIMIT_S": "40",
    "OUTBOX_HARD_LIMIT_S": "50",
    "OUTBOX_TICK_DRAIN_S": "60",
}


@pytest.fixture
def works(tmp_path: Path) -> Iterator[Works]:
    with open_works(tmp_path, more=_SLOW) as opened:
        yield opened


@pytest.fixture
def noted(works: Works, tmp_path: Path) -> Iterator[Path]:
    """Three worker processes over that broker; the file in which they note each copy."""
    file, said = tmp_path / "copies.jsonl", tmp_path / "workers.log"
    with contextlib.ExitStack() as ending, said.open("wb") as log:
        for _ in range(_WORKERS):
            process = subprocess.Popen(
                [sys.executable, redelivered_worker.__file__, str(file)],
                env={**works.env, "PYTHONPATH": str(Path(__file__).parents[2])},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
            ending.callback(_end, process)
        wait_until(lambda: said.read_text().count("worker: ready") == _WORKERS, 60)
        yield file


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(30)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _copies(file: Path) -> list[dict[str, Any]]:
    """Every run of a drain: its message, process, and when it began and ended (None: not yet)."""
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    ends = {(x["message"], x["process"], x["redelivered"]): x["at"] for x in _of("ended", lines)}
    return [
        {**x, "ended": ends.get((x["message"], x["process"], x["redelivered"]))}
        for x in _of("begun", lines)
    ]


def _of(what: str, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if line["what"] == what and line["task"] == DRAIN_TASK]


def _push(works: Works, count: int) -> None:
    app = Celery(broker=broker_url_of(works.servers.redis_url), set_as_current=False)
    for _ in range(count):
        app.send_task(DRAIN_TASK, queue=SEND_QUEUE)
    app.close()


@pytest.mark.heavy
def test_a_call_longer_than_the_visibility_timeout_is_on_the_wire_once(
    works: Works, noted: Path
) -> None:
    """B02: the message that rang is handed to other processes while the call is in the air, and
    more of its kind lie in the queue."""
    account = works.account()
    works.sandbox.fault("slow", account=account, after_s=_ANSWERS_AFTER_S)
    ids = works.enqueue(account, 1, ring=False)
    _push(works, 1)
    works.wait_for_posts(account)
    _push(works, 12)
    works.wait_until_settled(ids)
    works.check(account, ids)
    assert len(works.posts(account)) == 1
    (row,) = works.sql("SELECT attempts, lease_no, doubt, crashes FROM outbox.intents")
    assert (row["attempts"], row["lease_no"], row["doubt"], row["crashes"]) == (1, 1, 0, 0)
    wait_until(lambda: all(copy["ended"] for copy in _copies(noted)))
    copies = _copies(noted)
    (sender, *_) = sorted(copies, key=lambda copy: copy["at"] - copy["ended"])
    assert sender["ended"] - sender["at"] > redelivered_worker.VISIBLE_S
    beside = [c for c in copies if sender["at"] < c["at"] and c["ended"] < sender["ended"]]
    again = [c for c in beside if c["redelivered"] and c["message"] == sender["message"]]
    assert again, "the broker handed nothing out again: this shows nothing"
    assert len({c["process"] for c in beside} - {sender["process"]}) >= 2
    assert len(beside) >= 12 + len(again)


def test_settings_by_which_a_message_could_be_handed_out_twice_are_refused() -> None:
    """B02: the same visibility timeout as a setting, and nothing starts."""
    with pytest.raises(SettingsError) as refused:
        Settings.from_env({**_SLOW, "OUTBOX_PROFILE": "demo", "OUTBOX_VISIBILITY_TIMEOUT_S": "3"})
    assert dict(refused.value.problems) == {
        "OUTBOX_VISIBILITY_TIMEOUT_S": "must be above the hard limit, 50"
    }
