"""Reads at an HTTP vendor, whichever it is: one that failed says nothing of any write."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TypeVar

from outbox.contract import Account, Cutoff
from outbox.outcomes import Unreadable
from vendors.wire import Answer, cause_of, exchange

_LONGEST_WAIT_S = 3600.0
_THROTTLED = 429

T = TypeVar("T")


class Unread(Exception):
    """A read that says nothing of the write; ``pause`` for refused credentials, ``retry_after_s``
    as a vendor asked that was asked too often."""

    def __init__(
        self, reason: str, *, pause: bool = False, retry_after_s: float | None = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.pause = pause
        self.retry_after_s = retry_after_s

    def told(self) -> Unreadable:
        """As a look-up's answer."""
        return Unreadable(self.reason, self.pause, retry_after_s=self.retry_after_s)


def answered(path: str, cutoff: Cutoff, send: Callable[[], object]) -> Answer:
    """The answer to one GET, which ``send`` sends, read to its end. Raises ``Unread``."""
    with exchange("get", path, cutoff) as wire:
        reason = ""
        try:
            send()
        except Exception as error:
            reason = cause_of(error)
        if wire.answer is None or wire.answer.body is None:
            raise Unread(f"no_answer:{reason}")
        return wire.answer


def check(answer: Answer, *, readable: bool) -> None:
    """Raises ``Unread`` unless a read was answered with a document (``readable``)."""
    if answer.status in (401, 403):
        raise Unread(f"http_{answer.status}", pause=True)
    if answer.status == _THROTTLED:
        raise Unread("http_429", retry_after_s=retry_after_s(answer.headers))
    if answer.status != 200 or not readable:
        raise Unread(f"http_{answer.status}" if answer.status != 200 else "unreadable_answer")


def told(read: Callable[[], T]) -> T | Unreadable:
    """What a read tells, or why it tells nothing."""
    try:
        return read()
    except Unread as unread:
        return unread.told()
    except Exception as error:
        return Unreadable(f"unreadable:{type(error).__name__}")


def date_of(headers: Mapping[str, str]) -> int:
    """The vendor's clock at an answer, in seconds since the epoch; 0 where it does not say."""
    return _seconds_of(headers.get("Date") or "") or 0


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """How long the vendor asks to be left alone, an hour at the most: in seconds, or as a date,
    which counts from the vendor's own clock at the answer (RFC 9110, 10.2.3). A date that is over
    is no wait; None where nothing was asked that can be read."""
    said = headers.get("Retry-After") or ""
    try:
        seconds = float(said)
    except ValueError:
        until, now = _seconds_of(said), date_of(headers)
        if until is None or not now:
            return None  # no clock of this host is read here: it may differ from the vendor's
        seconds = max(0.0, float(until - now))
    if not math.isfinite(seconds) or seconds < 0:
        return None
    return min(seconds, _LONGEST_WAIT_S)


def _seconds_of(date: str) -> int | None:
    """An HTTP date, in seconds since the epoch; None for what is none."""
    try:
        moment = parsedate_to_datetime(date)
        # A form of HTTP's that names no zone (asctime) is in UTC, wherever this host is.
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    except (ValueError, TypeError, OverflowError):
        return None


def wrong_mode(account: Account, livemode: bool | None) -> bool:
    """Whether an object is of the other mode; many do not say theirs."""
    return livemode is not None and livemode != (account.mode == "live")
