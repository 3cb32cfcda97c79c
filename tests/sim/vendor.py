"""The vendor of a timeline: the sandbox's own ledger and layers, in this process, at a time that
stands still until the timeline moves it. The wire between is simulated: what may happen to a
request on it is chosen.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.structures import CaseInsensitiveDict

from vendors.sandbox.arrivals import Arrival, Arrivals
from vendors.sandbox.faults import Fault, Faults, Picked
from vendors.sandbox.json_layers import JsonLayers
from vendors.sandbox.later import run_job
from vendors.sandbox.layers import Layers
from vendors.sandbox.ledger import Json, Ledger
from vendors.sandbox.oracle import verdict
from vendors.sandbox.wire import Answer, Request
from vendors.wire import Answer as Received
from vendors.wire import Sessions, current_exchange

ACCOUNT = "acct_sim"


class Unanswered(requests.exceptions.ConnectionError):
    """The connection is gone; what became of the request is not known here."""


@dataclass(slots=True)
class Late:
    """A request that is still on its way: it arrives at ``due_s`` of the vendor's time."""

    due_s: float
    request: Request
    attempt: int


@dataclass(slots=True)
class SimVendor:
    """One vendor with every face. ``now_s`` is the time of everything, in unix seconds."""

    now_s: float = 0.0
    late: list[Late] = field(default_factory=list)
    delivered: set[str] = field(default_factory=set)
    _folder: tempfile.TemporaryDirectory[str] = field(
        default_factory=lambda: tempfile.TemporaryDirectory(prefix="outbox-sim-")
    )
    ledger: Ledger = field(init=False)
    _faults: Faults = field(init=False)
    _arrivals: Arrivals = field(init=False)
    _layers: tuple[Layers, JsonLayers] = field(init=False)

    def __post_init__(self) -> None:
        path = str(Path(self._folder.name) / "ledger")
        self.ledger = Ledger(path, seed=1, wall=lambda: self.now_s)
        self._faults = Faults(self.ledger)
        self._arrivals = Arrivals(self.ledger, self._faults)
        self._layers = (Layers(self.ledger, self._faults), JsonLayers(self.ledger, self._faults))

    def reset(self, now_s: float, **settings: Any) -> None:
        """Nothing has happened; it is ``now_s``."""
        self.now_s = now_s
        self.late.clear()
        self.delivered.clear()
        self.ledger.reset(ACCOUNT)
        self.ledger.commit()
        self.ledger._ids = 0  # the same timeline makes the same ids
        self._arrivals.recount()
        account = self.ledger.account(ACCOUNT).changed({"any_customer": True, **settings})
        self.ledger.set_account(ACCOUNT, account)

    def close(self) -> None:
        """Removes the ledger's file."""
        self.ledger.close()
        self._folder.cleanup()

    # -- requests --------------------------------------------------------------------------------

    def arrive(self, request: Request, fault: str = "", after_s: float = 0.0) -> Arrival:
        """A request of a client, numbered and recorded; ``fault`` is the vendor's own."""
        arrival = self._arrivals.arrive(request)
        assert arrival is not None
        if fault:
            arrival.picked = Picked(vendor=Fault(fault, after_s=after_s))
        return arrival

    def answer(self, arrival: Arrival) -> Answer | None:
        """What the vendor does and says; None where it goes on without saying anything."""
        return self._layers[bool(arrival.face)].answer(arrival)

    def answered(self, arrival: Arrival, answer: Answer) -> None:
        """Notes what the client was told."""
        self._arrivals.answered(arrival, answer)

    def again(self, request: Request, attempt: int) -> None:
        """The transport delivers a request by itself; nobody waits for the answer."""
        arrival = self._arrivals.arrive(request, origin="transport", attempt=attempt)
        assert arrival is not None
        self.answer(arrival)

    def until(self, now_s: float) -> None:
        """Time passes: what was held, or on its way, until then happens, each at its own time."""
        while True:
            late = min(self.late, key=lambda one: one.due_s, default=None)
            held = self.ledger.one("select * from held order by due_at, seq limit 1")
            late_s = late.due_s if late else float("inf")
            held_s = held["due_at"] if held else float("inf")
            if min(late_s, held_s) > now_s:
                break
            self.now_s = round(max(self.now_s, min(late_s, held_s)), 6)
            if late is not None and late_s <= held_s:
                self.late.remove(late)
                self.again(late.request, late.attempt)
            elif held is not None:
                self.ledger.run("delete from held where seq = ?", held["seq"])
                run_job(self.ledger, self._faults, held["account"], json.loads(held["job"]))
        # In whole microseconds, as the database keeps it: the same moment is the same number.
        self.now_s = round(max(self.now_s, now_s), 6)

    def last_due_s(self) -> float:
        """When the last of what is still to come will have happened."""
        row = self.ledger.one("select max(due_at) as at from held")
        held_s = [float(row["at"])] if row and row["at"] else []
        return max([self.now_s, *held_s, *(one.due_s for one in self.late)])

    # -- what is known of it ---------------------------------------------------------------------

    def events(self) -> list[Json]:
        """Events that were not delivered yet, oldest first."""
        rows = self.ledger.all("select body from objects where kind = 'events' order by seq")
        found = [json.loads(row["body"]) for row in rows]
        return [event for event in found if event["id"] not in self.delivered]

    def effects(self) -> list[Json]:
        """The effects, in order."""
        return self.ledger.all("select * from effects order by seq")

    def violations(self) -> list[Json]:
        """What no careful client would have done."""
        found: list[Json] = verdict(self.ledger, ACCOUNT)["violations"]
        return found


Deliver = Callable[[Request], Answer]


class SimSessions(Sessions):
    """The transport of an adapter: passes the gate before the first byte as the real one does, and
    hands the request to ``deliver``, which answers it or raises."""

    def __init__(self, deliver: Deliver, before: Callable[[str], None]) -> None:
        super().__init__()
        self._deliver = deliver
        self._before = before

    def request(self, method: str, url: str, **options: Any) -> requests.Response:
        """One request. Raises what a connection raises."""
        prepared = requests.Request(
            method, url, headers=options.get("headers"), data=options.get("data")
        ).prepare()
        headers = {name: _text(value) for name, value in prepared.headers.items()}
        self._before(method.upper())
        current_exchange().start(None, method, url, headers)
        parts = urlsplit(str(prepared.url))
        body = prepared.body or b""
        answer = self._deliver(
            Request(
                method.upper(), parts.path, parts.query,
                {name.lower(): value for name, value in headers.items()},
                body if isinstance(body, bytes) else str(body).encode(),
            )
        )  # fmt: skip
        response = requests.Response()
        response.status_code, response._content = answer.status, answer.body
        response.headers = CaseInsensitiveDict(answer.headers)
        response.url = url
        current_exchange().answer = Received(answer.status, response.headers, answer.body)
        return response


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
