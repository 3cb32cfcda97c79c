"""What may happen to a request on the wire, and meanwhile."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from tests.sim.hosts import Host, beside
from tests.sim.vendor import Late, Unanswered
from vendors.sandbox.arrivals import Arrival
from vendors.sandbox.wire import Answer, Request

if TYPE_CHECKING:
    from tests.sim.timeline import Timeline

_HTML = {"Content-Type": "text/html"}
_TRANSPORT = (
    "answered",
    "lost_request",
    "lost_ack",
    "half_body",
    "empty_200",
    "bad_gateway_before",
    "bad_gateway_after",
    "redirect_302",
    "refused_400",
    "redelivery",
    "cut_then_answered",
    "cut_and_lost",
    "answered_after_the_lease",
    "worker_killed_before",
    "worker_killed_after",
)
_READS = ("answered", "lost", "error_500", "throttled_429", "unauthorized_401", "empty_200")
_MEANWHILE = ("nobody", "other_sends", "other_resolves", "webhooks_come", "person", "next_turn")
_GATE = ("open", "late_for_its_start", "after_its_lease", "refused_connection")
_OBJECT_LATER_S = 300.0


class Wire:
    """One timeline's wire. ``host`` is whose call is on it."""

    def __init__(self, timeline: Timeline) -> None:
        self._line = timeline
        self._ground = timeline.ground
        self._vendor = timeline.ground.vendor
        self.happened: list[tuple[str, str]] = []
        self._last: Request | None = None

    def gate(self, method: str) -> None:
        """Just before the first byte: a thread may have been suspended there."""
        if method == "GET":
            return
        host = self._line.acting
        chosen = self._line.choices.among(f"gate of {host.name}", _GATE)
        if chosen == "refused_connection":
            raise Unanswered("connection refused")
        if chosen != "open":
            suspended_s = 31.0 if chosen == "late_for_its_start" else 200.0
            self._ground.pass_time(suspended_s)
            if chosen == "after_its_lease":
                self._line.others_act(("other_resolves", "other_sends"))

    def __call__(self, request: Request) -> Answer:
        """The answer, or what a connection raises."""
        host = self._line.acting
        self._line.watch.leaves(host, request)
        if request.method == "GET":
            return self._read(host, request)
        kinds = (*_TRANSPORT, *(f"late_{s:g}" for s in self._line.scenario.late_s),
                 *self._line.scenario.faults)  # fmt: skip
        kind = self._line.choices.among(f"wire of {host.name}", kinds)
        self.happened.append((host.name, kind))
        self._last = request
        return self._write(host, request, kind)

    def of_somebody_else(self) -> str:
        """Another client of the account makes an object like the last one, without our marks; its
        id, empty where nothing was sent yet or the face is not Stripe's."""
        if self._last is None or not self._last.path.startswith("/v1/"):
            return ""
        pairs = parse_qsl(self._last.body.decode())
        body = urlencode([(name, text) for name, text in pairs if not name.startswith("metadata")])
        headers = {**self._last.headers, "idempotency-key": "of somebody else"}
        known = {effect["object_id"] for effect in self._vendor.effects()}
        self._vendor.again(
            Request("POST", self._last.path, self._last.query, headers, body.encode()), 1
        )
        made = [e["object_id"] for e in self._vendor.effects() if e["object_id"] not in known]
        return str(made[0]) if made else ""

    # -- writes ----------------------------------------------------------------------------------

    def _write(self, host: Host, request: Request, kind: str) -> Answer:
        if kind == "lost_request":
            self._vendor.arrive(request)
            raise Unanswered("reset")
        if kind == "worker_killed_before":
            host.kill()
        if kind in ("bad_gateway_before", "redirect_302"):
            arrival = self._vendor.arrive(request)
            status = 502 if kind == "bad_gateway_before" else 302
            return self._told(arrival, Answer(status, b"<html></html>", _HTML))
        if kind == "refused_400":
            said = {"type": "invalid_request_error", "code": "parameter_unknown"}
            answer = Answer(400, json.dumps({"error": said}).encode(), {})
            return self._told(self._vendor.arrive(request), answer)
        if kind.startswith("late_"):
            arrival = self._vendor.arrive(request)
            due_s = self._vendor.now_s + float(kind.removeprefix("late_"))
            self._vendor.late.append(Late(due_s, request, arrival.attempt))
            raise Unanswered("reset")
        if kind == "cut_and_lost":
            self._vendor.arrive(request)
            self._cut(host)
            raise Unanswered("shut at the deadline")
        return self._executed(host, request, kind)

    def _executed(self, host: Host, request: Request, kind: str) -> Answer:
        fault = kind if kind in self._line.scenario.faults else ""
        arrival = self._vendor.arrive(request, fault, _OBJECT_LATER_S)
        answer = self._vendor.answer(arrival)
        if kind == "redelivery":
            self._vendor.again(request, arrival.attempt)
        self._meanwhile(host)
        if kind == "worker_killed_after":
            host.kill()
        if answer is None or kind in ("lost_ack", "half_body"):
            raise Unanswered("reset")
        if kind == "empty_200":
            answer = Answer(200, b"", answer.headers)
        if kind == "bad_gateway_after":
            answer = Answer(502, b"<html></html>", _HTML)
        if kind == "cut_then_answered":
            self._cut(host)
        if kind == "answered_after_the_lease":
            self._ground.pass_time(90.0)
            self._line.others_act(("other_resolves", "other_sends"))
        return self._told(arrival, answer)

    def _told(self, arrival: Arrival, answer: Answer) -> Answer:
        self._vendor.answered(arrival, answer)
        return answer

    def _cut(self, host: Host) -> None:
        self._ground.pass_time(self._ground.settings.policy.call_deadline_s)
        host.watchdog.cut_all()

    # -- reads -----------------------------------------------------------------------------------

    def _read(self, host: Host, request: Request) -> Answer:
        if request.path.endswith(("/account", "/me")):
            return self._plainly(request)
        kind = self._line.choices.among(f"read of {host.name}", _READS)
        if kind == "lost":
            raise Unanswered("reset")
        answer = self._plainly(request)
        self._meanwhile(host)
        if kind == "empty_200":
            return Answer(200, b"", answer.headers)
        if kind != "answered":
            status = int(kind[-3:])
            body = json.dumps({"error": {"type": "api_error", "message": kind}}).encode()
            return Answer(status, body, answer.headers)
        return answer

    def _plainly(self, request: Request) -> Answer:
        arrival = self._vendor.arrive(request)
        answer = self._vendor.answer(arrival)
        assert answer is not None
        return self._told(arrival, answer)

    def _meanwhile(self, host: Host) -> None:
        if not self._line.nested:
            chosen = self._line.choices.among(f"meanwhile, {host.name} is out", _MEANWHILE)
            if chosen != "nobody":
                beside(lambda: self._line.others_act((chosen,)))
