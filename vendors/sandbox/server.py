"""The vendor's front: connections, faults of the transport, shared commits, and held work."""

from __future__ import annotations

import asyncio
import base64
import json
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

from vendors.sandbox.arrivals import Arrival, Arrivals
from vendors.sandbox.faults import Fault, Faults
from vendors.sandbox.json_layers import JsonLayers
from vendors.sandbox.later import run_job
from vendors.sandbox.layers import Layers
from vendors.sandbox.ledger import Json, Ledger, dumps
from vendors.sandbox.mail import deliver
from vendors.sandbox.sender import Sender
from vendors.sandbox.wire import Answer, Connection, Request

_HTML_502 = b"<html><head><title>502 Bad Gateway</title></head><body>502 Bad Gateway</body></html>"
_UNEXECUTED = {"lost_request", "late_commit", "hang", "bad_gateway_before", "redirect_302"}


class Server:
    def __init__(self, ledger: Ledger, faults: Faults) -> None:
        self.ledger = ledger
        self.faults = faults
        self.arrivals = Arrivals(ledger, faults)
        self.layers = Layers(ledger, faults)
        self.json_layers = JsonLayers(ledger, faults)
        self.sender = Sender(ledger)
        self.connections: set[Connection] = set()
        self._after_commit: list[Callable[[], object]] = []
        self._commit_is_due = False
        self._held_changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def connection(self) -> Connection:
        return Connection(self.received, self.refuses, self.connections)

    # ---- commits

    def commit_soon(self, then: Callable[[], object] | None = None) -> None:
        """`then` runs once everything written so far is durable: no answer before its commit."""
        if then is not None:
            self._after_commit.append(then)
        if not self._commit_is_due:
            self._commit_is_due = True
            asyncio.get_running_loop().call_soon(self._commit)

    def _commit(self) -> None:
        self._commit_is_due = False
        self.ledger.commit()
        ready, self._after_commit = self._after_commit, []
        for then in ready:
            try:
                then()
            except Exception:
                # One broken connection must not cost the others their answers.
                traceback.print_exc()
        self.sender.wake()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- requests

    def refuses(self, head: Request) -> bool:
        if not any(fault.kind == "refuse" for fault in self.faults.requests):
            return False
        refused = self.arrivals.arrive(head, only="refuse") is not None
        if refused:
            self.commit_soon()
        return refused

    def received(self, connection: Connection, request: Request) -> None:
        try:
            arrival = self.arrivals.arrive(request)
            assert arrival is not None
            self._handle(connection, arrival)
        except Exception:
            # A bug of the sandbox must look like one, not like a fault somebody ordered.
            traceback.print_exc()
            self.commit_soon(connection.close)

    def _handle(self, connection: Connection, arrival: Arrival) -> None:
        fault = arrival.picked.transport
        if fault is not None and fault.kind in _UNEXECUTED:
            self._unexecuted(connection, arrival, fault)
            return
        answer = self._answer(arrival)
        if arrival.hold is not None:
            self.commit_soon()
        if arrival.fault is not None:
            self._held_changed.set()
        if answer is None:
            self.commit_soon(lambda: self._lose(connection, fault or arrival.fault))
        elif fault is not None:
            self._twisted(connection, arrival, answer, fault)
        elif arrival.hold is not None:
            self.spawn(self._send_after(connection, arrival, answer, 0.0))
        else:
            self.arrivals.answered(arrival, answer)
            self.commit_soon(lambda: connection.send(answer))

    def _answer(self, arrival: Arrival) -> Answer | None:
        return (self.json_layers if arrival.face else self.layers).answer(arrival)

    def _unexecuted(self, connection: Connection, arrival: Arrival, fault: Fault) -> None:
        if fault.kind == "bad_gateway_before":
            self._tell(connection, arrival, Answer(502, _HTML_502, {"Content-Type": "text/html"}))
        elif fault.kind == "redirect_302":
            location = {"Location": self._elsewhere(arrival)}
            self._tell(connection, arrival, Answer(302, b"", location))
        elif fault.kind == "hang":
            self.commit_soon()
        else:
            if fault.kind == "late_commit":
                self._hold(arrival, fault.after_s)
            self.commit_soon(lambda: self._lose(connection, fault))

    def _tell(self, connection: Connection, arrival: Arrival, answer: Answer) -> None:
        self.arrivals.answered(arrival, answer)
        self.commit_soon(lambda: connection.send(answer))

    def _elsewhere(self, arrival: Arrival) -> str:
        """The newest object at the same path: followed as a GET, it reads like a success."""
        path = arrival.request.path
        row = self.ledger.one(
            "select id from objects where account = ? and kind = ? order by seq desc limit 1",
            arrival.account, path.removeprefix("/v1/"),
        )  # fmt: skip
        return f"{path}/{row['id']}" if row else path

    def _lose(self, connection: Connection, fault: Fault | None) -> None:
        how = fault.lose if fault else "reset"
        if how == "reset":
            connection.reset()
        elif how == "close":
            connection.close()

    def _twisted(
        self, connection: Connection, arrival: Arrival, answer: Answer, fault: Fault
    ) -> None:
        if fault.kind == "lost_ack":
            self.commit_soon(lambda: self._lose(connection, fault))
        elif fault.kind == "half_body":
            self.commit_soon(lambda: connection.send_half(answer))
        elif fault.kind == "empty_200":
            self._tell(connection, arrival, Answer(200, b"", arrival.headers()))
        elif fault.kind == "bad_gateway_after":
            self._tell(connection, arrival, Answer(502, _HTML_502, {"Content-Type": "text/html"}))
        elif fault.kind == "redelivery":
            self._again(arrival.request, arrival.attempt)
            self._tell(connection, arrival, answer)
        elif fault.kind == "drip":
            self.spawn(self._drip(connection, arrival, answer, fault.after_s))
        else:
            self.spawn(self._send_after(connection, arrival, answer, fault.after_s))
        self.commit_soon()

    async def _send_after(
        self, connection: Connection, arrival: Arrival, answer: Answer, after_s: float
    ) -> None:
        self.ledger.commit()
        if arrival.hold is not None:
            await self.sender.delivered(arrival.hold.event_ids, arrival.hold.limit_s)
        await asyncio.sleep(after_s)
        if connection.send(answer):
            self.arrivals.answered(arrival, answer)
            self.commit_soon()

    async def _drip(
        self, connection: Connection, arrival: Arrival, answer: Answer, over_s: float
    ) -> None:
        self.ledger.commit()
        if await connection.drip(answer, over_s):
            self.arrivals.answered(arrival, answer)
            self.commit_soon()

    def _again(self, request: Request, attempt: int) -> None:
        """The transport passes a request on by itself; nobody waits for the answer."""
        arrival = self.arrivals.arrive(request, origin="transport", attempt=attempt)
        assert arrival is not None
        answer = self._answer(arrival)
        if answer is not None:
            self.arrivals.answered(arrival, answer)

    # ---- what is due later

    def _hold(self, arrival: Arrival, after_s: float) -> None:
        request = arrival.request
        job = {
            "method": request.method, "path": request.path, "query": request.query,
            "headers": request.headers, "body": base64.b64encode(request.body).decode(),
            "attempt": arrival.attempt,
        }  # fmt: skip
        self.hold(arrival.account, "late_commit", after_s, job)

    def hold(self, account: str, kind: str, after_s: float, job: Json) -> None:
        """Keeps work for later."""
        self.ledger.run(
            "insert into held (account, kind, due_at, job) values (?, ?, ?, ?)",
            account, kind, self.ledger.wall_s() + after_s, dumps(job),
        )  # fmt: skip
        self._held_changed.set()

    def release(self, account: str | None, kind: str | None) -> int:
        """Makes held work due at once; returns how much there was."""
        self.ledger.run(
            "update held set due_at = 0"
            " where (? is null or account = ?) and (? is null or kind = ?)",
            account, account, kind, kind,
        )  # fmt: skip
        row = self.ledger.one("select count(*) as n from held where due_at = 0")
        self._run_due()
        return row["n"] if row else 0

    async def run_held(self) -> None:
        while True:
            self._held_changed.clear()
            self._run_due()
            row = self.ledger.one("select min(due_at) as due_at from held")
            due_at = row["due_at"] if row else None
            wait_s = None if due_at is None else max(0.001, due_at - self.ledger.wall_s())
            try:
                await asyncio.wait_for(self._held_changed.wait(), wait_s)
            except TimeoutError:
                continue

    def _run_due(self) -> None:
        due = self.ledger.all(
            "select * from held where due_at <= ? order by due_at, seq", self.ledger.wall_s()
        )
        for row in due:
            # Removed in the transaction that executes it: a crash repeats both or neither.
            self.ledger.run("delete from held where seq = ?", row["seq"])
            self._run_one(row)
        if due:
            self.commit_soon()

    def _run_one(self, row: Json) -> None:
        job = json.loads(row["job"])
        try:
            if row["kind"] == "late_commit":
                attempt = job.pop("attempt")
                body = base64.b64decode(job.pop("body"))
                self._again(Request(**job, body=body), attempt)
            elif row["kind"] == "mail":
                deliver(self.ledger, row["account"], job)
            else:
                run_job(self.ledger, self.faults, row["account"], job)
        except Exception:
            traceback.print_exc()

    async def stop(self) -> None:
        """Ends what is under way, and then the ledger that all of it writes to."""
        under_way = list(self._tasks)
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await self.sender.stop()
        for connection in list(self.connections):
            connection.close()
        self.ledger.close()
