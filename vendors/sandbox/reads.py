"""Retrieve, list, search and expand: Stripe's reads, with the lags an account may be given."""

from __future__ import annotations

import json
import re
from typing import Any

from vendors.sandbox.errors import Refusal, missing
from vendors.sandbox.execution import KINDS, LIVE_SUFFIX, Execution
from vendors.sandbox.ledger import Json
from vendors.sandbox.params import listed

_BOUNDS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_NO_COLUMN = {"created", "limit", "starting_after", "ending_before", "expand", "type", "types"}
_CLAUSE = re.compile(r"""^\s*(?:metadata\[["'](.+?)["']\]|(\w+))\s*:\s*["'](.*)["']\s*$""")
_BY_PREFIX = {prefix: kind for kind, (prefix, _, _) in KINDS.items()}


def retrieve(x: Execution, kind: str, object_id: str) -> Json:
    found = x.ledger.load(x.account, kind, object_id)
    if found is None or (kind == "events" and _hidden(x, found["id"])):
        raise missing(KINDS[kind][1], object_id, "id", status=404)
    return found


def _hidden(x: Execution, event_id: str) -> bool:
    row = x.ledger.one("select at from objects where id = ?", event_id)
    return row is not None and row["at"] > x.at - x.ledger.account(x.account).events_lag_s


def list_objects(x: Execution, kind: str) -> Json:
    """Newest first; `ending_before` gives the page just above the cursor, also newest first."""
    where = ["account = ?", "kind = ?"]
    values: list[Any] = [x.account, kind]
    _created(x.params.get("created"), where, values)
    if kind == "events":
        _event_filters(x, where, values)
    for name, value in x.params.items():
        if name not in _NO_COLUMN and value != "all" and isinstance(value, str | bool):
            where.append(f"json_extract(body, '$.{name}') = ?")
            values.append(value)
    limit, after, before = _page(x.params)
    if after or before:
        cursor = x.ledger.one(
            "select created, seq from objects where id = ? and account = ? and kind = ?",
            after or before, x.account, kind,
        )  # fmt: skip
        if cursor is None:
            param = "starting_after" if after else "ending_before"
            raise missing(KINDS[kind][1], str(after or before), param)
        where.append(f"(created, seq) {'<' if after else '>'} (?, ?)")
        values += [cursor["created"], cursor["seq"]]
    order = "asc" if before else "desc"
    rows = x.ledger.all(
        f"select body from objects where {' and '.join(where)}"  # noqa: S608 - our own clauses
        f" order by created {order}, seq {order} limit {limit + 1}",
        *values,
    )
    bodies = [json.loads(row["body"]) for row in rows[:limit]]
    if before:
        bodies.reverse()
    return {"object": "list", "data": bodies, "has_more": len(rows) > limit, "url": f"/v1/{kind}"}


def _created(given: Any, where: list[str], values: list[Any]) -> None:
    if given is None:
        return
    bounds = given if isinstance(given, dict) else {"": given}
    for name, value in bounds.items():
        param = f"created[{name}]" if name else "created"
        if name and name not in _BOUNDS:
            raise Refusal(
                400, f"Received unknown parameter: {param}", code="parameter_unknown", param=param
            )
        where.append(f"created {_BOUNDS.get(name, '=')} ?")
        values.append(_integer(value, param))


def _event_filters(x: Execution, where: list[str], values: list[Any]) -> None:
    where.append("at <= ?")
    values.append(x.at - x.ledger.account(x.account).events_lag_s)
    wanted = listed(x.params.get("types"))
    if "type" in x.params:
        if wanted:
            raise Refusal(400, "You may pass type or types, not both.", param="types")
        wanted = [x.params["type"]]
    if len(wanted) > 20:
        raise Refusal(400, "At most 20 event types.", param="types")
    if wanted:
        where.append("(" + " or ".join("type glob ?" for _ in wanted) + ")")
        values += wanted
    delivered = x.params.pop("delivery_success", None)
    if delivered is not None:
        failed = (
            "exists (select 1 from deliveries d"
            " where d.event_id = objects.id and d.state <> 'done')"
        )
        where.append(f"not {failed}" if delivered else failed)


