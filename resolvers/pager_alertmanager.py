"""Prometheus Alertmanager, API v2.

It has no acknowledge, and it declares an alert resolved when ``endsAt`` has passed: a false word
while a write is still unknown. So an open question is posted again well before that, acknowledged
or muted here or not; whom that notifies, and how often, is Alertmanager's to say.
Source: https://prometheus.io/docs/alerting/latest/alerts_api
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from outbox.settings import Settings
from resolvers import page_post
from resolvers.page import NO_ACKNOWLEDGE, Failed, Page, Sent, Unusable, cut, digest

FORM = "alertmanager:URL"
_LABEL_CHARS = 255
# Of the page's details only these are labels: the same at a trigger and at its resolve. A label
# that changed would be another alert, and the first would stay.
_LABELS = ("environment", "vendor", "account", "reason")


@dataclass(frozen=True, slots=True)
class Alertmanager:
    """One Alertmanager, by its base address. Its labels are the dedup slot."""

    base_url: str = field(repr=False)
    repages = True
    lasts_s = 4 * 3600.0

    @property
    def name(self) -> str:
        """The address may hold a password, so only its host is shown."""
        return f"alertmanager:{urlsplit(self.base_url).hostname}#{digest(self.base_url)}"

    def send(self, page: Page) -> Sent | Failed:
        """200 is accepted."""
        if page.action == "acknowledge":
            return NO_ACKNOWLEDGE
        details = page.shown_details()
        named = {name: details.get(name) for name in _LABELS}
        # Without it, startsAt would be taken from endsAt, and lie in the future.
        ends_at = page.at_epoch_s + (self.lasts_s if page.action == "trigger" else 0)
        alert: dict[str, Any] = {
            "labels": {
                "alertname": "OutboxQuestion",
                "outbox_key": page.key(),
                "severity": page.severity,
                **{name: cut(str(v), _LABEL_CHARS) for name, v in named.items() if v},
            },
            "annotations": {
                "summary": cut(page.summary, 1024),
                **{name: str(v) for name, v in details.items() if name not in _LABELS},
            },
            "startsAt": _rfc3339(page.at_epoch_s),
            "endsAt": _rfc3339(ends_at),
        }
        return page_post.post(f"{self.base_url}/api/v2/alerts", [alert], accepts=range(200, 201))


def _rfc3339(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).isoformat()


def build(rest: str, _: Settings) -> Alertmanager:
    """Raises ``Unusable``."""
    parts = page_post.address(rest)
    if parts.query or parts.fragment or "/api/" in parts.path:
        raise Unusable("its address must be Alertmanager's base address, without /api/v2/alerts")
    if parts.password and parts.scheme != "https" and not page_post.is_local(parts.hostname or ""):
        raise Unusable("its address must be https: it holds a password")
    return Alertmanager(rest.rstrip("/"))
