"""Questions: asked, held, paged, and what a target was told of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from outbox.policy import Policy
from resolvers import holding
from resolvers.page import Pager
from resolvers.paging import page_once
from tests.resolvers.ledger import Ledger
from tests.resolvers.page_target import Target

LEAST = Policy().page_group_from


def ask(ledger: Ledger, count: int = 1, **given: Any) -> list[UUID]:
    """That many new questions."""
    return [ledger.escalate(ledger.intent(**given)) for _ in range(count)]


def hold(ledger: Ledger, verb: str, question: object, for_s: float) -> None:
    """What a person types: ``ack`` or ``mute``."""
    if verb == "ack":
        holding.ack(
            ledger.store, ledger.directory, str(question), by="ann", reason="mine", for_s=for_s
        )
    else:
        holding.mute(ledger.store, str(question), by="ann", reason="known", for_s=for_s)


def page(ledger: Ledger, pagers: Sequence[Pager], after_s: float = 0.0) -> None:
    ledger.forward(after_s)
    page_once(ledger.store, pagers, ledger.settings)


def groups(ledger: Ledger) -> list[dict[str, Any]]:
    return ledger.sql(
        "SELECT * FROM outbox.escalations WHERE holder IS NOT NULL ORDER BY opened_at, holder"
    )


def triggers(target: Target) -> list[tuple[str, Any, str]]:
    """Of each notice: its key, its count, and the questions it names."""
    payloads = [b for b in target.bodies if b["event_action"] == "trigger"]
    return [
        (
            b["dedup_key"],
            b["payload"]["custom_details"].get("count"),
            b["payload"]["custom_details"].get("sample_escalations", ""),
        )
        for b in payloads
    ]
