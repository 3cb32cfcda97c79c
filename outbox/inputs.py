"""What callers hand to the public API, checked before any SQL. Raises ``Invalid`` with the path."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from uuid import UUID

from outbox.errors import Invalid
from outbox.policy import LEAST_RETENTION_S

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MOST_S = 100 * 365 * 86400  # beyond some of it a database has no time any more


def pairs(requests: Any) -> Iterator[tuple[Any, Any]]:
    """Each scope with its arguments."""
    if isinstance(requests, str | bytes | Mapping) or not isinstance(requests, Iterable):
        raise Invalid("requests", "must be pairs of a Scope and arguments")
    for n, pair in enumerate(requests):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise Invalid(f"requests[{n}]", "must be a pair of a Scope and arguments")
        yield pair[0], pair[1]


def seconds(value: Any) -> float:
    """A time to wait, 0 at the least; as long as the system can wait at the most."""
    # The comparison also refuses NaN.
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not value <= threading.TIMEOUT_MAX
    ):
        raise Invalid("timeout_s", "must be a number of seconds")
    return max(value, 0.0)


def span_s(text: str) -> float:
    """A duration as people write it, in seconds: 90s, 5m, 2h, 400d, 1h30m. Raises ``ValueError``
    with what is wrong."""
    written = text.strip().lower()
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", written)
    if not parts or "".join(n + u for n, u in parts) != written:
        raise ValueError(f"{text!r} is not a duration: 90s, 5m, 2h, 1d")
    found = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if found > _MOST_S:
        raise ValueError(f"{text!r} is longer than a hundred years")
    return found


def retention_s(text: str) -> float:
    """How long settled intents are kept whole, in seconds. Raises ``ValueError`` with what is
    wrong."""
    found = span_s(text)
    if found < LEAST_RETENTION_S:
        raise ValueError(f"must be at least {LEAST_RETENTION_S / _UNITS['d']:.0f}d")
    return found


def as_uuid(value: UUID | str, path: str) -> UUID:
    """An intent's id, as such or as text."""
    try:
        return value if isinstance(value, UUID) else UUID(str(value))
    except ValueError:
        raise Invalid(path, "is not an intent id") from None


def check_consumer(consumer: str) -> None:
    """A consumer's name is printable text."""
    if not isinstance(consumer, str) or not 1 <= len(consumer) <= 100 or not consumer.isprintable():
        raise Invalid("consumer", "must be printable text of 1 to 100 characters")
