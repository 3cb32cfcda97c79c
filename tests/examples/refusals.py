"""What an application answers where a write could not be recorded."""

from __future__ import annotations

from typing import Any

from outbox import Full, IntentMismatch, Invalid, OutboxError


def refusal(error: OutboxError) -> tuple[int, dict[str, Any]]:
    """The HTTP status and body: 422 for bad input, 409 for the same write with another amount (both
    with the fields), 429 where too many wait already, 413 where so many may never wait at once, 503
    where the same request may be sent again. Nothing was recorded."""
    body = {"state": error.told, "problem": str(error)}
    if isinstance(error, Invalid):
        return 422, {**body, "fields": [error.field]}
    if isinstance(error, IntentMismatch):
        return 409, {**body, "fields": list(error.fields)}
    if isinstance(error, Full):
        after_s = error.retry_after_s
        return (413, body) if after_s is None else (429, {**body, "retry_after_s": after_s})
    return (409 if error.told == "conflict" else 503), body
