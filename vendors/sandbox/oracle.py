"""What really happened, and what a careful client would never have done.

Nothing of it can be seen through the Stripe face.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

from vendors.sandbox.json_face import KEYLESS
from vendors.sandbox.ledger import Json, Ledger, Row

_LEAVE_NO_KEY = (401, 403, 429)


def verdict(ledger: Ledger, account: str | None) -> Json:
    """{"effects_by_intent": {outbox_id, or "<account>:<key>" without one: {...}},
    "violations": [{"check", ...}]}"""
    effects = rows(ledger, "effects", account)
    requests = rows(ledger, "requests", account)
    return {
        "effects_by_intent": by_intent(effects),
        "violations": [*_effect_violations(effects), *_request_violations(ledger, requests)],
    }


def rows(ledger: Ledger, table: str, account: str | None, key: str | None = None) -> list[Row]:
    sql = (
        f"select * from {table}"  # noqa: S608 - one of our own two names
        " where (? is null or account = ?) and (? is null or key = ?) order by seq"
    )
    return ledger.all(sql, account, account, key, key)


def by_intent(effects: list[Row]) -> dict[str, Json]:
    """Per intent: `count` of effects that stand (a reversed one does not), and their objects."""
    found: dict[str, Json] = {}
    for effect in effects:
        if effect["outcome"] == "planted":
            continue
        name = effect["outbox_id"] or f"{effect['account']}:{effect['key'] or effect['request_id']}"
        one = found.setdefault(
            name,
            {
                "count": 0, "applied": 0, "declined": 0, "reversed": 0, "amount": 0,
                "account": effect["account"], "kinds": [], "objects": [], "keys": [],
            },
        )  # fmt: skip
        one[effect["outcome"]] += 1
        one["count"] = one["applied"] - one["reversed"]
        if effect["outcome"] != "declined":
            sign = -1 if effect["outcome"] == "reversed" else 1
            one["amount"] += sign * (effect["amount"] or 0)
        for field, value in (("kinds", "kind"), ("objects", "object_id"), ("keys", "key")):
            if effect[value] is not None and effect[value] not in one[field]:
                one[field].append(effect[value])
    return found


def _effect_violations(effects: list[Row]) -> list[Json]:
    found: list[Json] = []
    for intent, one in by_intent(effects).items():
        if one["count"] + one["declined"] > 1:
            found.append({"check": "more_than_one_effect", "intent": intent, **_where(one)})
    keys_of: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for effect in effects:
        if effect["outbox_id"] and effect["key"]:
            keys_of[effect["account"], effect["outbox_id"]].add(effect["key"])
    for (account, intent), keys in keys_of.items():
        if len(keys) > 1:
            found.append(
                {"check": "two_keys_for_one_intent", "account": account, "intent": intent,
                 "keys": sorted(keys)}
            )  # fmt: skip
    return found


def _where(one: Json) -> Json:
    return {"account": one["account"], "objects": one["objects"], "keys": one["keys"]}


def _request_violations(ledger: Ledger, requests: list[Row]) -> list[Json]:
    found: list[Json] = []
    per_key: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for request in requests:
        if request["method"] == "POST" and request["origin"] == "client":
            if request["operation"] in KEYLESS:
                continue
            if request["key"] is None:
                found.append(_violation("post_without_key", request))
            else:
                per_key[request["account"], request["key"]].append(request)
    for (name, _), posts in per_key.items():
        window_s = ledger.account(name).key_window_s if name else math.inf
        found += _of_one_key(posts, window_s)
    return found


def _of_one_key(posts: list[Row], window_s: float) -> list[Json]:
    found: list[Json] = []
    first = posts[0]
    # The window opens with the first request that may have left its key there.
    kept = next((post["at"] for post in posts if post["status"] not in _LEAVE_NO_KEY), math.inf)
    digest: Any = None
    for request in posts:
        digest = digest or request["body_sha256"]
        if request["body_sha256"] not in (None, digest):
            found.append(_violation("body_changed", request))
        if request["path"] != first["path"]:
            found.append(_violation("endpoint_changed", request))
        if request["api_version"] != first["api_version"]:
            found.append(_violation("api_version_changed", request))
        if request["at"] - kept >= window_s:
            found.append(_violation("post_after_window", request))
        before = [
            earlier
            for earlier in posts
            if earlier["answered_at"] is not None and earlier["answered_at"] < request["arrived_at"]
        ]
        if any(earlier["status"] == 500 for earlier in before):
            found.append(_violation("post_after_stored_500", request))
        elif any(earlier["should_retry"] == "false" for earlier in before):
            found.append(_violation("post_after_do_not_retry", request))
    return found


def _violation(check: str, request: Row) -> Json:
    return {
        "check": check,
        "account": request["account"],
        "key": request["key"],
        "path": request["path"],
        "request_id": request["id"],
        "attempt": request["attempt"],
    }
