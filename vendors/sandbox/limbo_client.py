"""Starts and drives the LIMBO vendor, a process of its own.

with Limbo.start() as limbo:
    limbo.plan({"call_1": {"mode": "timeout_after"}})
    ...                              # a client writes to limbo.address("native")
    limbo.advance(90)                # so much time passes for the vendor
    limbo.effects()                  # what is true
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from vendors.sandbox.client import SandboxRefused

_LIMIT_S = 30.0
Json = dict[str, Any]


class LimboRefused(SandboxRefused):
    """The vendor did not start, or did not take a call of the side door; the text says why."""


class Limbo:
    """A running LIMBO vendor."""

    def __init__(self, url: str, admin: str, process: subprocess.Popen[bytes]) -> None:
        self.url = url
        self._admin = admin
        self._process = process
        # Never through a proxy: the vendor is on this machine.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    @classmethod
    def start(cls) -> Self:
        """Returns once it listens. It ends with this process, however that ends."""
        process = subprocess.Popen(
            [sys.executable, "-m", "vendors.sandbox.limbo"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            # `-m` looks in the current folder first: the package beside this file, wherever we are.
            cwd=Path(__file__).resolve().parents[2],
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            _close_pipes(process)
            raise LimboRefused(f"the vendor ended with code {process.wait()}; see its stderr")
        return cls(**json.loads(line), process=process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends it."""
        self._process.terminate()
        try:
            self._process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _close_pipes(self._process)

    def address(self, contract: str) -> str:
        """The vendor's address under a contract: ``native`` or ``keys`` (keys everywhere)."""
        return f"{self.url}/{contract}"

    def plan(self, plans: Mapping[str, Json]) -> None:
        """What goes wrong with which call (`limbo_faults`), named by our mark in it or by the
        object that it changes. Raises ``LimboRefused`` for what is no plan."""
        self._asked("/plan", dict(plans))

    def advance(self, seconds: float) -> None:
        """So much time passes; what is held until then happens."""
        self._asked("/advance", {"seconds": seconds})

    def effects(self) -> list[Json]:
        """Every effect that ever was: rows {call, path, row, object, at}."""
        found: list[Json] = self._asked("/effects", {})
        return found

    def sent(self) -> dict[str, int]:
        """How many write requests of each call reached the vendor's edge."""
        counted: dict[str, int] = self._asked("/sent", {})
        return counted

    def _asked(self, path: str, given: Json) -> Any:
        request = urllib.request.Request(  # noqa: S310 - our own http
            self._admin + path, json.dumps(given).encode(), method="POST"
        )
        try:
            with self._opener.open(request, timeout=_LIMIT_S) as response:
                return json.loads(response.read())
        except urllib.error.HTTPError as refused:
            raise LimboRefused(json.loads(refused.read())["error"]) from None


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
