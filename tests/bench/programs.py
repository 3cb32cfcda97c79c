"""Programs beside the run's own process: started, awaited, ended, killed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workers.servers import Servers

ROOT = Path(__file__).resolve().parents[2]
START_S = 60.0
_READY = re.compile(r"worker: ready|^ready")
_LOOK_S = 0.01
_STOP_S = 40.0


class TimeIsUp(Exception):
    """The form of the run has no time left for another measurement."""


def left_s(end: float, most_s: float) -> float:
    """How long one wait may take until ``end``, by the monotonic clock. Raises ``TimeIsUp`` where
    no time is left."""
    left = end - time.monotonic()
    if left <= 0:
        raise TimeIsUp
    return min(most_s, left)


class Stuck(Exception):
    """A measurement did not come to its end: what it waited for, and what was said meanwhile."""


def wait_until(holds: Callable[[], object], limit_s: float, what: str) -> None:
    """Looks again every 10 ms. Raises ``Stuck`` after ``limit_s``."""
    pausing, end = threading.Event(), time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > end:
            raise Stuck(f"{what}: not within {limit_s:.0f} s")
        pausing.wait(_LOOK_S)


class Child:
    """A program that says "ready" once it is, and ends on SIGTERM. ``said`` is what it wrote."""

    def __init__(self, servers: Servers, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._servers = servers
        self.said: list[str] = []
        self._ready = threading.Event()
        self.process = subprocess.Popen(
            command,
            env=dict(env),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
            errors="replace",
        )
        servers.watch(self.process.pid)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip())
            if _READY.search(line):
                self._ready.set()
        self._ready.set()

    def wait_until_ready(self, limit_s: float) -> None:
        """Raises ``Stuck`` with its last words where it is not."""
        if not self._ready.wait(limit_s) or self.process.poll() is not None:
            raise Stuck("a program did not start: " + " | ".join(self.said[-5:]))

    def kill(self) -> None:
        """kill -9 of it and all its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self._wait()

    def stop(self) -> None:
        """SIGTERM; what is left after a while is killed."""
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.said.append("it did not end when it was told to")
        self.kill()

    def _wait(self) -> None:
        self.process.wait()
        self._servers.forget(self.process.pid)


def ended(
    command: Sequence[str], env: Mapping[str, str], limit_s: float
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end. Raises ``Stuck`` where it takes longer."""
    try:
        return subprocess.run(
            command, env=env, cwd=ROOT, capture_output=True, text=True, check=False, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        raise Stuck(f"{command[1:4]} did not end within {limit_s:.0f} s") from None


def last_line(command: Sequence[str], env: Mapping[str, str], limit_s: float) -> dict[str, Any]:
    """Runs a program to its end; the object of its last line. Raises ``Stuck`` where it failed."""
    done = ended(command, env, limit_s)
    if done.returncode:
        raise Stuck(f"{command[1:4]} ended with code {done.returncode}: {done.stderr[-400:]}")
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said
