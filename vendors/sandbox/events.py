"""What an execution emits becomes rows: Event objects, and a delivery to each endpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise

from vendors.sandbox.execution import Execution
from vendors.sandbox.faults import Faults, WebhookFault
from vendors.sandbox.json_webhooks import rendered
from vendors.sandbox.ledger import Json, Ledger, Row, dumps

SKEW_S = 600.0
HOLD_S = 5.0

Twists = dict[str, WebhookFault]


@dataclass(slots=True)
class Hold:
    """The reply waits until these events have been delivered, or `limit_s` is over."""

    event_ids: list[str]
    limit_s: float


def publish(ledger: Ledger, faults: Faults, x: Execution) -> Hold | None:
    hold: Hold | None = None
    waiting: list[tuple[int, str, bool]] = []
    listeners = _listeners(ledger, x.account, x.platform)
    for original in x.events:
        twists = faults.for_event(x.account, original["type"])
        for event in _variants(ledger, original, twists):
            hearing = [e for e in listeners if _hears(e, event["type"])]
            event["pending_webhooks"] = len(hearing)
            ledger.insert(x.account, "events", event, x.at, type=event["type"])
            for endpoint in hearing:
                for _ in range(2 if "duplicate" in twists else 1):
                    seq = _enqueue(ledger, x, event, endpoint, twists)
                    waiting.append((seq, endpoint["url"], "reorder" in twists))
            if "before_answer" in twists and hearing:
                limit_s = twists["before_answer"].after_s or HOLD_S
                hold = hold or Hold([], limit_s)
                hold.event_ids.append(event["id"])
    _reorder(ledger, waiting)
    return hold


def _listeners(ledger: Ledger, account: str, platform: str | None) -> list[Row]:
    rows = ledger.all(
        "select * from endpoints where (account = ? and not connect) or (account = ? and connect)",
        account, platform,
    )  # fmt: skip
    for row in rows:
        row["enabled_events"] = json.loads(row["enabled_events"])
    return rows


def _hears(endpoint: Row, type: str) -> bool:
    return any(fnmatchcase(type, pattern) for pattern in endpoint["enabled_events"])


def _variants(ledger: Ledger, event: Json, twists: Twists) -> list[Json]:
    if "null_request" in twists:
        event["request"] = None
    if "no_metadata" in twists:
        event["data"] = {**event["data"], "object": {**event["data"]["object"], "metadata": {}}}
    variants = [event]
    if "second_event" in twists:
        variants.append({**event, "id": ledger.new_id("evt_")})
    if "unknown_key" in twists:
        obj = event["data"]["object"]
        prefix = obj["id"].rpartition("_")[0] + "_"
        foreign = {**obj, "id": ledger.new_id(prefix), "metadata": {}}
        variants.insert(
            0,
            {
                **event,
                "id": ledger.new_id("evt_"),
                "data": {"object": foreign},
                "request": {
                    "id": ledger.new_id("req_"),
                    "idempotency_key": ledger.new_id("other-"),
                },
            },
        )
    return variants


def _enqueue(ledger: Ledger, x: Execution, event: Json, endpoint: Row, twists: Twists) -> int:
    shown = rendered(x.face, event) if x.face else event
    if endpoint["api_version"]:
        shown = {**event, "api_version": endpoint["api_version"]}
    body = json.dumps(shown, indent=2) if "pretty" in twists else dumps(shown)
    delay = twists.get("delay")
    return enqueue(
        ledger,
        x.account,
        event_id=event["id"],
        event_type=event["type"],
        url=endpoint["url"],
        secrets=json.loads(endpoint["secrets"]),
        body=body.encode(),
        twist=_signing(twists) | {"face": x.face},
        due_at=ledger.wall_s() + (delay.after_s if delay else 0.0),
        state="never" if "never" in twists else "waiting",
    )


def enqueue(
    ledger: Ledger,
    account: str,
    *,
    event_id: str,
    event_type: str,
    url: str,
    secrets: list[str],
    body: bytes,
    twist: Json,
    due_at: float,
    state: str = "waiting",
) -> int:
    return ledger.run(
        "insert into deliveries (account, event_id, event_type, url, secrets, body, twist, due_at,"
        " state) values (?,?,?,?,?,?,?,?,?)",
        account, event_id, event_type, url, dumps(secrets), body, dumps(twist), due_at, state,
    )  # fmt: skip


def _signing(twists: Twists) -> Json:
    """How the sender is to sign: {wrong_secret, skew_s, two_signatures, first_tries}."""
    twist: Json = {}
    for kind in ("wrong_secret", "two_signatures", "old_timestamp", "future_timestamp"):
        fault = twists.get(kind)
        if fault is None:
            continue
        twist["first_tries"] = fault.first_tries
        if kind.endswith("_timestamp"):
            skew = fault.after_s or SKEW_S
            twist["skew_s"] = -skew if kind == "old_timestamp" else skew
        else:
            twist[kind] = True
    return twist


def _reorder(ledger: Ledger, waiting: list[tuple[int, str, bool]]) -> None:
    """Chains the deliveries to one url backwards: each waits for a try of the one after it."""
    by_url: dict[str, list[int]] = {}
    for seq, url, reordered in waiting:
        if reordered:
            by_url.setdefault(url, []).append(seq)
    for seqs in by_url.values():
        for earlier, later in pairwise(seqs):
            ledger.run("update deliveries set after_seq = ? where seq = ?", later, earlier)
