"""A server that is stopped as a paused virtual machine is: it holds its connections and says
nothing, and goes on later as if nothing had been."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager

import psutil


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """SIGSTOP to a process and all its children, and SIGCONT at the end of the block."""
    process = psutil.Process(pid)
    process.suspend()  # first: it starts no more children
    held = [process, *process.children(recursive=True)]
    for one in held:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.suspend()
    try:
        yield
    finally:
        for one in held:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.resume()
