"""Opsgenie, and the Operations of Jira Service Management: one shape at two addresses.

The alias is the dedup key; closing by alias is how an alert is found again by another process.
Sources: https://docs.opsgenie.com/docs/alert-api and
https://developer.atlassian.com/cloud/jira/service-desk-ops/rest/v1/api-group-integration-events
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from outbox.settings import Settings
from resolvers import page_post
from resolvers.page import Failed, Page, Sent, Unusable, cut, digest

FORM = "opsgenie:API_KEY[@eu]"
JSM_FORM = "jsm:API_KEY"
_BASES = {"": "https://api.opsgenie.com", "eu": "https://api.eu.opsgenie.com"}
_JSM_BASES = {"": "https://api.atlassian.com/jsm/ops/integration"}
_API_KEY = re.compile(r"[A-Za-z0-9_-]{16,255}")
_MESSAGE_CHARS = 130
_ALIAS_CHARS = 250
_DESCRIPTION_CHARS = 15_000
_DETAIL_CHARS = 200  # all details together may have 8,000
_PRIORITY = {"critical": "P1", "error": "P2", "warning": "P3", "info": "P5"}
_VERB = {"acknowledge": "acknowledge", "resolve": "close"}


@dataclass(frozen=True, slots=True)
class Opsgenie:
    """One API integration. Its alerts are escalated by the team's own policy."""

    api_key: str = field(repr=False)
    base_url: str
    product: str = "opsgenie"
    repages = True
    lasts_s = None

    @property
    def name(self) -> str:
        """The key is a credential, so its digest names it."""
        return f"{self.product}:{digest(self.api_key + self.base_url)}"

    def send(self, page: Page) -> Sent | Failed:
        """202 means accepted, asynchronously."""
        alias = page.key(_ALIAS_CHARS)
        url = f"{self.base_url}/v2/alerts"
        body: dict[str, Any] = {"source": page.source}
        if page.action == "trigger":
            details = page.shown_details(_DETAIL_CHARS)
            body |= {
                "message": cut(page.summary, _MESSAGE_CHARS),
                "alias": alias,
                "description": cut(page.as_text(), _DESCRIPTION_CHARS),
                "details": {name: str(value) for name, value in details.items()},
                "priority": _PRIORITY[page.severity],
                "tags": ["outbox"],
            }
        else:
            url += f"/{quote(alias, safe='')}/{_VERB[page.action]}?identifierType=alias"
        headers = {"Authorization": f"GenieKey {self.api_key}"}
        return page_post.post(url, body, accepts=range(202, 203), headers=headers)


def build(rest: str, _: Settings) -> Opsgenie:
    """Raises ``Unusable``."""
    key, base = _key_and_base(rest)
    return Opsgenie(key, page_post.base_of(base, _BASES))


def build_jsm(rest: str, _: Settings) -> Opsgenie:
    """Raises ``Unusable``."""
    key, base = _key_and_base(rest)
    return Opsgenie(key, page_post.base_of(base, _JSM_BASES), "jsm")


def _key_and_base(rest: str) -> tuple[str, str]:
    key, _at, base = rest.partition("@")
    if not _API_KEY.fullmatch(key):
        raise Unusable("must be the key of an API integration: letters, digits and hyphens")
    return key, base
