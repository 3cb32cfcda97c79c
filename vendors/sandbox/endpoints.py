"""Webhook endpoints: where events go, with which secrets, in which API version."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

from vendors.sandbox.errors import Refusal
from vendors.sandbox.execution import Execution
from vendors.sandbox.ledger import Json, Ledger
from vendors.sandbox.params import listed

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def check_url(url: str) -> None:
    """The sandbox speaks plain HTTP to this machine only; ValueError otherwise."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname not in _LOOPBACK:
        raise ValueError(f"url: the sandbox delivers to http://127.0.0.1 only, not to {url!r}")


def register(
    ledger: Ledger,
    account: str,
    url: str,
    secrets: list[str],
    *,
    id: str | None = None,
    enabled_events: list[str] | None = None,
    connect: bool = False,
    api_version: str | None = None,
) -> str:
    check_url(url)
    endpoint_id = id or ledger.new_id("we_")
    ledger.run(
        "insert or replace into endpoints values (?, ?, ?, ?, ?, ?, ?)",
        endpoint_id, account, connect, url, json.dumps(secrets),
        json.dumps(enabled_events or ["*"]), api_version,
    )  # fmt: skip
    return endpoint_id


def replaced(ledger: Ledger, endpoint_id: str, by: str) -> None:
    """The receiver has moved: what waits for its old address goes to the endpoint ``by``."""
    ledger.run(
        "update deliveries set url = (select url from endpoints where id = ?)"
        " where state = 'waiting' and url = (select url from endpoints where id = ?)",
        by, endpoint_id,
    )  # fmt: skip
    ledger.run("delete from endpoints where id = ?", endpoint_id)


def create_endpoint(x: Execution, _: str) -> Json:
    p = x.params
    try:
        check_url(p["url"])
    except ValueError as refused:
        raise Refusal(400, str(refused), code="url_invalid", param="url") from None
    events = listed(p["enabled_events"])
    endpoint = x.create(
        "webhook_endpoints",
        {
            "api_version": p.get("api_version"),
            "application": None,
            "description": p.get("description"),
            "enabled_events": events,
            "status": "enabled",
            "url": p["url"],
        },
    )
    secret = x.ledger.new_id("whsec_")
    register(
        x.ledger, x.account, p["url"], [secret], id=endpoint["id"], enabled_events=events,
        connect=p.get("connect") is True, api_version=p.get("api_version"),
    )  # fmt: skip
    x.effect("create", endpoint)
    # Told once, at creation, and not kept in the object.
    return {**endpoint, "secret": secret}


def delete_endpoint(x: Execution, object_id: str) -> Json:
    endpoint = x.find("webhook_endpoints", object_id, "id")
    x.ledger.run("delete from endpoints where id = ?", object_id)
    x.ledger.run("delete from objects where id = ?", object_id)
    x.effect("delete", endpoint)
    return {"id": object_id, "object": "webhook_endpoint", "deleted": True}
