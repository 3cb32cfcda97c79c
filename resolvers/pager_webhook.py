"""A signed JSON page to an address of the operator's own."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from outbox.settings import Settings
from resolvers import page_post
from resolvers.page import Failed, Page, Sent, Unusable, digest

FORM = "webhook:URL"


@dataclass(frozen=True, slots=True)
class SignedWebhook:
    """Signed like ``X-Outbox-Signature: t=SECONDS,v1=HMAC-SHA256(secret, "SECONDS." + body)``."""

    url: str = field(repr=False)
    secret: str = field(repr=False)
    repages = False
    lasts_s = None

    @property
    def name(self) -> str:
        """The address may hold a token, so only its host is shown."""
        return f"webhook:{urlsplit(self.url).hostname}#{digest(self.url)}"

    def send(self, page: Page) -> Sent | Failed:
        """Any 2xx is accepted."""
        body = page_post.encoded(page.as_json())
        signed = f"{page.at_epoch_s}.".encode() + body
        mac = hmac.new(self.secret.encode(), signed, hashlib.sha256).hexdigest()
        headers = {"X-Outbox-Signature": f"t={page.at_epoch_s},v1={mac}"}
        return page_post.post_bytes(self.url, body, accepts=range(200, 300), headers=headers)


def build(rest: str, settings: Settings) -> SignedWebhook:
    """Raises ``Unusable``."""
    page_post.address(rest)
    if not settings.pager_secret:
        raise Unusable("needs OUTBOX_PAGER_SECRET, which signs the page", "OUTBOX_PAGER_SECRET")
    return SignedWebhook(rest, settings.pager_secret)
