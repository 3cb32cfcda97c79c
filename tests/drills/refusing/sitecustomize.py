"""Of a process that is given this folder: no thread starts while the file exists, as where a host
has no more of them to give."""

import os
import threading

_file = os.environ["REFUSE_THREADS_WHILE"]
_start = threading.Thread.start


def _maybe(self: threading.Thread) -> None:
    if os.path.exists(_file):
        raise RuntimeError("can't start new thread")
    _start(self)


threading.Thread.start = _maybe  # type: ignore[method-assign]
