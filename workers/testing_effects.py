"""What an intent came to, at the vendor and in the ledger, and the text that shows both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from outbox import Answer, Invalid
from outbox.fingerprint import intent_id
from outbox.states import Status
from outbox.store import intents, reading
from outbox.store.connection import Transaction
from outbox.store.intents import Intent
from vendors.sandbox.client import Sandbox

_KEY_BYTES = 32
_KEY_DIGITS = 12
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Effects:
    """The vendor's ledger, the wire and the row of one intent."""

    name: str
    row: Intent | None
    effects: Sequence[Row]
    requests: Sequence[Row]
    history: Sequence[Row]

    @property
    def applied(self) -> list[str]:
        """The objects of effects that stand. What the vendor undid itself does not, and what was
        planted is nobody's doing."""
        undone = [e["object_id"] for e in self.effects if e["outcome"] == "reversed"]
        found = [e["object_id"] for e in self.effects if e["outcome"] == "applied"]
        for object_id in undone:
            if object_id in found:
                found.remove(object_id)
        return found

    def not_one(self) -> str:
        """Why it is not one effect that the ledger knows; empty where it is."""
        row, applied = self.row, self.applied
        if len(applied) != 1:
            return f"expected one effect at the vendor, found {len(applied) or 'none'}"
        if row is None:
            return "the vendor applied it, and the ledger has no such intent"
        if row.contradicted_at is not None:
            return "the vendor applied it once, and the ledger holds a contradiction"
        if row.state is not Status.SUCCEEDED:
            return f"the vendor applied it once, and the ledger says {row.status}"
        if row.receipt_id != applied[0]:
            return f"the vendor applied {applied[0]}, and the ledger's receipt is {row.receipt_id}"
        return ""

    def not_none(self) -> str:
        """Why it is not without effect; empty where it is."""
        if self.applied:
            return f"expected no effect at the vendor, found {len(self.applied)}"
        if self.row is not None and self.row.state is Status.SUCCEEDED:
            return "the vendor applied nothing, and the ledger says succeeded"
        return ""

    def told(self, problem: str) -> str:
        """The problem, and all that is known."""
        return "\n".join(
            [
                f"{problem}: {self.name}",
                *_titled("effects at the vendor", map(_effect, self.effects)),
                *_titled("requests on the wire", map(_request, self.requests)),
                *_titled("the ledger's row", _row(self.row)),
                *_titled("its history", map(_moment, self.history)),
            ]
        )


def effects_of(
    tx: Transaction, sandbox: Sandbox, account: str, intent: Answer | UUID | str | bytes
) -> Effects:
    """All of it, for an answer, an id or a key. Raises ``Invalid`` for what is none of these."""
    named = _id(intent)
    row = intents.read(tx, named)
    key = row.key.hex() if row else None
    effects = [
        e
        for e in sandbox.effects(account)
        if e["outbox_id"] == str(named) or (key is not None and e["key"] == key)
    ]
    keys = {key, *(e["key"] for e in effects)} - {None}
    requests = [r for r in sandbox.requests(account) if r["key"] in keys]
    name = f"intent {named}" if row is None else f"{row.tool}, intent {named}, key {key}"
    return Effects(name, row, effects, requests, reading.history(tx, named))


def _id(intent: Answer | UUID | str | bytes) -> UUID:
    if isinstance(intent, Answer):
        return intent.intent_id
    if isinstance(intent, UUID):
        return intent
    try:
        key = intent if isinstance(intent, bytes) else bytes.fromhex(intent)
    except (TypeError, ValueError):
        key = b""
    if len(key) == _KEY_BYTES:
        return intent_id(key)
    try:
        return UUID(str(intent))
    except ValueError:
        raise Invalid("intent", "must be an answer, an intent's id or its key") from None


def _titled(title: str, lines: Iterable[str]) -> list[str]:
    return [f"{title}:", *([f"  {line}" for line in lines] or ["  none"])]


def _effect(row: Row) -> str:
    amount = "" if row["amount"] is None else f" {row['amount']} {row['currency'] or ''}"
    return f"{row['outcome']} {row['kind']} {row['object_id']}{amount} key {_short(row['key'])}"


def _request(row: Row) -> str:
    answer = "no answer" if row["status"] is None else f"answered {row['status']}"
    notes = [
        f"attempt {row['attempt']}",
        *([f"fault {row['fault']}"] if row["fault"] else []),
        *(["replayed"] if row["replayed"] else []),
        *(["sent by the transport"] if row["origin"] != "client" else []),
    ]
    said = ", ".join(notes)
    return f"{row['method']} {row['path']} key {_short(row['key'])} ({said}): {answer}"


def _row(row: Intent | None) -> Iterator[str]:
    if row is None:
        return
    parts = [f"status {row.status}", f"doubt {row.doubt}", f"attempts {row.attempts}"]
    for name in ("receipt_id", "business_status", "failure_code", "veto", "settled_by"):
        if getattr(row, name):
            parts.append(f"{name} {getattr(row, name)}")
    yield ", ".join(parts)


def _moment(row: Row) -> str:
    said = [f"{row['at']:%H:%M:%S}", row["actor"], row["kind"], row["what"], row["detail"]]
    return "  ".join(str(part) for part in said if part)


def _short(key: str | None) -> str:
    return "none" if key is None else key[:_KEY_DIGITS]
