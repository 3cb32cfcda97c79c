"""The host's monotonic clock, which counts suspension. It may forbid a send, never permit one."""

from __future__ import annotations

import time


def since_boot_s() -> float:
    """Seconds since boot, a suspended machine's sleep included where the system can tell."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()
