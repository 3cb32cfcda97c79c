"""Many rows in doubt at once on a floor, and what was read and found of them."""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import UUID

from tests.workers.floor import CARD, Floor

LIST, EVENTS = "/v1/payment_intents", "/v1/events"
BACK_IN_S = 6


def lose(floor: Floor, count: int, fault: str = "lost_ack", **args: Any) -> list[UUID]:
    """Charges whose first answer was lost."""
    floor.sandbox.fault(fault, account=floor.account, attempts=[1])
    ids = floor.enqueue(count, **args)
    floor.drain()
    floor.sandbox.clear_faults(floor.account)
    return ids


def asked(floor: Floor, account: str = "") -> Counter[str]:
    """How often each path was read."""
    rows = floor.sandbox.requests(account or floor.account)
    return Counter(r["path"] for r in rows if r["method"] == "GET" and r["path"] != "/v1/account")


def owners(floor: Floor, ids: list[UUID], account: str = "") -> list[str]:
    """Whose marks the object bears that each intent has for its receipt."""
    objects = floor.sandbox.objects(account or floor.account, "payment_intents")
    by_id = {one["id"]: one["metadata"].get("outbox_id", "") for one in objects}
    return [by_id[floor.row(intent_id)["receipt_id"]] for intent_id in ids]


def plant(floor: Floor, count: int, **metadata: str) -> None:
    for _ in range(count):
        params = {**CARD, "metadata": metadata}
        floor.sandbox.plant(floor.account, "payment_intents.create", params)