def _page(params: Json) -> tuple[int, str | None, str | None]:
    limit = params.get("limit", 10)
    if not 1 <= limit <= 100:
        raise Refusal(
            400, "limit is between 1 and 100.", code="parameter_invalid_integer", param="limit"
        )
    after, before = params.get("starting_after"), params.get("ending_before")
    if after and before:
        raise Refusal(400, "One cursor at a time.", param="ending_before")
    return limit, after, before


def _integer(value: Any, param: str) -> int:
    if isinstance(value, int) or (isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value)):
        return int(value)
    raise Refusal(400, f"Invalid integer: {value}", code="parameter_invalid_integer", param=param)


def search(x: Execution, kind: str) -> Json:
    """`field:'value'` and `metadata['name']:'value'`, joined by AND, older than the search lag."""
    settings = x.ledger.account(x.account)
    if not settings.search_enabled:
        raise Refusal(400, "Search is not available to merchants in your region.")
    where, values = (
        ["account = ?", "kind = ?", "at <= ?"],
        [x.account, kind, x.at - settings.search_lag_s],
    )
    for clause in re.split(r"\s+AND\s+", x.params["query"], flags=re.IGNORECASE):
        match = _CLAUSE.match(clause)
        if match is None:
            raise Refusal(400, f"We were unable to parse your query near: {clause}", param="query")
        name = f'$.metadata."{match[1]}"' if match[1] else f"$.{match[2]}"
        where.append("cast(json_extract(body, ?) as text) = ?")
        values += [name, match[3]]
    limit, _, _ = _page(x.params)
    offset = _integer(x.params.get("page", 0), "page")
    rows = x.ledger.all(
        f"select body from objects where {' and '.join(where)}"  # noqa: S608 - our own clauses
        f" order by created desc, seq desc limit {limit + 1} offset {offset}",
        *values,
    )
    more = len(rows) > limit
    return {
        "object": "search_result",
        "data": [json.loads(row["body"]) for row in rows[:limit]],
        "has_more": more,
        "next_page": str(offset + limit) if more else None,
        "url": f"/v1/{kind}/search",
    }


def expanded(x: Execution, obj: Json) -> Json:
    """Replaces ids by objects for each `expand[]` path; a path that leads nowhere is left alone."""
    wanted = listed(x.params.get("expand"))
    if not wanted:
        return obj
    copy: Json = json.loads(json.dumps(obj))
    for path in wanted:
        _expand(x, copy, str(path).split("."))
    return copy


def _expand(x: Execution, at: Any, steps: list[str]) -> None:
    if isinstance(at, list):
        for one in at:
            _expand(x, one, steps)
    elif isinstance(at, dict) and steps[0] in at:
        value = at[steps[0]]
        if isinstance(value, str):
            kind = next((k for p, k in _BY_PREFIX.items() if value.startswith(p)), None)
            found = kind and x.ledger.load(x.account, kind, value)
            if found:
                at[steps[0]] = value = found
        if steps[1:]:
            _expand(x, value, steps[1:])


def own_account(x: Execution, _: str) -> Json:
    """GET /v1/account. The real object has no `livemode`; the mode is the API key's."""
    return {
        "id": x.account.removesuffix(LIVE_SUFFIX),
        "object": "account",
        "charges_enabled": True,
        "country": "US",
        "default_currency": "usd",
        "details_submitted": True,
        "email": None,
        "metadata": {},
        "payouts_enabled": True,
        "type": "standard",
    }


def balance(x: Execution, _: str) -> Json:
    row = x.ledger.one(
        "select coalesce(sum(json_extract(body, '$.amount_captured')"
        " - json_extract(body, '$.amount_refunded')), 0) as total from objects"
        " where account = ? and kind = 'charges' and json_extract(body, '$.status') = 'succeeded'",
        x.account,
    )
    assert row is not None
    available = [
        {"amount": row["total"], "currency": "usd", "source_types": {"card": row["total"]}}
    ]
    return {"object": "balance", "available": available, "livemode": x.livemode, "pending": []}
