"""`python -m vendors.sandbox.limbo`: the LIMBO benchmark's services, on a clock that can be moved.

    /native/...  and  /keys/...    the write paths of `limbo_paths` under both contracts
    GET of a path with ?reference=  its objects with this mark, as late as the path reads back

A process of its own, with its world in memory: it is for one drill. It prints one JSON line when
ready and runs until SIGTERM, or until its parent is gone. `limbo_client` starts and drives it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import traceback
from collections import Counter, defaultdict
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qs

from vendors.sandbox import limbo_faults
from vendors.sandbox.ledger import dumps
from vendors.sandbox.limbo_faults import Plan, plan_of
from vendors.sandbox.limbo_paths import CONTRACTS, EVERY, WritePath
from vendors.sandbox.limbo_world import Said, World, Write
from vendors.sandbox.wire import Answer, Connection, Request

HOST = "127.0.0.1"
_NOT_FOUND: Said = (404, {"error": {"code": "not_found", "message": "No such path."}}, {})
_NOT_JSON: Said = (400, {"error": {"code": "invalid_json", "message": "No JSON object."}}, {})


class Limbo:
    """The vendor's face, and the side door beside it."""

    def __init__(self) -> None:
        self.world = World()
        self.plans: defaultdict[str, Plan] = defaultdict(Plan)
        self.sent: Counter[str] = Counter()
        self.connections: set[Connection] = set()

    def face(self) -> Connection:
        """One connection of a client."""
        return Connection(self._received, lambda _: False, self.connections)

    def side_door(self) -> Connection:
        """One connection of the operator."""
        return Connection(self._asked, lambda _: False, self.connections)

    # -- the face ----------------------------------------------------------------------------

    def _received(self, connection: Connection, request: Request) -> None:
        try:
            self.world.happen()
            said = self._said(request)
        except Exception:
            # A bug of the sandbox must look like one, not like a fault that was ordered.
            traceback.print_exc()
            said = 501, {"error": {"code": "bug", "message": "See stderr."}}, {}
        if said is None:
            connection.reset()
            return
        status, document, more = said
        headers = {
            "Content-Type": "application/json",
            "Date": formatdate(self.world.now, usegmt=True),
            **more,
        }
        connection.send(Answer(status, dumps(document).encode(), headers))

    def _said(self, request: Request) -> Said | None:
        contract, path, target = route(request)
        if path is None:
            return _NOT_FOUND
        if request.method == "GET":
            return self._read(request, contract, path, target)
        try:
            body = json.loads(request.body)
        except ValueError:
            return _NOT_JSON
        if not isinstance(body, dict):
            return _NOT_JSON
        call = target or str(body.get("reference"))
        key = request.headers.get("idempotency-key") if path.takes_key(contract) else None
        self.sent[call] += 1
        return limbo_faults.written(
            self.world, self.plans[call], Write(path, contract, call, key, body)
        )

    def _read(self, request: Request, contract: str, path: WritePath, target: str) -> Said | None:
        if path.by_target:
            return limbo_faults.read(self.plans[target], lambda: self.world.shown(contract, target))
        (reference,) = parse_qs(request.query).get("reference", [""])
        return limbo_faults.read(
            self.plans[reference], lambda: self.world.listed(path, contract, reference)
        )

    # -- the side door -----------------------------------------------------------------------

    def _asked(self, connection: Connection, request: Request) -> None:
        try:
            status, body = 200, self._operated(request)
        except (ValueError, TypeError, KeyError) as wrong:
            status, body = 400, {"error": str(wrong)}
        answer = Answer(status, dumps(body).encode(), {"Content-Type": "application/json"})
        connection.send(answer)

    def _operated(self, request: Request) -> Any:
        given = json.loads(request.body) if request.body else {}
        match request.path:
            case "/plan":
                plans = {call: plan_of(plan) for call, plan in given.items()}
                self.plans.update(plans)
                return {"planned": len(plans)}
            case "/advance":
                self.world.advance(float(given["seconds"]))
                return {"now": self.world.now}
            case "/effects":
                self.world.happen()
                return self.world.effects
            case "/sent":
                return self.sent
            case _:
                raise ValueError(f"no such call: {request.path}")


def route(request: Request) -> tuple[str, WritePath | None, str]:
    """The contract, the write path and the object that it is to change ("" where it makes one)."""
    _, contract, *rest = request.path.split("/")
    place = "/" + "/".join(rest)
    if contract not in CONTRACTS:
        return contract, None, ""
    for path in EVERY:
        begin = path.url.removesuffix("{target}")
        if path.by_target and place.startswith(begin) and request.method in ("GET", path.method):
            return contract, path, place.removeprefix(begin)
        if place == path.url and request.method in ("GET", path.method):
            return contract, path, ""
    return contract, None, ""


async def run() -> None:
    """Serves until SIGTERM, or until stdin ends (the parent is gone)."""
    limbo, loop, stopped = Limbo(), asyncio.get_running_loop(), asyncio.Event()
    face = await loop.create_server(limbo.face, HOST, 0, backlog=512)
    door = await loop.create_server(limbo.side_door, HOST, 0)
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    loop.add_signal_handler(signal.SIGINT, stopped.set)
    loop.add_reader(0, lambda: None if os.read(0, 4096) else stopped.set())
    ports = [server.sockets[0].getsockname()[1] for server in (face, door)]
    urls = [f"http://{HOST}:{port}" for port in ports]
    print(json.dumps({"url": urls[0], "admin": urls[1]}), flush=True)
    await stopped.wait()
    for server in (face, door):
        server.close()
    for connection in list(limbo.connections):
        connection.close()


if __name__ == "__main__":
    asyncio.run(run())
