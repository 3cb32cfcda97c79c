"""How fast this machine is right now: a fixed piece of work for its processor and its disk. Where
that moved between the two ends of a repetition, somebody else took part in it."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

MOST_MOVED = 0.3
# The middle one of some short pieces, a second in all: somebody else's burst of a moment tells
# nothing of the whole repetition.
_PIECES = 11
_REST_S = 0.07
_ROUNDS = 15_000
_SYNCS = 40
_BLOCK = bytes(8192)


@dataclass(frozen=True)
class Calibration:
    """Seconds that the fixed work took."""

    processor_s: float
    disk_s: float


def calibrate(folder: Path) -> Calibration:
    """Does the work; ``folder`` lies on the database's disk."""
    # What the last measurement left to be written would slow the disk down.
    os.sync()
    processor, disk = [], []
    for _ in range(_PIECES):
        processor.append(_processor_s())
        disk.append(_disk_s(folder))
        time.sleep(_REST_S)
    return Calibration(median(processor), median(disk))


def _processor_s() -> float:
    began = time.perf_counter()
    digest = b""
    for _ in range(_ROUNDS):
        digest = hashlib.sha256(digest).digest()
    return time.perf_counter() - began


def _disk_s(folder: Path) -> float:
    with tempfile.TemporaryFile(dir=folder) as file:
        began = time.perf_counter()
        for _ in range(_SYNCS):
            file.write(_BLOCK)
            file.flush()
            os.fdatasync(file.fileno())
        return time.perf_counter() - began


def moved(before: Calibration, after: Calibration) -> float:
    """By what share the slower end took longer than the faster one; the larger of processor and
    disk. 0.3 is 30 %."""
    pairs = ((before.processor_s, after.processor_s), (before.disk_s, after.disk_s))
    return max(max(pair) / min(pair) - 1 for pair in pairs)
