"""What came of it, by the vendor's oracle, the ledger and the pages alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tests.chaos.scene import ACCOUNTS, Scene

_ROWS = """
SELECT i.id, i.status, i.settled_at IS NOT NULL AS settled, i.contradicted_at IS NOT NULL AS wrong,
    e.id AS question,
    EXISTS (SELECT FROM outbox.pages p WHERE p.escalation_id = e.id AND p.action = 'trigger'
            AND p.state = 'sent') AS paged
FROM outbox.intents i
LEFT JOIN outbox.escalations e ON e.intent_id = i.id AND e.closed_at IS NULL
"""
_SHOWN = 5


@dataclass(frozen=True)
class Verdict:
    """Counts, and every broken promise in words. ``sends`` are requests that reached the vendor,
    ``asked`` the open questions; ``unseen`` is neither settled nor asked about."""

    sends: int
    intents: int
    asked: int
    doubled: int
    lost: int
    unseen: int
    broken: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not (self.doubled or self.lost or self.unseen or self.broken)


def judge(scene: Scene, kept: Collection[UUID], unsure: Collection[UUID]) -> Verdict:
    """``kept`` are the intents that agents know to be recorded; of ``unsure`` ones, which may be
    or not, the same holds as far as the ledger has them."""
    rows = {row["id"]: row for row in scene.sql(_ROWS)}
    effects: dict[UUID, dict[str, Any]] = {}
    broken: list[str] = []
    sends = 0
    for account in ACCOUNTS:
        oracle = scene.sandbox.oracle(account)
        effects |= {UUID(name): one for name, one in oracle["effects_by_intent"].items()}
        broken += [f"on the wire: {violation}" for violation in oracle["violations"]]
        posts = [r for r in scene.sandbox.requests(account) if r["method"] == "POST"]
        sends += sum(1 for post in posts if post["origin"] == "client")
    doubled = [i for i, one in effects.items() if one["count"] + one["declined"] > 1]
    lost = [i for i in kept if i not in rows]
    lost += [i for i, row in rows.items() if row["settled"] and not _applied(effects, i)]
    unseen = [i for i, row in rows.items() if not row["settled"] and row["question"] is None]
    broken += _false_words(rows, effects)
    broken += _foreign(rows, effects, kept, unsure)
    broken += _pages(scene, rows)
    for name, found in (("doubled", doubled), ("lost", lost), ("unseen", unseen)):
        broken += [f"{name}: intent {intent_id}" for intent_id in found[:_SHOWN]]
    asked = sum(1 for row in rows.values() if row["question"] is not None)
    return Verdict(sends, len(rows), asked, len(doubled), len(lost), len(unseen), broken)


def _applied(effects: dict[UUID, dict[str, Any]], intent_id: UUID) -> bool:
    return intent_id in effects and effects[intent_id]["count"] > 0


def _false_words(
    rows: dict[UUID, dict[str, Any]], effects: dict[UUID, dict[str, Any]]
) -> Iterator[str]:
    """A charge that landed and is called refused, and any contradiction: none was provoked."""
    for intent_id, row in rows.items():
        if row["settled"] and row["status"] != "succeeded" and _applied(effects, intent_id):
            yield f"a false word: intent {intent_id} landed and is called {row['status']}"
        if row["wrong"]:
            yield f"a contradiction that nothing provoked: intent {intent_id}"


def _foreign(
    rows: dict[UUID, dict[str, Any]],
    effects: dict[UUID, dict[str, Any]],
    kept: Collection[UUID],
    unsure: Collection[UUID],
) -> Iterator[str]:
    known = {*kept, *unsure}
    for intent_id in rows.keys() - known:
        yield f"nobody asked for intent {intent_id}"
    for intent_id in effects.keys() - rows.keys():
        yield f"the vendor knows intent {intent_id}, and the ledger does not"


def _pages(scene: Scene, rows: dict[UUID, dict[str, Any]]) -> Iterator[str]:
    """Each open question reached the pager, and no page is of anything else."""
    for intent_id, row in rows.items():
        if row["question"] is not None and not row["paged"]:
            yield f"nobody was paged about intent {intent_id}"
    known = {row["dedup_key"] for row in scene.sql("SELECT dedup_key FROM outbox.pages")}
    written = {page["dedup_key"] for page in scene.written_pages()}
    for key in written - known:
        yield f"the page {key} is of no question"
    sent = {
        row["dedup_key"]
        for row in scene.sql("SELECT dedup_key FROM outbox.pages WHERE state = 'sent'")
    }
    for key in sent - written:
        yield f"the page {key} is called sent and never was"
