"""A durable outbox for the writes of software agents.

Agents enqueue intents in their own transaction; one consumer performs each upstream call, always
with the same idempotency key; what is in doubt is resolved by evidence, or a person is asked.
"""

from outbox.answers import Answer, Settlement
from outbox.api import Outbox
from outbox.errors import (
    Denied,
    IntentMismatch,
    Invalid,
    NotFound,
    OutboxError,
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
    "IntentMismatch",
    "Invalid",
    "NotFound",
    "Outbox",
    "OutboxError",
    "RetryTransaction",
    "Scope",
    "Settings",
    "SettingsError",
    "Settlement",
    "StaleEpoch",
    "Unreachable",
    "WriteTool",
]
