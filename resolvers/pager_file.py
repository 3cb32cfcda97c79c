"""One JSON object a line, for a log shipper or a demo."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from outbox.settings import Settings
from resolvers import page_post
from resolvers.page import Failed, Page, Sent, Unusable

FORM = "file:PATH"


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file, a pipe or a terminal."""

    path: Path
    repages = False
    lasts_s = None

    @property
    def name(self) -> str:
        """The path."""
        return f"file:{self.path}"

    def send(self, page: Page) -> Sent | Failed:
        """One write in append mode, so that two processes never interleave; then fsync."""
        line = page_post.encoded(page.as_json()) + b"\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            target = os.open(self.path, flags, 0o600)
            try:
                written = os.write(target, line)
                if written != len(line):
                    # Closes the broken line, so that the next page stays readable.
                    os.write(target, b"\n")
                    return Failed(f"wrote {written} of {len(line)} bytes")
                if stat.S_ISREG(os.fstat(target).st_mode):  # a terminal or a pipe has no disk
                    os.fsync(target)
            finally:
                os.close(target)
        except OSError as error:
            return Failed(f"{type(error).__name__}: {error.strerror}")
        return Sent(f"{len(line)} bytes")


def build(rest: str, _: Settings) -> PageFile:
    """Raises ``Unusable``."""
    path = Path(rest)
    if path.is_dir():
        raise Unusable(f"{path} is a folder; a file is expected")
    if not path.absolute().parent.is_dir():
        raise Unusable(f"the folder of {path} does not exist")
    # Absolute: two processes with different working folders must mean the same target.
    return PageFile(path.absolute())
