"""What a request passes through, in Stripe's order: authentication, limiter, idempotency,
validation, execution."""

from __future__ import annotations

import hashlib
import json
import traceback
from collections import defaultdict, deque

from vendors.sandbox import events
from vendors.sandbox.arrivals import Arrival
from vendors.sandbox.errors import Refusal
from vendors.sandbox.execution import Execution, digestible
from vendors.sandbox.faults import Fault, Faults
from vendors.sandbox.later import hold, run_operation
from vendors.sandbox.ledger import Json, Ledger, dumps
from vendors.sandbox.params import decode, validate
from vendors.sandbox.resources import Operation
from vendors.sandbox.wire import Answer

KEY_CHARS = 255
OTHER_VERSION = "2099-01-01.sandbox"
_STORED_500 = ("stored_500_no_object", "stored_500_object_later", "stored_500_rolled_back")


class Layers:
    def __init__(self, ledger: Ledger, faults: Faults) -> None:
        self._ledger = ledger
        self._faults = faults
        self._recent: defaultdict[str, deque[float]] = defaultdict(deque)

    def answer(self, a: Arrival) -> Answer | None:
        """None: execution goes on without the client (in_use_409)."""
        try:
            self._authenticate(a)
            self._limit(a)
            if a.operation is None:
                raise Refusal(
                    404, f"Unrecognized request URL ({a.request.method}: {a.request.path})."
                )
            if a.request.method == "POST" and a.key and self._honours(a):
                return self._once_per_key(a, a.operation, a.key)
            return self._execute(a, a.operation, self._parse(a))[0]
        except Refusal as refusal:
            return a.error(refusal)

    def _honours(self, a: Arrival) -> bool:
        return a.settings.honours_keys

    def _mismatch(self, row: Json) -> Refusal:  # noqa: ARG002
        return Refusal(
            400, "This key was first used with other parameters.", type="idempotency_error"
        )

    def _authenticate(self, a: Arrival) -> None:
        if not a.account or a.faulty("unauthorized_401"):
            raise Refusal(401, "Invalid API Key provided.")
        if a.faulty("forbidden_403"):
            raise Refusal(403, "The API key does not have the required permissions.")

    def _limit(self, a: Arrival) -> None:
        after_s = str(max(1, round(a.fault.after_s))) if a.fault else "1"
        recent = self._recent[a.account]
        limit = a.settings.requests_per_s
        # By the vendor's own clock, which may have been set back.
        while recent and not a.at - 1.0 < recent[0] < a.at + 1.0:
            recent.popleft()
        if a.faulty("rate_limited_429") or (limit is not None and len(recent) >= limit):
            raise Refusal(
                429, "Too many requests.", code="rate_limit",
                headers={"Retry-After": after_s, "Stripe-Rate-Limited-Reason": "endpoint-rate"},
            )  # fmt: skip
        if limit is not None:
            recent.append(a.at)
        if a.faulty("unavailable_503"):
            retry = {"Stripe-Should-Retry": "true"}
            raise Refusal(503, "Unavailable.", type="api_error", headers=retry)
        if a.fault is not None and a.fault.kind == "do_not_retry":
            never = {"Stripe-Should-Retry": "false"}
            raise Refusal(a.fault.status, "Do not retry.", type="api_error", headers=never)
        if a.fault is not None and a.fault.kind in _STORED_500 and a.request.method == "GET":
            raise Refusal(500, "An unknown error occurred.", type="api_error")

    def _once_per_key(self, a: Arrival, operation: Operation, key: str) -> Answer | None:
        if len(key) > KEY_CHARS:
            raise Refusal(400, f"Idempotency-Key: at most {KEY_CHARS} characters.")
        params = self._parse(a)
        digest = hashlib.sha256(digestible(params).encode()).hexdigest()
        endpoint = f"{a.request.method} {a.request.path}"
        row = self._ledger.one("select * from keys where account = ? and key = ?", a.account, key)
        if row and a.at - row["first_seen"] >= self._kept_s(a):
            self._ledger.run("delete from keys where account = ? and key = ?", a.account, key)
            row = None
        if row is not None:
            return self._replay(a, row, endpoint, digest)
        if a.faulty("lock_timeout_429"):
            raise Refusal(
                429, "The object is locked by another request.", code="lock_timeout",
                headers={"Stripe-Should-Retry": "true"},
            )  # fmt: skip
        if a.fault is not None and a.fault.kind == "in_use_409":
            validate_only(operation, params)
            self._store_running(a, endpoint, digest)
            hold(self._ledger, a, "finish", a.fault.after_s, params, a.id)
            return None
        answer, executed = self._execute(a, operation, params)
        if executed:
            self._store_running(a, endpoint, digest)
            self._store(a.account, key, answer)
        return answer

    def _kept_s(self, a: Arrival) -> float:
        """How long a key is kept, by the vendor's clock: at exactly that age it is forgotten."""
        window_s = a.settings.key_window_s
        return min(a.fault.after_s, window_s) if a.fault and a.faulty("pruned_early") else window_s

    def _replay(self, a: Arrival, row: Json, endpoint: str, digest: str) -> Answer:
        if row["endpoint"] != endpoint:
            raise Refusal(
                400, f"This key was first used for {row['endpoint']}: one key, one endpoint.",
                type="idempotency_error",
            )  # fmt: skip
        if row["digest"] != digest:
            raise self._mismatch(row)
        if row["status"] is None:
            raise Refusal(
                409, "Another request with this key is still being executed.",
                type=a.settings.conflict_type, code="idempotency_key_in_use",
            )  # fmt: skip
        headers = {
            **json.loads(row["headers"]),
            **{n: v for n, v in a.headers().items() if n == "Date" or n.endswith("Request-Id")},
            "Idempotent-Replayed": "true",
            "Original-Request": row["request_id"],
        }
        body = bytes(row["body"])
        if a.faulty("version_changed_replay"):
            headers["Stripe-Version"] = OTHER_VERSION
            body = json.dumps(_rendered_otherwise(json.loads(body)), indent=2).encode()
        return Answer(row["status"], body, headers)

    def _store_running(self, a: Arrival, endpoint: str, digest: str) -> None:
        self._ledger.run(
            "insert into keys (account, key, endpoint, digest, first_seen, request_id)"
            " values (?,?,?,?,?,?)",
            a.account, a.key, endpoint, digest, a.at, a.id,
        )  # fmt: skip

    def _store(self, account: str, key: str, answer: Answer) -> None:
        self._ledger.run(
            "update keys set status = ?, headers = ?, body = ? where account = ? and key = ?",
            answer.status, dumps(answer.headers), answer.body, account, key,
        )  # fmt: skip

    def _parse(self, a: Arrival) -> Json:
        if a.request.method == "GET":
            return decode(a.request.query.encode())
        kind = a.request.headers.get("content-type", "")
        if a.request.body and not kind.startswith("application/x-www-form-urlencoded"):
            raise Refusal(400, f"v1 takes application/x-www-form-urlencoded, not {kind!r}.")
        return decode(a.request.body or a.request.query.encode())

    def _execute(self, a: Arrival, operation: Operation, params: Json) -> tuple[Answer, bool]:
        """The answer, and whether execution began (what is stored under the key)."""
        forced = a.status_word
        if a.faulty("stored_500_rolled_back"):
            forced = "canceled"
        x = Execution(self._ledger, a.account, params, a.id, a.key, forced, a.platform, face=a.face)
        self._ledger.savepoint()
        try:
            answer = run_operation(a, operation, x)
        except Refusal as refusal:
            if not refusal.executed:
                self._ledger.undo()
                raise
            answer = a.error(refusal)
        except Exception:
            self._ledger.undo()
            traceback.print_exc()
            return a.error(Refusal(500, "The sandbox has a bug.", type="api_error")), False
        if a.fault is not None and a.fault.kind in _STORED_500:
            answer = self._stored_500(a, operation, x, params, a.fault)
        else:
            self._ledger.release()
        if x.events:
            a.hold = events.publish(self._ledger, self._faults, x)
        return answer, True

    def _stored_500(
        self, a: Arrival, operation: Operation, x: Execution, params: Json, fault: Fault
    ) -> Answer:
        cancelled = (
            fault.kind == "stored_500_rolled_back" and operation.name == "payment_intents.create"
        )
        if cancelled:
            created = x.events[-1]["data"]["object"]
            x.effect("create", created, outcome="reversed")
            for event in x.events[1:]:
                event["request"] = {"id": None, "idempotency_key": None}
            self._ledger.release()
        else:
            self._ledger.undo()
            x.events.clear()
        if fault.kind == "stored_500_object_later":
            hold(self._ledger, a, "object_later", fault.after_s, params, None)
        veto = {"Stripe-Should-Retry": "false"} if fault.told else {}
        return a.error(Refusal(500, "An unknown error occurred.", type="api_error", headers=veto))


def _rendered_otherwise(document: Json) -> Json:
    """The object as another API version shows it: between versions a payment's charge was a list
    of charges, and an expanded object an id."""
    charge = document.get("latest_charge")
    if "latest_charge" in document:
        charges = [] if charge is None else [{"id": charge, "object": "charge"}]
        document["charges"] = {"object": "list", "data": charges, "has_more": False}
        del document["latest_charge"]
    return {"rendered_for": OTHER_VERSION, **document}


def validate_only(operation: Operation, params: Json) -> None:
    if operation.schema is not None:
        validate(operation.schema, params)
