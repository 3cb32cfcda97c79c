"""What a page says: whose write, how much, why, how long is left, and the first thing to type.

No argument, no request, no personal data and no secret: only names that the operators chose,
amounts and times. An outcome that was not seen is called unknown and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outbox.store.escalations import DOUBT_REASONS
from resolvers.pagers import Detail, Page

_SAID = {
    "ttl": "not settled within its time limit",
    "window": "the time in which the same key is safe is ending",
    "worker_lost": "its workers were lost again and again",
    "lane_held": "others wait behind it in their lane",
    "unsendable": "it cannot be sent",
    "contradiction": "two accounts of this write contradict each other",
    "paused": "sending is paused",
    "breaker": "the breaker is open",
    "freeze": "a tool is frozen",
    "clock": "the database's clock moved: re-sends are held",
    "webhook_mismatch": "webhook events of another mode or account arrive",
}
# The same write may be due twice, or the means to make it safe runs out.
_WARNINGS = frozenset({"lane_held", "paused", "breaker", "freeze", "webhook_mismatch"})
_ERRORS = frozenset({"ttl", "worker_lost", "unsendable", "clock"})


def page_of(row: Mapping[str, Any], environment: str) -> Page:
    """The page of a claimed row (``outbox.store.pages.claim``)."""
    detail: Mapping[str, Any] = row["detail"]
    reason = str(row["body"].get("reason", ""))
    command = f"outbox escalation show {row['escalation_id']}"
    shown: dict[str, Detail] = {
        "first_command": command,
        "escalation": str(row["escalation_id"]),
        "intent": str(row["intent_id"]) if row["intent_id"] else None,
        "holder": row["holder"],
        "environment": environment,
        "reason": reason,
        "outcome": _outcome(row),
        "age": span(row["age_s"]),
        "window_left": span(row["window_left_s"]),
        **{name: _plain(detail.get(name)) for name in _NAMED},
        "waiting": row["waiting"],
        "found": in_words(detail) or None,
        "sample_escalations": ", ".join(detail.get("samples", [])) or None,
    }
    return Page(
        action=row["action"],
        dedup_key=row["dedup_key"],
        severity=_severity(reason),
        summary=_summary(row, reason, detail, command),
        source=f"outbox/{environment}",
        at_epoch_s=row["at_epoch_s"],
        details={name: value for name, value in shown.items() if value is not None},
    )


_NAMED = ("tenant", "vendor", "account", "mode", "tool", "amount_minor", "currency", "count")


def in_words(detail: Mapping[str, Any]) -> str:
    """The objects that contradict a write, as they were seen (``found`` of an escalation's detail);
    amounts in minor units."""
    return "; ".join(_seen(found) for found in detail.get("found", []))


def _seen(found: Mapping[str, Any]) -> str:
    amount = found.get("amount_minor")
    said = [
        None if amount is None else f"{amount} {found.get('currency') or ''}".strip(),
        *(found.get(name) for name in ("word", "mode", "vendor_account")),
    ]
    return f"{found.get('object')}: {', '.join(str(part) for part in said if part)}"


def span(seconds: float | None) -> str | None:
    """A duration for a person: its two largest units."""
    if seconds is None:
        return None
    if seconds <= 0:
        return "none"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    named = [f"{value} {unit}" for value, unit in parts if value]
    return " ".join(named[:2]) or "under 1 s"


def _summary(row: Mapping[str, Any], reason: str, detail: Mapping[str, Any], command: str) -> str:
    place = "/".join(str(detail[n]) for n in ("vendor", "account") if detail.get(n))
    about = [f"{detail['tool']} at {place}" if detail.get("tool") else place or str(row["holder"])]
    if detail.get("tenant"):
        about.append(f"tenant {detail['tenant']}")
    if found := in_words(detail):
        about.append(f"found {found}")
    if detail.get("amount_minor") is not None:
        amount = f"{detail['amount_minor']} {detail.get('currency') or ''} (minor units)"
        about.append(f"asked for {amount}" if found else amount)
    if row["age_s"] is not None:
        about.append(f"{span(row['age_s'])} old")
    if row["window_left_s"] is not None:
        about.append(f"window left: {span(row['window_left_s'])}")
    said = _SAID.get(reason, reason.replace("_", " "))
    if row["waiting"] is not None:
        said += f", {row['waiting'] or 'no'} write{'s' * (row['waiting'] != 1)} waiting"
    outcome = _outcome(row)
    head = f"{detail['count']} writes: " if detail.get("count") else ""
    told = f"outcome {outcome}; " if outcome else ""
    # The command comes first: what is cut off at the end must not be what to do.
    return f"{head}{told}{said} [{reason}]. Type: {command}. " + ", ".join(about)


def _outcome(row: Mapping[str, Any]) -> str | None:
    """What may be said of the write itself."""
    if row["status"] is None:
        return None
    if row["body"].get("reason") not in DOUBT_REASONS:
        return "unknown"  # contradicted: told as unknown until a person has ruled
    if row["status"] in ("pending", "awaiting_approval"):
        return "not sent yet"
    return "unknown" if row["status"] in ("in_flight", "unknown", "retryable") else "settled since"


def _severity(reason: str) -> str:
    if reason in _WARNINGS:
        return "warning"
    return "error" if reason in _ERRORS else "critical"


def _plain(value: Any) -> Detail:
    return value if isinstance(value, str | int) else None
