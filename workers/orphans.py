"""Ends the processes of a parent that died, kill -9 included.

A shell blocks on a pipe whose only other end is the parent's. End of file is what a dead parent
means, whatever killed it; the shell then stops what it was told of, in the order in which they
depend on each other, and removes the run folder.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Literal

from workers.server_programs import ENVIRONMENT, Account, ServersError

Kind = Literal["child", "valkey", "postgres"]

# Children get as long as a worker may need to finish its calls. Postgres gets INT, since TERM
# waits for its clients for ever. A zombie counts as ended: nobody may be there to reap it.
_WATCHER = r"""
trap '' HUP INT TERM
child= valkey= postgres=
without() {
    dropped=$1; shift; kept=
    for pid; do [ "$pid" = "$dropped" ] || kept="$kept $pid"; done
    echo "$kept"
}
alive() {
    kill -0 "$1" 2>/dev/null && ! grep -qs '^State:[[:space:]]*Z' "/proc/$1/status"
}
end() {
    signal=$1 tenths=$2; shift 2
    for pid; do kill -s "$signal" "$pid" 2>/dev/null; done
    while [ "$tenths" -gt 0 ]; do
        left=
        for pid; do alive "$pid" && left=yes; done
        [ "$left" ] || return
        sleep 0.1
        tenths=$((tenths - 1))
    done
    for pid; do kill -s KILL -- "-$pid" 2>/dev/null; kill -s KILL "$pid" 2>/dev/null; done
}
while read -r word pid; do
    case $word in
        child) child="$child $pid" ;;
        valkey) valkey="$valkey $pid" ;;
        postgres) postgres="$postgres $pid" ;;
        forget)
            child=$(without "$pid" $child)
            valkey=$(without "$pid" $valkey)
            postgres=$(without "$pid" $postgres) ;;
    esac
done
end TERM 400 $child
end TERM 100 $valkey
end INT 300 $postgres
rm -rf -- "$1"
"""
# The new process tells the watcher its own number before it becomes the program: a parent killed
# between the two leaves nothing behind. Its standard input is the watcher's pipe until then.
_ANNOUNCED = 'echo "$0 $$" >&0 && exec "$@" </dev/null'


class OrphanWatcher:
    """One watcher for one run folder; `end` it only after all that it watches has ended."""

    def __init__(self, run_dir: Path) -> None:
        # Its own session: the terminal's Ctrl-C is for the parent to act on.
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHER, "outbox-orphans", str(run_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=ENVIRONMENT,
            cwd="/",
            start_new_session=True,
        )
        assert self._shell.stdin is not None
        self._pipe: IO[bytes] = self._shell.stdin

    @property
    def pid(self) -> int:
        return self._shell.pid

    def spawn(
        self,
        kind: Kind,
        command: Sequence[str | Path],
        *,
        account: Account,
        cwd: Path,
        output: IO[bytes],
        pass_fds: Sequence[int],
    ) -> subprocess.Popen[bytes]:
        """Starts a program that is watched from its first instant, in a session of its own."""
        return subprocess.Popen(
            ["/bin/sh", "-c", _ANNOUNCED, kind, *command],
            stdin=self._pipe,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=ENVIRONMENT,
            cwd=cwd,
            pass_fds=pass_fds,
            start_new_session=True,
            user=account.uid,
            group=account.gid,
            extra_groups=account.extra_groups,
        )

    def watch(self, pid: int) -> None:
        """A child process of the caller is stopped (TERM) before the servers, should we die."""
        self._tell(f"child {pid}\n")

    def forget(self, pid: int) -> None:
        """The process has ended; its number may soon be somebody else's."""
        self._tell(f"forget {pid}\n")

    def end(self) -> None:
        # Killed before its pipe closes: it would take the end of file for our death.
        self._shell.send_signal(signal.SIGKILL)
        self._shell.wait()
        self._pipe.close()

    def _tell(self, line: str) -> None:
        try:
            self._pipe.write(line.encode())
            self._pipe.flush()
        except BrokenPipeError:
            raise ServersError(f"the orphan watcher (process {self.pid}) was killed") from None
