"""One server program from its first start to its last breath, and what Postgres needs before."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from select import POLLHUP, poll

from workers.folders import until
from workers.orphans import Kind, OrphanWatcher
from workers.server_programs import ENVIRONMENT, Account, ServersError, postgres_major

_READY_WITHIN_S = 30.0
_LOG_TAIL_BYTES = 2000


class Server:
    """One server program: begin, ready, stop, kill."""

    def __init__(
        self,
        *,
        kind: Kind,
        command: list[str],
        home: Path,
        stop_signal: signal.Signals,
        answers: Callable[[], bool],
        watcher: OrphanWatcher,
        account: Account,
        lock_fds: list[int],
    ) -> None:
        self.kind = kind
        self._command = command
        self._home = home
        self._stop_signal = stop_signal
        self._answers = answers
        self._watcher = watcher
        self._account = account
        self._lock_fds = lock_fds
        self._log = home.with_name(f"{kind}.log")
        self._process: subprocess.Popen[bytes] | None = None
        self._life_fd = -1

    @property
    def running(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def begin(self) -> None:
        """Starts the program; it may not answer yet."""
        assert self._process is None
        if self.kind == "postgres":
            _drop_reused_pid(self._home)
        # Every process of the server inherits the other end: end of file is when all are gone.
        self._life_fd, write_fd = os.pipe()
        try:
            self._log.touch(mode=0o600)
            self._log.chmod(0o600)
            with self._log.open("wb") as output:
                self._process = self._watcher.spawn(
                    self.kind,
                    self._command,
                    account=self._account,
                    cwd=self._home,
                    output=output,
                    pass_fds=[*self._lock_fds, write_fd],
                )
        finally:
            os.close(write_fd)

    def wait_until_ready(self) -> None:
        """Raises ServersError with the end of the log if it ends or stays silent."""
        process = self._process
        assert process is not None
        until(lambda: process.poll() is not None or self._answers(), _READY_WITHIN_S)
        if process.returncode is not None:
            raise ServersError(f"{self.kind} ended at its start; {self._last_words()}")
        if not self._answers():
            raise ServersError(
                f"{self.kind} does not answer after {_READY_WITHIN_S:.0f} s; {self._last_words()}"
            )

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(self._stop_signal)
            try:
                self._process.wait(_READY_WITHIN_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
            self._ended()

    def kill(self) -> None:
        """kill -9; returns when no process of the server is left."""
        assert self._process is not None
        self._process.kill()
        self._ended()

    def _ended(self) -> None:
        assert self._process is not None
        self._process.wait()
        # Shared memory of a backend that still runs would refuse the next start.
        gone = poll()
        gone.register(self._life_fd, POLLHUP)
        gone.poll(_READY_WITHIN_S * 1000)
        os.close(self._life_fd)
        self._watcher.forget(self._process.pid)
        self._process = None

    def _last_words(self) -> str:
        words = self._log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
        return f"the end of {self._log}:\n{words}"


def prepare_postgres(home: Path, programs: Path, account: Account, lock_fds: list[int]) -> None:
    """Makes the data folder on first use; refuses another major version's."""
    major = postgres_major(programs)
    if home.exists():
        written = (home / "PG_VERSION").read_text().strip()
        if written != major:
            raise ServersError(
                f"data folder {home} was written by Postgres {written}, and this is {major} "
                f"({programs}): use another data folder, or bring the data over with pg_upgrade"
            )
        return
    # Renamed only when complete: a half-made folder of a killed run is made anew.
    fresh = home.with_name("postgres.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    account.give(fresh)
    made = subprocess.run(
        [
            *(programs / "initdb", "-D", fresh, "-U", "postgres", "-A", "trust"),
            *("-E", "UTF8", "--locale=C", "--no-sync"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env=ENVIRONMENT,
        cwd=fresh,
        pass_fds=lock_fds,
        user=account.uid,
        group=account.gid,
        extra_groups=account.extra_groups,
    )
    if made.returncode != 0:
        raise ServersError(f"initdb in {fresh} failed:\n{made.stdout[-_LOG_TAIL_BYTES:].strip()}")
    fresh.rename(home)


def _drop_reused_pid(home: Path) -> None:
    """After a crash of the machine, the number in postmaster.pid may be another program's by now.

    Postgres would refuse to start. Our lock says that no run of ours is left; a Postgres started
    on this folder by hand works inside it, and its file stays.
    """
    pid_file = home / "postmaster.pid"
    try:
        pid = int(pid_file.read_text().split("\n", 1)[0])
        works_in = Path(f"/proc/{pid}/cwd").readlink()
    except (OSError, ValueError):  # no file, no such process, no /proc: Postgres decides
        return
    if works_in != home:
        pid_file.unlink()


def postgres_answers(path: Path) -> bool:
    """A start-up packet is answered with an authentication message, not with an error."""
    words = b"user\0postgres\0database\0postgres\0\0"
    hello = struct.pack("!ii", len(words) + 8, 3 << 16) + words
    return _reply(path, hello + b"X\0\0\0\4").startswith(b"R")


def valkey_answers(path: Path) -> bool:
    return _reply(path, b"PING\r\n").startswith(b"+PONG")


def _reply(path: Path, message: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(str(path))
            connection.sendall(message)
            return connection.recv(64)
        except OSError:
            return b""
