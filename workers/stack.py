"""The product's own processes as children: start, watch, kill, restart, stop.

`outbox up` and the demo run them the way a Procfile does: one console script, one verb each.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from workers.folders import until
from workers.server_programs import ServersError
from workers.servers import Servers

# What each verb prints on stderr once it works.
_READY = {
    "web": re.compile(r"web: listening on (\S+)"),
    "worker": re.compile(r"worker: (ready)"),
    "beat": re.compile(r"beat: (ticking)"),
}
_START_S = 30.0
VERBS = ("web", "worker", "beat")


class Program:
    """One running ``outbox VERB``. ``said`` is what its ready line named: the web's address."""

    def __init__(self, verb: str, env: Mapping[str, str], echo: Callable[[str, str], None]) -> None:
        self.verb = verb
        self.said = ""
        self._ready = threading.Event()
        script = Path(sys.executable).with_name("outbox")
        # The script, never `-m`: its path does not begin with the current folder.
        self.process = subprocess.Popen(
            [sys.executable, str(script), verb],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, args=(echo,), daemon=True)
        self._reader.start()

    def _read(self, echo: Callable[[str, str], None]) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                found = _READY[self.verb].search(line)
                if found:
                    self.said = found.group(1)
                    self._ready.set()
                echo(self.verb, line.rstrip("\n"))

    def wait_until_ready(self, given_up: Callable[[], bool]) -> str:
        """What it said; empty once ``given_up``. Raises ``ServersError`` when it ended or stays
        silent."""
        ended = self.process.poll
        until(lambda: self._ready.is_set() or ended() is not None or given_up(), _START_S)
        if not self._ready.is_set() and not given_up():
            code = self.process.poll()
            how = "is not ready in time" if code is None else f"ended with code {code}"
            raise ServersError(f"outbox {self.verb} {how}; what it said stands above")
        return self.said

    def end(self, number: signal.Signals, limit_s: float) -> int:
        """Signals it and waits; the whole group is killed after ``limit_s``."""
        with contextlib.suppress(ProcessLookupError):
            if number is signal.SIGKILL:
                os.killpg(self.process.pid, number)
            else:
                self.process.send_signal(number)
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        # Children of a worker that was killed would go on without it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait() if code is None else code
        self._reader.join(timeout=5.0)
        return code


class Stack:
    """The processes over one pair of servers. They end with the process that started them."""

    def __init__(
        self,
        servers: Servers,
        env: Mapping[str, str],
        *,
        echo: Callable[[str, str], None],
        stop_s: float = 30.0,
    ) -> None:
        self.env = dict(env)
        self._servers = servers
        self._echo = echo
        self._stop_s = stop_s
        self.programs: dict[str, Program] = {}

    def start(self, *verbs: str, given_up: Callable[[], bool] = lambda: False) -> None:
        """Starts programs side by side and returns once each says that it works, or as soon as
        the caller has given up; they are its to stop either way."""
        for verb in verbs:
            program = Program(verb, self.env, self._echo)
            self._servers.watch(program.process.pid)
            self.programs[verb] = program
        for verb in verbs:
            self.programs[verb].wait_until_ready(given_up)

    def said(self, verb: str) -> str:
        """What a program's ready line named."""
        return self.programs[verb].said

    def kill(self, verb: str) -> None:
        """kill -9 of a program and all its children."""
        self._end(verb, signal.SIGKILL)

    def stop(self, *verbs: str) -> None:
        """SIGTERM to each (all of them, by default), at once; then waits for each."""
        names = [v for v in verbs or VERBS if v in self.programs]
        for verb in names:
            with contextlib.suppress(ProcessLookupError):
                self.programs[verb].process.terminate()
        for verb in names:
            self._end(verb, signal.SIGTERM)

    def dead(self) -> list[str]:
        """Programs that have ended by themselves."""
        return [v for v, p in self.programs.items() if p.process.poll() is not None]

    def forget(self, verb: str) -> None:
        """Reaps a program that ended by itself, with whatever children it left."""
        self._end(verb, signal.SIGKILL)

    def _end(self, verb: str, number: signal.Signals) -> None:
        program = self.programs.pop(verb)
        program.end(number, self._stop_s)
        self._servers.forget(program.process.pid)
