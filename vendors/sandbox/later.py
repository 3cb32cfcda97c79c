"""What the vendor still does when the client has gone: executions begun, objects made later."""

from __future__ import annotations

import json
from typing import Any

from vendors.sandbox import events
from vendors.sandbox.arrivals import Arrival
from vendors.sandbox.errors import Refusal
from vendors.sandbox.execution import Execution
from vendors.sandbox.faults import Fault, Faults, Picked
from vendors.sandbox.json_face import face_of
from vendors.sandbox.json_routes import BY_NAME as JSON_BY_NAME
from vendors.sandbox.ledger import Json, Ledger, dumps
from vendors.sandbox.params import validate
from vendors.sandbox.reads import expanded
from vendors.sandbox.resources import BY_NAME, Operation
from vendors.sandbox.wire import Answer, Request


def run_operation(a: Arrival, operation: Operation, x: Execution) -> Answer:
    """Validation, then execution; a Refusal of either is raised."""
    if operation.schema is not None:
        x.params = validate(operation.schema, x.params)
    obj = operation.run(x, a.object_id)
    if not a.face:
        obj = expanded(x, obj)
    return Answer(200, dumps(obj).encode(), a.headers())


def hold(
    ledger: Ledger, a: Arrival, kind: str, after_s: float, params: Json, request_id: str | None
) -> None:
    """Keeps an execution; kind `finish` is the request's own, `object_later` the vendor's."""
    assert a.operation is not None
    job: dict[str, Any] = {
        "operation": a.operation.name, "object_id": a.object_id, "params": params,
        "key": a.key, "platform": a.platform, "request_id": request_id,
        "status_word": a.status_word, "version": a.request.headers.get("stripe-version"),
    }  # fmt: skip
    ledger.run(
        "insert into held (account, kind, due_at, job) values (?,?,?,?)",
        a.account, kind, ledger.wall_s() + after_s, dumps(job),
    )  # fmt: skip


def run_job(ledger: Ledger, faults: Faults, account: str, job: Json) -> Json:
    """Executes what was held; the answer's body, stored under the key if that still waits."""
    operation = {**BY_NAME, **JSON_BY_NAME}[job["operation"]]
    headers = {"idempotency-key": job["key"] or "", "stripe-version": job["version"] or ""}
    request = Request(operation.method, operation.path, "", headers)
    settings = ledger.account(account)
    word = job["status_word"]
    wished = Picked(status=Fault(f"status:{word}") if word else None)
    a = Arrival(
        request, job["request_id"] or "", account, job["platform"], job["key"], operation,
        job["object_id"], 0, ledger.now(account), settings, wished,
    )  # fmt: skip
    try:
        answer = _execute(ledger, faults, a, operation, job)
    except Refusal as refusal:
        # Refused before it executed anything: nothing is stored, and the key is free again.
        ledger.run(
            "delete from keys where account = ? and key = ? and request_id = ?",
            account, job["key"], job["request_id"],
        )  # fmt: skip
        answer = a.error(refusal)
    ledger.run(
        "update keys set status = ?, headers = ?, body = ?"
        " where account = ? and key = ? and request_id = ? and status is null",
        answer.status, dumps(answer.headers), answer.body, account, job["key"], job["request_id"],
    )  # fmt: skip
    body: Json = json.loads(answer.body)
    return body


def _execute(ledger: Ledger, faults: Faults, a: Arrival, operation: Operation, job: Json) -> Answer:
    x = Execution(
        ledger, a.account, job["params"], job["request_id"], job["key"],
        job["status_word"], job["platform"], job.get("planted", False), face_of(operation.path),
    )  # fmt: skip
    ledger.savepoint()
    try:
        answer = run_operation(a, operation, x)
    except Refusal as refusal:
        if not refusal.executed:
            ledger.undo()
            raise
        answer = a.error(refusal)
    ledger.release()
    events.publish(ledger, faults, x)
    return answer
