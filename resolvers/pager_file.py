"""One JSON object a line, for a log shipper or a demo."""

from __future__ import annotations

import os
import select
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path

from outbox.settings import Settings
from resolvers import apart, page_post
from resolvers.page import Failed, Page, Sent, Unusable

FORM = "file:PATH"
# A pipe or a terminal that is full is waited for in this part of the deadline.
_SHARE = 0.8
# Opening a pipe that nobody reads fails at once, and so does a write that would wait.
_FLAGS = (
    os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file, a pipe or a terminal."""

    path: Path
    # Whether the last line of a pipe was cut off: the next page begins a new one.
    _cut: list[bool] = field(default_factory=list, repr=False, compare=False)
    repages = False
    lasts_s = None

    @property
    def name(self) -> str:
        """The path."""
        return f"file:{self.path}"

    def send(self, page: Page) -> Sent | Failed:
        """One write in append mode, so that two processes never interleave; then fsync. A disk
        that does not come back is waited for until the deadline only."""
        line = page_post.encoded(page.as_json()) + b"\n"
        limit_s = page_post.SEND_TIMEOUT_S
        give_up = time.monotonic() + _SHARE * limit_s
        writing = apart.begin(self.name, lambda: self._write(line, give_up), limit_s)
        try:
            return writing.result(limit_s)
        except TimeoutError:
            # What has begun may still be written when the disk is back.
            return Failed(f"not written within {limit_s:g} s", maybe=not writing.cancel())
        except OSError as error:
            return Failed(f"{type(error).__name__}: {error.strerror or error}")

    def _write(self, line: bytes, give_up: float) -> Sent | Failed:
        target = os.open(self.path, _FLAGS, 0o600)
        try:
            if stat.S_ISREG(os.fstat(target).st_mode):
                written = os.write(target, line)
                if written == len(line):
                    os.fsync(target)
            else:
                line = b"\n" * len(self._cut) + line
                written = _offer(target, line, give_up)
                self._cut.clear()
            if written != len(line):
                # Closes the broken line, so that the next page stays readable.
                if written and not _offer(target, b"\n", 0.0):
                    self._cut.append(True)
                return Failed(f"wrote {written} of {len(line)} bytes")
        finally:
            os.close(target)
        return Sent(f"{len(line)} bytes")


def _offer(target: int, line: bytes, give_up: float) -> int:
    """Writes what a pipe or a terminal takes until then; how many bytes."""
    written = 0
    while written < len(line):
        try:
            written += os.write(target, line[written:])
        except BlockingIOError:
            left_s = give_up - time.monotonic()
            if left_s <= 0:
                break
            room = select.poll()
            room.register(target, select.POLLOUT)
            room.poll(left_s * 1000)
    return written


def build(rest: str, _: Settings) -> PageFile:
    """Raises ``Unusable``."""
    # Absolute: two processes with different working folders must mean the same target.
    path = Path(rest).absolute()
    looking = apart.begin(f"folder:{path}", lambda: _problem(path), page_post.SEND_TIMEOUT_S)
    try:
        problem = looking.result(page_post.SEND_TIMEOUT_S)
    except TimeoutError:
        problem = f"the folder of {path} does not answer"
    if problem:
        raise Unusable(problem)
    return PageFile(path)


def _problem(path: Path) -> str:
    if path.is_dir():
        return f"{path} is a folder; a file is expected"
    return "" if path.parent.is_dir() else f"the folder of {path} does not exist"
