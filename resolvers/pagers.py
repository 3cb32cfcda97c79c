"""The targets that a page goes to: PagerDuty Events v2, a signed webhook, a file.

An adapter sends exactly one request under one total deadline and never retries; when to try
again and where is the paging job's to say. A second try carries the same dedup key.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx

from outbox.errors import SettingsError
from outbox.settings import Settings

SEND_TIMEOUT_S = 10.0
RETRY_AFTER_MAX_S = 900.0
_SUMMARY_CHARS = 1024  # PagerDuty's limit; the whole event may have 512 KB
_DEDUP_CHARS = 255
_DETAIL_CHARS = 512
_MOST_DETAILS = 32
_PAGERDUTY = "https://events.pagerduty.com"
_ROUTING_KEY = re.compile(r"[A-Za-z0-9]{32}")
# The target did not take it in, and says that it may later.
_LATER = frozenset({408, 425, 429})

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

    def as_json(self) -> dict[str, Any]:
        """The page as one JSON object, cut to what every target takes."""
        return {
            "schema": 1,
            "action": self.action,
            "dedup_key": self.dedup_key[:_DEDUP_CHARS],
            "severity": self.severity,
            "summary": cut(self.summary, _SUMMARY_CHARS),
            "source": self.source,
            "at_epoch_s": self.at_epoch_s,
            "details": {
                name: cut(value, _DETAIL_CHARS) if isinstance(value, str) else value
                for name, value in list(self.details.items())[:_MOST_DETAILS]
            },
        }


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


class Pager(Protocol):
    """A target. ``name`` is stored with each page and holds no secret; ``repages``: the target
    has an escalation policy of its own, and the same key would notify nobody again."""

    @property
    def name(self) -> str: ...

    @property
    def repages(self) -> bool: ...

    def send(self, page: Page) -> Sent | Failed: ...


@dataclass(frozen=True, slots=True)
class PagerDuty:
    """Events API v2. One routing key; a resolve must use the one its trigger used."""

    routing_key: str = field(repr=False)
    base_url: str = _PAGERDUTY
    repages = True

    @property
    def name(self) -> str:
        """The key is a credential, so its digest names it."""
        return f"pagerduty:{_digest(self.routing_key + self.base_url)}"

    def send(self, page: Page) -> Sent | Failed:
        """202 means accepted, asynchronously. 400 is final; 429, 5xx and the network are not."""
        event: dict[str, Any] = {
            "routing_key": self.routing_key,
            "event_action": page.action,
            "dedup_key": page.dedup_key[:_DEDUP_CHARS],
        }
        if page.action == "trigger":
            shown = page.as_json()
            event["payload"] = {
                "summary": shown["summary"],
                "source": page.source,
                "severity": page.severity,
                "custom_details": shown["details"],
            }
        return _post(f"{self.base_url}/v2/enqueue", _encoded(event), {}, accepts=range(202, 203))


@dataclass(frozen=True, slots=True)
class SignedWebhook:
    """A JSON page to an address of the operator's own, signed like
    ``X-Outbox-Signature: t=SECONDS,v1=HMAC-SHA256(secret, "SECONDS." + body)``."""

    url: str = field(repr=False)
    secret: str = field(repr=False)
    repages = False

    @property
    def name(self) -> str:
        """The address may hold a token, so only its host is shown."""
        return f"webhook:{urlsplit(self.url).hostname}#{_digest(self.url)}"

    def send(self, page: Page) -> Sent | Failed:
        """Any 2xx is accepted."""
        body = _encoded(page.as_json())
        signed = f"{page.at_epoch_s}.".encode() + body
        mac = hmac.new(self.secret.encode(), signed, hashlib.sha256).hexdigest()
        headers = {"X-Outbox-Signature": f"t={page.at_epoch_s},v1={mac}"}
        return _post(self.url, body, headers, accepts=range(200, 300))


@dataclass(frozen=True, slots=True)
class PageFile:
    """One JSON object a line, for a log shipper or a demo."""

    path: Path
    repages = False

    @property
    def name(self) -> str:
        """The path."""
        return f"file:{self.path}"

    def send(self, page: Page) -> Sent | Failed:
        """One write in append mode, so that two processes never interleave; then fsync."""
        line = _encoded(page.as_json()) + b"\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            target = os.open(self.path, flags, 0o600)
            try:
                written = os.write(target, line)
                if written != len(line):
                    # Closes the broken line, so that the next page stays readable.
                    os.write(target, b"\n")
                    return Failed(f"wrote {written} of {len(line)} bytes")
                if stat.S_ISREG(os.fstat(target).st_mode):  # a terminal or a pipe has no disk
                    os.fsync(target)
            finally:
                os.close(target)
        except OSError as error:
            return Failed(f"{type(error).__name__}: {error.strerror}")
        return Sent(f"{len(line)} bytes")


def parse(settings: Settings) -> tuple[Pager, ...]:
    """The pagers in the order they are tried; empty for ``none`` and where none is set.

    Raises ``SettingsError`` naming OUTBOX_PAGERS (or OUTBOX_PAGER_SECRET), all faults at once.
    """
    found: list[Pager] = []
    problems: list[tuple[str, str]] = []
    for number, spec in enumerate(settings.pagers or (), 1):
        scheme, _, rest = spec.partition(":")
        try:
            found.append(_PARSERS[scheme](rest, settings))
        except KeyError:
            problems.append(("OUTBOX_PAGERS", f"no. {number} is no pagerduty:, webhook: or file:"))
        except _Wrong as wrong:
            problems.append((wrong.setting, f"no. {number} ({scheme}) {wrong}"))
    names = [pager.name for pager in found]
    if len(set(names)) != len(names):
        problems.append(("OUTBOX_PAGERS", "names one target twice"))
    if problems:
        raise SettingsError(problems)
    return tuple(found)


class _Wrong(Exception):
    def __init__(self, problem: str, setting: str = "OUTBOX_PAGERS") -> None:
        self.setting = setting
        super().__init__(problem)


def _pagerduty(rest: str, _: Settings) -> Pager:
    key, at, base = rest.partition("@")
    if not _ROUTING_KEY.fullmatch(key):
        raise _Wrong("must be the integration's routing key: 32 letters and digits")
    if not at:
        return PagerDuty(key)
    parts = _address(base)
    if parts.scheme != "https" and not _is_local(parts.hostname or ""):
        raise _Wrong("its address must be https: the routing key is a credential")
    return PagerDuty(key, base.rstrip("/"))


def _webhook(rest: str, settings: Settings) -> Pager:
    _address(rest)
    if not settings.pager_secret:
        raise _Wrong("needs OUTBOX_PAGER_SECRET, which signs the page", "OUTBOX_PAGER_SECRET")
    return SignedWebhook(rest, settings.pager_secret)


def _file(rest: str, _: Settings) -> Pager:
    path = Path(rest)
    if path.is_dir():
        raise _Wrong(f"{path} is a folder; a file is expected")
    if not path.absolute().parent.is_dir():
        raise _Wrong(f"the folder of {path} does not exist")
    # Absolute: two processes with different working folders must mean the same target.
    return PageFile(path.absolute())


_PARSERS = {"pagerduty": _pagerduty, "webhook": _webhook, "file": _file}


def _address(url: str) -> Any:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(httpx.URL(url).host) and parts.port != 0
    except (ValueError, httpx.InvalidURL):
        good = False
    if not good:
        raise _Wrong("its address must be http:// or https:// with a host")
    return parts


def _post(url: str, body: bytes, headers: Mapping[str, str], *, accepts: range) -> Sent | Failed:
    headers = {"Content-Type": "application/json", "User-Agent": "outbox-resolve", **headers}
    try:
        # httpx bounds each socket operation; the wait bounds the whole, a dripping answer too.
        status, retry_after = asyncio.run(
            asyncio.wait_for(_exchange(url, body, headers), SEND_TIMEOUT_S)
        )
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        return Failed(f"not connected: {type(error).__name__}")
    except httpx.HTTPError as error:
        return Failed(f"no answer: {type(error).__name__}", maybe=True)
    except TimeoutError:
        return Failed(f"no answer within {SEND_TIMEOUT_S:g} s", maybe=True)
    if status in accepts:
        return Sent(f"http {status}")
    # Elsewhere or no: not taken in. A 5xx, or a success in another word, proves nothing.
    refused = 300 <= status < 500
    later = not refused or status in _LATER
    return Failed(
        f"http {status}", _seconds(retry_after) if later else None, not later, not refused
    )


async def _exchange(url: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, str | None]:
    local = _is_local(urlsplit(url).hostname or "")
    async with (
        httpx.AsyncClient(
            timeout=SEND_TIMEOUT_S, follow_redirects=False, trust_env=not local
        ) as client,
        client.stream("POST", url, content=body, headers=headers) as answer,
    ):
        # The body is not read: the status says it all, and an endless body would not end.
        return answer.status_code, answer.headers.get("Retry-After")


def _seconds(written: str | None) -> float | None:
    if written is None or not written.strip().isdecimal():
        return None
    return min(float(written.strip()), RETRY_AFTER_MAX_S)


def cut(text: str, most: int) -> str:
    """The text, or its beginning with a mark that something is missing."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _encoded(document: Mapping[str, Any]) -> bytes:
    # ASCII only: a lone surrogate in a name is escaped instead of failing every try.
    return json.dumps(document, separators=(",", ":")).encode("ascii")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
