"""A durable outbox for the writes of software agents.

Agents enqueue intents in their own transaction; one consumer performs each upstream call, always
with the same idempotency key; what is in doubt is resolved by evidence, or a person is asked.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outbox.answers import Answer, Settlement
    from outbox.api import Outbox
    from outbox.errors import (
        Denied,
        Full,
        IntentMismatch,
        Invalid,
        KeyTaken,
        NotFound,
        OutboxError,
        ReadOnly,
        RetryTransaction,
        SettingsError,
        StaleEpoch,
        Unreachable,
    )
    from outbox.settings import Settings
    from outbox.tool import Scope, WriteTool

__all__ = [
    "Answer",
    "Denied",
    "Full",
    "IntentMismatch",
    "Invalid",
    "KeyTaken",
    "NotFound",
    "Outbox",
    "OutboxError",
    "ReadOnly",
    "RetryTransaction",
    "Scope",
    "Settings",
    "SettingsError",
    "Settlement",
    "StaleEpoch",
    "Unreachable",
    "WriteTool",
]

_HOMES = {
    "Answer": "answers",
    "Settlement": "answers",
    "Outbox": "api",
    "Settings": "settings",
    "Scope": "tool",
    "WriteTool": "tool",
}


def __getattr__(name: str) -> Any:
    """Loaded on first use: a worker or an operator's command never needs the agent's side, whose
    SQLAlchemy costs more than all the rest of a start."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"outbox.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value
