"""incident.io, alert events of an HTTP alert source.

Source: https://docs.incident.io/api-reference/alert-events-v2/createhttp
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from outbox.settings import Settings
from resolvers import page_post
from resolvers.page import NO_ACKNOWLEDGE, Failed, Page, Sent, Unusable, cut, digest

FORM = "incidentio:SOURCE_ID:TOKEN"
_BASES = {"": "https://api.incident.io"}
_SOURCE_ID = re.compile(r"[A-Za-z0-9]{8,64}")
_TOKEN = re.compile(r"[!-?A-~]{8,512}")  # printable, and no @
_TITLE_CHARS = 250
_STATUS = {"trigger": "firing", "resolve": "resolved"}


@dataclass(frozen=True, slots=True)
class IncidentIo:
    """One alert source. Its escalation paths are incident.io's own."""

    source_id: str
    token: str = field(repr=False)
    base_url: str = _BASES[""]
    repages = True
    lasts_s = None

    @property
    def name(self) -> str:
        """The source's id, which is no secret; another account's token is another target."""
        return f"incidentio:{self.source_id}#{digest(self.token + self.base_url)}"

    def send(self, page: Page) -> Sent | Failed:
        """202 means accepted, asynchronously. There is no acknowledge in this API."""
        if page.action not in _STATUS:
            return NO_ACKNOWLEDGE
        event = {
            "status": _STATUS[page.action],
            "title": cut(page.summary, _TITLE_CHARS),
            "description": page.as_text(),
            "deduplication_key": page.key(),
            "metadata": {"severity": page.severity, **page.shown_details()},
        }
        return page_post.post(
            f"{self.base_url}/v2/alert_events/http/{self.source_id}",
            event,
            accepts=range(202, 203),
            headers={"Authorization": f"Bearer {self.token}"},
        )


def build(rest: str, _: Settings) -> IncidentIo:
    """Raises ``Unusable``."""
    written, _at, base = rest.partition("@")
    source_id, _colon, token = written.partition(":")
    if not _SOURCE_ID.fullmatch(source_id):
        raise Unusable("must begin with the alert source's id: letters and digits, then a colon")
    if not _TOKEN.fullmatch(token):
        raise Unusable("must have the alert source's token behind its id and a colon")
    return IncidentIo(source_id, token, page_post.base_of(base, _BASES))
