"""Mail over SMTP as data: no key, nothing to read back, so an answer that is lost stays lost.

One intent is one message to one recipient: a server may accept some of several and refuse others,
and one status cannot tell of both. Facts: RFC 5321 (4.2, 4.5.3), RFC 5322 (3.6).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.errors import MessageError
from email.headerregistry import Address
from typing import Any

from outbox.contract import Operation, VendorContract
from outbox.errors import Invalid

_REQUIRED = ("from", "to", "subject")
_TEXTS = ("from", "to", "subject", "text", "html", "reply_to")
_PASSES = frozenset({*_TEXTS, "headers"})
_LINE_CHARS = 900  # of 998 octets of a header line; the rest is its name and its encoding
_LOCAL_CHARS, _DOMAIN_CHARS = 64, 255  # RFC 5321, 4.5.3.1
_HEADER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,75}\Z")
# Those that this outbox or the servers on the way write.
_OURS = re.compile(
    r"(?i)(from|to|cc|bcc|sender|reply-to|subject|date|message-id|return-path|received"
    r"|mime-version|content-.*|dkim-.*|resent-.*)\Z"
)


def check(params: Mapping[str, Any]) -> None:
    """Raises ``Invalid`` for what no mail could carry."""
    for name in _REQUIRED:
        if not params.get(name):
            raise Invalid(f"request.{name}", "is missing")
    if not (params.get("text") or params.get("html")):
        raise Invalid("request.text", "give text, html or both")
    for name in _TEXTS:
        if name in params and not isinstance(params[name], str):
            raise Invalid(f"request.{name}", f"must be text, not {type(params[name]).__name__}")
    for name in ("from", "to", "reply_to"):
        if name in params:
            mailbox(f"request.{name}", params[name])
    _check_line("request.subject", params["subject"])
    headers = params.get("headers", {})
    if not isinstance(headers, Mapping):
        raise Invalid("request.headers", "must be an object of header names and texts")
    for name, value in headers.items():
        if not _HEADER_NAME.match(name) or _OURS.match(name):
            raise Invalid("request.headers", "holds a name that is no header a tool may set")
        _check_line(f"request.headers.{name}", value)


def mailbox(path: str, value: str) -> Address:
    """``ann@example.com`` or ``Ann Lee <ann@example.com>``; exactly one. Raises ``Invalid``."""
    _check_line(path, value)
    name, bracket, rest = value.rpartition("<")
    spec = rest.removesuffix(">") if bracket and rest.endswith(">") else value
    display = name.strip().removeprefix('"').removesuffix('"') if spec is not value else ""
    try:
        address = Address(display_name=display, addr_spec=spec.strip())
    except (MessageError, ValueError, IndexError):
        address = Address()
    # What is not ASCII needs SMTPUTF8, which not every server on the way has: it would be tried
    # again and again, and never be sent.
    if (
        not address.username
        or "." not in address.domain
        or "," in spec
        or not address.addr_spec.isascii()
    ):
        raise Invalid(path, "must be one mail address, a domain of other letters in its xn-- form")
    if len(address.username) > _LOCAL_CHARS or len(address.domain) > _DOMAIN_CHARS:
        raise Invalid(
            path, f"has more than {_LOCAL_CHARS} letters before the @, or {_DOMAIN_CHARS} after it"
        )
    return address


def _check_line(path: str, value: Any) -> None:
    if not isinstance(value, str):
        raise Invalid(path, f"must be text, not {type(value).__name__}")
    # A line's end would begin a header that nobody asked for.
    if not value.isprintable():
        raise Invalid(path, "must be one printable line")
    if len(value.encode()) > _LINE_CHARS:
        raise Invalid(path, f"is longer than {_LINE_CHARS} bytes")


SMTP = VendorContract(
    vendor="smtp",
    adapter="smtp",
    api_version="rfc5321",
    operations={
        "messages.send": Operation(
            name="messages.send",
            method="DATA",
            path="/",
            side_effect="mail",
            check=check,
            passes=_PASSES,
        )
    },
    honours_keys=False,
    window_s=None,
    margin_s=0.0,
    in_flight_bound_s=2 * 3600.0,
    read_lag_s=0.0,
    can_look_up=False,
    has_webhooks=False,
    needs_credential=False,
    needs_address=True,
    schemes=("smtp", "smtps", "smtp+plain"),
)
