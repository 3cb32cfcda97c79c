"""How fast this machine is right now: a fixed piece of work for its processor and its disk. Where
that moved between the two ends of a repetition, somebody else took part in it."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

MOST_MOVED = 0.3
_ROUNDS = 150_000
_SYNCS = 40
_BLOCK = bytes(8192)


@dataclass(frozen=True)
class Calibration:
    """Seconds that the fixed work took."""

    processor_s: float
    disk_s: float


def calibrate(folder: Path) -> Calibration:
    """Does the work; ``folder`` lies on the database's disk."""
    began = time.perf_counter()
    digest = b""
    for _ in range(_ROUNDS):
        digest = hashlib.sha256(digest).digest()
    between = time.perf_counter()
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(_SYNCS):
            file.write(_BLOCK)
            file.flush()
            os.fdatasync(file.fileno())
    return Calibration(between - began, time.perf_counter() - between)


def moved(before: Calibration, after: Calibration) -> float:
    """By what share the slower end took longer than the faster one; the larger of processor and
    disk. 0.3 is 30 %."""
    pairs = ((before.processor_s, after.processor_s), (before.disk_s, after.disk_s))
    return max(max(pair) / min(pair) - 1 for pair in pairs)
