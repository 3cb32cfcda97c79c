"""`outbox worker`, `beat` and `web` as processes: they start, work, and end when told to."""

from __future__ import annotations

import re
import resource
import signal
import subprocess
import urllib.request

from tests.cli.desk import Desk
from tests.cli.ran import WAIT_S


def ready(process: subprocess.Popen[str], pattern: str) -> str:
    """Reads stderr up to the line that says so; what the line names."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        found = re.search(pattern, line)
        if found:
            return found.group(1)
    raise AssertionError(f"it ended without being ready: {said}")


def told_to_end(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=WAIT_S)
    return process.returncode


def test_a_worker_sends_what_is_due_and_ends_when_it_is_told_to(desk: Desk) -> None:
    intent_id = desk.enqueue()
    process = desk.start("worker")
    try:
        ready(process, r"(worker: .*)")
        with desk.connect() as connection:
            for _ in range(int(WAIT_S * 20)):
                if desk.row(intent_id).status == "succeeded":
                    break
                connection.execute("SELECT pg_sleep(0.05)")
        assert desk.row(intent_id).status == "succeeded"
        assert len(desk.sandbox.effects(desk.vendor_account)) == 1
    finally:
        code = told_to_end(process)
    assert code == 0


def test_a_worker_may_open_as_many_files_as_its_host_allows(desk: Desk) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        process = desk.start("worker")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        ready(process, r"(worker: ready)")
        allowed, _ = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        assert allowed == (65536 if hard == resource.RLIM_INFINITY else min(hard, 65536))
    finally:
        assert told_to_end(process) == 0


def test_beat_ticks_and_ends_when_it_is_told_to(desk: Desk, redis_url: str) -> None:
    process = desk.start("beat", REDIS_URL=redis_url)
    try:
        ready(process, r"(beat: ticking)")
    finally:
        code = told_to_end(process)
    # It holds nothing: a signal that comes before its handler may end it too.
    assert code in (0, -signal.SIGTERM)


def test_web_answers_and_ends_when_it_is_told_to(desk: Desk) -> None:
    process = desk.start("web", PORT="0")
    try:
        address = ready(process, r"web: listening on (\S+)")
        with urllib.request.urlopen(f"{address}/livez", timeout=WAIT_S) as answer:
            assert answer.status == 200
    finally:
        code = told_to_end(process)
    assert code == 0
