"""What callers hand to the public API, checked before any SQL. Raises ``Invalid`` with the path."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from uuid import UUID

from outbox.errors import Invalid


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
