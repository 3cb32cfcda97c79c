"""Durations and times as people type them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import click

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MOST_S = 100 * 365 * 86400  # beyond some of it a database has no time any more
_MOST_DIGITS = 18
# Open or closed, the window's end and the opening in microseconds, the id.
_PLACE = re.compile(r"[01]\.(never|\d{1,17})\.\d{1,17}\.[0-9a-f]{32}")


class Span(click.ParamType[float]):
    """A duration: a number with s, m, h or d. Seconds."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """90s, 5m, 2h, 1d, 1h30m."""
        if isinstance(value, int | float):
            return float(value)
        text = str(value).strip().lower()
        parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
        if not parts or "".join(n + u for n, u in parts) != text:
            self.fail(f"{value!r} is not a duration: 90s, 5m, 2h, 1d", param, ctx)
        span_s = sum(float(number) * _UNITS[unit] for number, unit in parts)
        if span_s > _MOST_S:
            self.fail(f"{value!r} is longer than a hundred years", param, ctx)
        return span_s


class Next(click.ParamType[int]):
    """Where a list goes on: the number that its page before ended with."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Digits that fit a bigint."""
        text = str(value)
        if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
            self.fail("must be the `next` of the page before", param, ctx)
        return int(text)


class Place(click.ParamType[str]):
    """Where a list goes on that is not in the order of its numbers."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """As the page before gave it."""
        text = str(value)
        if not _PLACE.fullmatch(text):
            self.fail("must be the `next` of the page before", param, ctx)
        return text


class Moment(click.ParamType[datetime]):
    """A time in ISO 8601; without a zone it is UTC."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """2026-11-30T09:00Z."""
        if isinstance(value, datetime):
            return value
        try:
            found = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a time: 2026-11-30T09:00Z", param, ctx)
        return found if found.tzinfo else found.replace(tzinfo=UTC)


SPAN = Span()
NEXT = Next()
PLACE = Place()
MOMENT = Moment()
