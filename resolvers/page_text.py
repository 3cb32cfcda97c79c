"""What a page says: whose write, how much, why, how long is left, and the first thing to type.

No argument, no request, no personal data and no secret: only names that the operators chose,
amounts and times. An outcome that was not seen is called unknown and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outbox.contracts import CONTRACTS
from outbox.store.escalations import DOUBT_REASONS
from resolvers.page import Detail, Page

_SAID = {
    "ttl": "not settled within its time limit",
    "window": "the time in which the same key is safe is ending",
    "worker_lost": "its workers were lost again and again",
    "lane_held": "others wait behind it in their lane",
    "unsendable": "it cannot be sent",
    "predecessor": "it waits: what it was to repeat or replace may have landed",
    "contradiction": "two accounts of this write contradict each other",
    "paused": "sending is paused",
    "breaker": "the breaker is open",
    "freeze": "a tool is frozen",
    "clock": "the database's clock moved: re-sends are held",
    "webhook_mismatch": "webhook events of another mode or account arrive",
}
# The same write may be due twice, or the means to make it safe runs out.
_WARNINGS = frozenset({"lane_held", "paused", "breaker", "freeze", "webhook_mismatch"})
_IN_DOUBT = frozenset({"in_flight", "unknown", "retryable"})
_ERRORS = frozenset({"ttl", "worker_lost", "unsendable", "predecessor", "clock"})


def page_of(row: Mapping[str, Any], environment: str) -> Page:
    """The page of a claimed row (``outbox.store.pages.claim``)."""
    detail: Mapping[str, Any] = row["detail"]
    reason = str(row["body"].get("reason", ""))
    command = f"outbox escalation show {row['escalation_id']}"
    if str(row["holder"] or "").startswith("group:"):
        place = f"{detail['vendor']}/{detail['account']}"
        command = f"outbox escalation list --reason {reason} --account {place}"
    shown: dict[str, Detail] = {
        "first_command": command,
        "escalation": str(row["escalation_id"]),
        "intent": str(row["intent_id"]) if row["intent_id"] else None,
        "holder": row["holder"],
        "environment": environment,
        "reason": reason,
        "outcome": _outcome(row),
        "known": _known(row),
        "age": span(row["age_s"]),
        "window_left": span(row["window_left_s"]),
        **{name: _plain(detail.get(name)) for name in _NAMED},
        "largest": _largest(detail),
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


def known(vendor: str, status: str, doubt: int) -> str | None:
    """What is known of a write in doubt at a vendor that honours no key and cannot be read back;
    None for any other."""
    contract = CONTRACTS.get(vendor)
    if contract is None or contract.honours_keys or contract.can_look_up:
        return None
    if status not in _IN_DOUBT or not doubt:
        return None
    sends = "it was not sent again" if doubt == 1 else f"{doubt} sends of it were not answered"
    return f"it may have landed, it cannot be read back, {sends}"


def _known(row: Mapping[str, Any]) -> str | None:
    if row["status"] is None or row["body"].get("reason") not in DOUBT_REASONS:
        return None
    return known(str(row["detail"].get("vendor")), row["status"], row["doubt"])


def _largest(detail: Mapping[str, Any]) -> str | None:
    """The largest amounts of a group's questions."""
    amounts = [f"{amount} {name}".strip() for name, amount in detail.get("largest", {}).items()]
    return f"{', '.join(amounts)} (minor units)" if amounts else None


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
    if largest := _largest(detail):
        about.append(f"largest {largest}")
    if row["age_s"] is not None:
        about.append(f"{span(row['age_s'])} old")
    if row["window_left_s"] is not None:
        about.append(f"window left: {span(row['window_left_s'])}")
    said = _SAID.get(reason, reason.replace("_", " "))
    if row["waiting"] is not None:
        said += f", {row['waiting'] or 'no'} write{'s' * (row['waiting'] != 1)} waiting"
    outcome = _outcome(row)
    count = detail.get("count")
    head = f"{count} write{'s' * (count != 1)}: " if count else ""
    what = _known(row)
    told = f"outcome {outcome}{f': {what}' * bool(what)}; " if outcome else ""
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
    return "unknown" if row["status"] in _IN_DOUBT else "settled since"


def _severity(reason: str) -> str:
    if reason in _WARNINGS:
        return "warning"
    return "error" if reason in _ERRORS else "critical"


def _plain(value: Any) -> Detail:
    return value if isinstance(value, str | int) else None
