"""A finished command: its exit code, its data, and what it said."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from dataclasses import dataclass
from typing import Any

WAIT_S = 30.0


@dataclass
class Ran:
    """One finished command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """Its one object on stdout."""
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def error(self) -> dict[str, Any]:
        """Its one error object on stderr."""
        found: dict[str, Any] = json.loads(self.err)["error"]
        return found


def ended(process: subprocess.Popen[str], stdin: str = "", *, limit_s: float = WAIT_S) -> Ran:
    """Waits for a command."""
    out, err = process.communicate(stdin, timeout=limit_s)
    return Ran(process.returncode, out, err)


def read_terminal(master: int, process: subprocess.Popen[bytes]) -> str:
    """What a process writes on its terminal, to the end."""
    read = b""
    give_up = time.monotonic() + WAIT_S
    while time.monotonic() < give_up:
        ready, _, _ = select.select([master], [], [], 0.05)
        if ready:
            try:
                part = os.read(master, 65536)
            except OSError:  # the other side is closed
                break
            if not part:
                break
            read += part
        elif process.poll() is not None:
            break
    return read.decode().replace("\r\n", "\n")
