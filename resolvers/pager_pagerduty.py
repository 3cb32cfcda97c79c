"""PagerDuty, Events API v2.

Source: https://developer.pagerduty.com/docs/events-api-v2-overview
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from outbox.settings import Settings
from resolvers import page_post
from resolvers.page import Failed, Page, Sent, Unusable, digest

FORM = "pagerduty:ROUTING_KEY[@eu]"
_BASES = {"": "https://events.pagerduty.com", "eu": "https://events.eu.pagerduty.com"}
_ROUTING_KEY = re.compile(r"[A-Za-z0-9]{32}")


@dataclass(frozen=True, slots=True)
class PagerDuty:
    """One routing key; a resolve must use the one that its trigger used."""

    routing_key: str = field(repr=False)
    base_url: str = _BASES[""]
    repages = True
    lasts_s = None

    @property
    def name(self) -> str:
        """The key is a credential, so its digest names it."""
        return f"pagerduty:{digest(self.routing_key + self.base_url)}"

    def send(self, page: Page) -> Sent | Failed:
        """202 means accepted, asynchronously; the whole event may have 512 KB."""
        event: dict[str, Any] = {
            "routing_key": self.routing_key,
            "event_action": page.action,
            "dedup_key": page.key(),
        }
        if page.action == "trigger":
            shown = page.as_json()
            event["payload"] = {
                "summary": shown["summary"],
                "source": page.source,
                "severity": page.severity,
                "custom_details": shown["details"],
            }
        return page_post.post(f"{self.base_url}/v2/enqueue", event, accepts=range(202, 203))


def build(rest: str, _: Settings) -> PagerDuty:
    """Raises ``Unusable``."""
    key, _at, base = rest.partition("@")
    if not _ROUTING_KEY.fullmatch(key):
        raise Unusable("must be the integration's routing key: 32 letters and digits")
    return PagerDuty(key, page_post.base_of(base, _BASES))
