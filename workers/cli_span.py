"""Durations and times as people type them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import click

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
        from outbox.inputs import span_s

        try:
            return span_s(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Retention(Span):
    """How long settled intents are kept whole. Seconds."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """A duration that is not too short to be safe."""
        from outbox.inputs import retention_s

        try:
            return retention_s(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


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
RETENTION = Retention()
NEXT = Next()
PLACE = Place()
MOMENT = Moment()
