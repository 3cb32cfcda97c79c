"""The operator's side door: JSON over HTTP on a port of its own. `client.py` lists every call."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any
from urllib.parse import parse_qsl

from vendors.sandbox import endpoints, events, oracle
from vendors.sandbox.errors import Refusal
from vendors.sandbox.execution import KINDS, Execution
from vendors.sandbox.json_face import face_of, iso
from vendors.sandbox.json_routes import BY_NAME as JSON_BY_NAME
from vendors.sandbox.later import run_job
from vendors.sandbox.ledger import Json, dumps
from vendors.sandbox.payments import move_payment_intent
from vendors.sandbox.resources import BY_NAME
from vendors.sandbox.server import Server
from vendors.sandbox.wire import Answer, Connection, Request

Call = Callable[[Json], Any]
_MOVED_EVENT = {
    ("refunds", "failed"): "refund.failed",
    ("checkout/sessions", "complete"): "checkout.session.completed",
    ("setup_intents", "succeeded"): "setup_intent.succeeded",
    ("invoices", "paid"): "invoice.paid",
}


def ledger_name(account: Any) -> str:
    """`acme`, `acct_acme` (test mode) or `acct_acme/live`."""
    if not isinstance(account, str) or not account:
        raise ValueError(f"account: a name, not {account!r}")
    return account if account == "*" or account.startswith("acct_") else f"acct_{account}"


class Admin:
    def __init__(self, server: Server, listen: Callable[[bool], Awaitable[None]]) -> None:
        self._server = server
        self._ledger = server.ledger
        self._listen = listen
        self.connections: set[Connection] = set()
        self._calls: dict[str, Call] = {
            "GET /account": self._account,
            "POST /account": self._set_account,
            "GET /faults": lambda _: [asdict(fault) for fault in server.faults.requests],
            "POST /faults": lambda p: self._add(server.faults.add, p),
            "DELETE /faults": lambda p: server.faults.remove(_optional(p)),
            "GET /webhook_faults": lambda _: [asdict(fault) for fault in server.faults.webhooks],
            "POST /webhook_faults": lambda p: self._add(server.faults.add_webhook, p),
            "POST /endpoints": self._add_endpoint,
            "GET /endpoints": lambda p: self._table("endpoints", p),
            "DELETE /endpoints": lambda p: endpoints.replaced(self._ledger, p["id"], p["by"]),
            "GET /deliveries": lambda p: self._table("deliveries", p),
            "POST /deliveries/settle": self._settle,
            "POST /deliver": self._deliver,
            "GET /held": lambda p: self._table("held", p),
            "POST /release": lambda p: {"held": server.release(_optional(p), p.get("kind"))},
            "POST /move": self._move,
            "POST /plant": self._plant,
            "GET /objects": self._objects,
            "GET /effects": lambda p: oracle.rows(
                self._ledger, "effects", _optional(p), p.get("key")
            ),
            "GET /requests": lambda p: oracle.rows(
                self._ledger, "requests", _optional(p), p.get("key")
            ),
            "GET /oracle": lambda p: oracle.verdict(self._ledger, _optional(p)),
            "POST /reset": self._reset,
            "POST /listener": self._set_listener,
        }

    def connection(self) -> Connection:
        return Connection(self._received, lambda _: False, self.connections)

    def _received(self, connection: Connection, request: Request) -> None:
        self._server.spawn(self._answer(connection, request))

    async def _answer(self, connection: Connection, request: Request) -> None:
        try:
            call = self._calls.get(f"{request.method} {request.path}")
            if call is None:
                raise ValueError(f"no such call: {request.method} {request.path}")
            params = json.loads(request.body) if request.body else dict(parse_qsl(request.query))
            result = call(params)
            if asyncio.iscoroutine(result):
                result = await result
            status, body = 200, dumps(result)
        except (ValueError, TypeError, KeyError) as wrong:
            message = f"missing: {wrong}" if isinstance(wrong, KeyError) else str(wrong)
            status, body = 400, dumps({"error": message})
        except Refusal as refusal:
            status, body = refusal.status, dumps({"error": refusal.error})
        except Exception:
            traceback.print_exc()
            status, body = 500, dumps({"error": "the sandbox has a bug; see its stderr"})
        answer = Answer(status, body.encode(), {"Content-Type": "application/json"})
        self._server.commit_soon(lambda: connection.send(answer))

    # ---- accounts and faults

    def _account(self, p: Json) -> Json:
        name = ledger_name(p["account"])
        return {
            "account": name,
            "now": self._ledger.now(name),
            **asdict(self._ledger.account(name)),
        }

    def _set_account(self, p: Json) -> Json:
        name = ledger_name(p.pop("account"))
        self._ledger.set_account(name, self._ledger.account(name).changed(p))
        return self._account({"account": name})

    def _add(self, add: Callable[[Json], int], rows: Any) -> list[int]:
        given = rows if isinstance(rows, list) else [rows]
        return [add({**row, "account": ledger_name(row.get("account", "*"))}) for row in given]

    def _reset(self, p: Json) -> None:
        self._ledger.reset(ledger_name(p["account"]))
        self._server.faults.load()
        self._server.arrivals.recount()

    # ---- webhooks

    def _add_endpoint(self, p: Json) -> Json:
        endpoint_id = endpoints.register(
            self._ledger, ledger_name(p["account"]), p["url"], _secrets(p["secrets"]),
            enabled_events=p.get("enabled_events"), connect=bool(p.get("connect")),
            api_version=p.get("api_version"),
        )  # fmt: skip
        return {"id": endpoint_id}

    async def _settle(self, p: Json) -> Json:
        settled = await self._server.sender.settled(_optional(p), float(p.get("limit_s", 10.0)))
        return {"settled": settled}

    def _deliver(self, p: Json) -> Json:
        """One hand-made delivery: `event` (JSON) or `body` (text), any secrets, any timestamp."""
        endpoints.check_url(p["url"])
        event = p.get("event") or {}
        body = p["body"] if "body" in p else dumps(event)
        twist = {"skew_s": p.get("skew_s", 0.0)}
        seq = events.enqueue(
            self._ledger, ledger_name(p["account"]), event_id=event.get("id", ""),
            event_type=event.get("type", ""), url=p["url"], secrets=_secrets(p["secrets"]),
            body=body.encode(), twist=twist, due_at=self._ledger.wall_s(),
        )  # fmt: skip
        return {"seq": seq}

    # ---- what the vendor does by itself

    def _move(self, p: Json) -> Json:
        """A status change nobody asked for through the API: event.request holds nulls."""
        row = self._ledger.one("select account, kind from objects where id = ?", p["object_id"])
        if row is None:
            raise ValueError(f"object_id: no such object: {p['object_id']!r}")
        x = Execution(self._ledger, row["account"], {}, None, None)
        if row["kind"] == "payments":
            return self._move_payment(x, p)
        obj = x.find(row["kind"], p["object_id"], "object_id")
        if row["kind"] == "payment_intents":
            move_payment_intent(x, obj, p["status"])
        else:
            previous = x.update(obj, status=p["status"])
            updated = f"{KINDS[row['kind']][1]}.updated"
            x.emit(_MOVED_EVENT.get((row["kind"], p["status"]), updated), obj, previous)
        events.publish(self._ledger, self._server.faults, x)
        return obj

    def _move_payment(self, x: Execution, p: Json) -> Json:
        x.face = "keys"
        obj = self._ledger.load(x.account, "payments", p["object_id"])
        assert obj is not None
        previous = x.update(obj, status=p["status"], updated_at=iso(x.at))
        x.emit("payment.updated", obj, previous)
        events.publish(self._ledger, self._server.faults, x)
        return obj

    def _plant(self, p: Json) -> Json:
        """Executes an operation on the vendor's own account of things: no request, no key."""
        operation = BY_NAME.get(p["operation"]) or JSON_BY_NAME.get(p["operation"])
        if operation is None:
            raise ValueError(f"operation: no such operation: {p['operation']!r}")
        params = p.get("params", {})
        job = {
            "operation": operation.name, "object_id": p.get("object_id", ""),
            "params": params if face_of(operation.path) else _as_form(params),
            "key": p.get("key"), "platform": None,
            "request_id": None, "status_word": p.get("status"), "version": None, "planted": True,
        }  # fmt: skip
        return run_job(self._ledger, self._server.faults, ledger_name(p["account"]), job)

    def _objects(self, p: Json) -> list[Json]:
        rows = self._ledger.all(
            "select body from objects where account = ? and kind = ? order by seq",
            ledger_name(p["account"]), p["kind"],
        )  # fmt: skip
        return [json.loads(row["body"]) for row in rows]

    def _table(self, table: str, p: Json) -> list[Json]:
        account = _optional(p)
        sql = f"select * from {table} where ? is null or account = ?"  # noqa: S608 - our own names
        found = self._ledger.all(sql, account, account)
        for row in found:
            if isinstance(row.get("body"), bytes):
                row["body"] = row["body"].decode()
        return found

    def _recorded(self, table: str, p: Json) -> list[Json]:
        return oracle.rows(self._ledger, table, _optional(p), p.get("key"))

    async def _set_listener(self, p: Json) -> None:
        await self._listen(bool(p["accept"]))


def _optional(p: Json) -> str | None:
    return ledger_name(p["account"]) if p.get("account") else None


def _secrets(given: Any) -> list[str]:
    secrets = [given] if isinstance(given, str) else given
    if not isinstance(secrets, list) or not secrets or not all(isinstance(s, str) for s in secrets):
        raise ValueError("secrets: a list of at least one secret")
    return secrets


def _as_form(value: Any) -> Any:
    """JSON parameters as a decoded form would give them."""
    if isinstance(value, dict):
        return {name: _as_form(one) for name, one in value.items()}
    if isinstance(value, list):
        return {str(at): _as_form(one) for at, one in enumerate(value)}
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
