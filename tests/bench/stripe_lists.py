"""What Stripe's lists show of all writes that have arrived: pages of payment intents and of their
events, the newest first; every read of one is counted."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

from tests.bench.effects import Effect, Ledger

PAGE = 100
_READS = "reads"


def charged(owner: UUID, metadata: dict[str, str], amount: int, currency: str) -> dict[str, Any]:
    """A payment intent that took effect."""
    return {
        "id": f"pi_{owner.hex}", "object": "payment_intent", "livemode": False, "amount": amount,
        "currency": currency, "status": "succeeded", "created": int(time.time()),
        "metadata": metadata,
    }  # fmt: skip


class Lists:
    """The writes that are there when the first list is read: during a look nothing is sent."""

    def __init__(self, ledger: Ledger, folder: str) -> None:
        self._ledger = ledger
        self._arrived: list[Effect] = []
        self._reads = os.open(Path(folder) / _READS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def page(self, target: str) -> bytes | None:
        """One page; None for what is no list of these."""
        parts = urlsplit(target)
        if parts.path not in ("/v1/payment_intents", "/v1/events"):
            return None
        os.write(self._reads, b".")
        self._arrived = self._arrived or list(self._ledger)
        after = parse_qs(parts.query).get("starting_after", ["x_-1"])[0]
        first = int(after.rpartition("_")[2]) + 1
        shown = [
            (number, _object(effect, number))
            for number, effect in enumerate(self._arrived[first : first + PAGE], start=first)
        ]
        data = [one for _, one in shown]
        if parts.path == "/v1/events":
            data = [_event(one, number) for number, one in shown]
        more = first + PAGE < len(self._arrived)
        return json.dumps({"object": "list", "data": data, "has_more": more}).encode()


def reads(folder: str) -> int:
    """How many pages have been read."""
    path = Path(folder) / _READS
    return path.stat().st_size if path.exists() else 0


def _object(effect: Effect, number: int) -> dict[str, Any]:
    owner = UUID(bytes=effect.owner)
    marks = {"outbox_id": str(owner), "outbox_key": effect.key.hex()}
    return {**charged(owner, marks, 4900, "usd"), "id": f"pi_{owner.hex}_{number}"}


def _event(made: dict[str, Any], number: int) -> dict[str, Any]:
    key = made["metadata"]["outbox_key"]
    return {
        "id": f"evt_{number}", "object": "event", "type": "payment_intent.created",
        "created": made["created"], "data": {"object": made},
        "request": {"id": "req_bench", "idempotency_key": key},
    }  # fmt: skip
