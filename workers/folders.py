"""The folders of the embedded servers and the locks that tell a live folder from a stale one.

The servers inherit each lock's descriptor: a folder stays locked while any of them still runs,
even when their parent is dead.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from workers.server_programs import Account, ServersError

_RUN_PREFIX = "outbox-run-"
_LONGEST_TMP = 60  # a socket's path ends at about 103 bytes, and ours adds up to 40
_TAKE_OVER_S = 60.0  # the watcher of a killed parent gives its children 40 s


@dataclass(frozen=True)
class LockedFolder:
    path: Path
    lock_fd: int

    def release(self) -> None:
        os.close(self.lock_fd)


def until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Whether the condition came true within the limit."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)  # noqa: TID251 -- other programs' progress can only be polled
    return True


def default_data_dir(project: Path) -> Path:
    """`.outbox` in the project; for root, whose Postgres runs as nobody, a reachable place.

    Nothing is created.
    """
    project = project.resolve()
    if Account.for_postgres().barrier(project) is None:
        return project / ".outbox"
    name = hashlib.sha256(os.fsencode(project)).hexdigest()[:8]
    return Path(f"/var/lib/outbox-resolve/{project.name}-{name}")


def is_in_use(data_dir: Path) -> bool:
    """Whether a live run holds the folder. What a killed one left behind is not live."""
    try:
        lock_fd = os.open(data_dir / "lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _try_lock(lock_fd) and _alive(_owner(lock_fd))
    finally:
        os.close(lock_fd)


def open_data_dir(path: Path, account: Account) -> LockedFolder:
    """Creates the folder if need be and locks it against every other run.

    Where the last run's parent was killed, its servers may still be stopping: that is waited for.
    Raises ServersError if a live process uses the folder, or Postgres' account cannot enter it.
    """
    path = path.resolve()
    for folder in reversed([part for part in (path, *path.parents) if not part.exists()]):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o700 if account.uid is None else 0o711)
    if (barrier := account.barrier(path)) is not None:
        raise ServersError(
            f"data folder {path}: Postgres cannot run as root and runs as nobody, who may not "
            f"enter {barrier}; use a folder under /var/lib or /var/tmp"
        )
    lock_fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _try_lock(lock_fd):
            owner = _owner(lock_fd)
            if _alive(owner) or not until(lambda: _try_lock(lock_fd), _TAKE_OVER_S):
                raise ServersError(
                    f"data folder {path} is in use by process {owner}: stop that one first, "
                    "or choose another folder"
                )
        os.ftruncate(lock_fd, 0)
        os.pwrite(lock_fd, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        os.close(lock_fd)
        raise
    return LockedFolder(path, lock_fd)


def create_run_dir(account: Account) -> LockedFolder:
    """A fresh short folder for the sockets; folders of runs that died with the machine go."""
    parent = Path(tempfile.gettempdir()).resolve()
    # The path becomes part of three kinds of URL and of a socket's name.
    fits = len(str(parent)) <= _LONGEST_TMP and re.fullmatch(r"[\w./-]+", str(parent), re.ASCII)
    if not fits or account.barrier(parent) is not None:
        parent = Path("/tmp")  # noqa: S108 -- mkdtemp makes the private folder in it
    _sweep(parent, account)
    while True:
        path = Path(tempfile.mkdtemp(prefix=_RUN_PREFIX, dir=parent))
        lock_fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if _try_lock(lock_fd) and path.exists():  # else another run's sweep took it for stale
            account.give(path)
            return LockedFolder(path, lock_fd)
        os.close(lock_fd)


def _sweep(parent: Path, account: Account) -> None:
    for path in parent.glob(f"{_RUN_PREFIX}*"):
        try:
            if path.is_symlink() or path.stat().st_uid not in (os.geteuid(), account.uid):
                continue
            lock_fd = os.open(path / "lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        if _try_lock(lock_fd):
            shutil.rmtree(path, ignore_errors=True)
        os.close(lock_fd)


def _try_lock(lock_fd: int) -> bool:
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _owner(lock_fd: int) -> int:
    written = os.pread(lock_fd, 32, 0).strip()
    return int(written) if written.isdigit() else 0


def _alive(pid: int) -> bool:
    """0, a number never written, counts as alive, since kill(0) asks about our own group.

    A zombie is dead: its parent may never reap it.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
