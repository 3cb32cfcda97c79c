"""A page, a target that it goes to, and what became of one try.

An adapter sends exactly one request under one total deadline and never retries; when to try
again and where is the paging job's to say. A second try carries the same dedup key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

_SUMMARY_CHARS = 1024
_DEDUP_CHARS = 255
_DETAIL_CHARS = 512
_MOST_DETAILS = 32
_DIGEST_CHARS = 12

Detail = str | int | None


@dataclass(frozen=True, slots=True)
class Page:
    """One notice. ``action`` is trigger, acknowledge or resolve; ``severity`` critical, error,
    warning or info; ``at_epoch_s`` the database's clock when it was claimed."""

    action: str
    dedup_key: str
    severity: str
    summary: str
    source: str
    at_epoch_s: int
    details: Mapping[str, Detail] = field(default_factory=dict)

    def key(self, most: int = _DEDUP_CHARS) -> str:
        """The dedup key in a slot of so many characters. Two long keys stay two."""
        if len(self.dedup_key) <= most:
            return self.dedup_key
        return f"{self.dedup_key[: most - _DIGEST_CHARS - 1]}#{digest(self.dedup_key)}"

    def shown_details(self, most: int = _DETAIL_CHARS) -> dict[str, Detail]:
        """The details, each of at most so many characters, and not too many of them."""
        return {
            name: cut(value, most) if isinstance(value, str) else value
            for name, value in list(self.details.items())[:_MOST_DETAILS]
            if value is not None
        }

    def as_json(self) -> dict[str, Any]:
        """The page as one JSON object, cut to what every target takes."""
        return {
            "schema": 1,
            "action": self.action,
            "dedup_key": self.key(),
            "severity": self.severity,
            "summary": cut(self.summary, _SUMMARY_CHARS),
            "source": self.source,
            "at_epoch_s": self.at_epoch_s,
            "details": self.shown_details(),
        }

    def as_text(self) -> str:
        """The page as lines, for a target that shows text and nothing else."""
        details = [f"{name}: {value}" for name, value in self.shown_details().items()]
        return "\n".join([cut(self.summary, _SUMMARY_CHARS), "", *details])


@dataclass(frozen=True, slots=True)
class Sent:
    """The target took the page in. That is no proof that anybody was woken."""

    detail: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The target did not say that it took the page in. ``final``: the same page will never be
    taken there; ``maybe``: it may have been taken in although no answer said so."""

    detail: str
    retry_after_s: float | None = None
    final: bool = False
    maybe: bool = False


NO_ACKNOWLEDGE = Failed("takes no acknowledge", final=True)


class Pager(Protocol):
    """A target. ``name`` is stored with each page and holds no secret; ``repages``: the target
    has an escalation policy of its own, and the same key would notify nobody again; ``lasts_s``:
    how long it shows a page that is not sent again, None for until it is resolved."""

    @property
    def name(self) -> str: ...

    @property
    def repages(self) -> bool: ...

    @property
    def lasts_s(self) -> float | None: ...

    def send(self, page: Page) -> Sent | Failed: ...


class Unusable(Exception):
    """A pager's setting that cannot work. The text says why and never what was written there."""

    def __init__(self, problem: str, setting: str = "OUTBOX_PAGERS") -> None:
        self.setting = setting
        super().__init__(problem)


def cut(text: str, most: int) -> str:
    """The text, or its beginning with a mark that something is missing."""
    return text if len(text) <= most else text[: most - 1] + "…"


def digest(text: str) -> str:
    """Names what must not be shown."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
