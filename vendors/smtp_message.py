"""The message of an intent, made from its row alone: the same bytes at every try."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import Any

from outbox.contract import Call
from outbox.contracts.smtp import mailbox


@dataclass(frozen=True, slots=True)
class Mail:
    """``content`` as it goes over the wire after DATA, its lines' dots doubled and closed by the
    lone dot."""

    sender: str
    recipient: str
    content: bytes = field(repr=False)


def message_id(call: Call) -> str:
    """The intent's id, which is made from its key: every try names the same message, and a person
    finds it in a server's log."""
    return f"<{call.intent_id}@{mailbox('request.from', call.params['from']).domain}>"


def composed(call: Call) -> Mail:
    """The mail that the frozen request asks for."""
    params = call.params
    sender, recipient = (_mailbox(params, name) for name in ("from", "to"))
    message = EmailMessage()
    message["From"], message["To"] = sender, recipient
    if params.get("reply_to"):
        message["Reply-To"] = _mailbox(params, "reply_to")
    message["Subject"] = params["subject"]
    # When the intent was recorded: a date of each try would make each try another message.
    message["Date"] = format_datetime(datetime.fromtimestamp(call.recorded_epoch_s, UTC))
    message["Message-ID"] = message_id(call)
    for name, value in sorted(params.get("headers", {}).items()):
        message[name] = value
    text, html = params.get("text"), params.get("html")
    # Seven bits: a server that cannot carry eight would have to rewrite it, or refuse it.
    if text:
        message.set_content(text, cte="quoted-printable")
        if html:
            message.add_alternative(html, subtype="html", cte="quoted-printable")
            # Chosen by chance otherwise.
            message.set_boundary(call.key.hex()[:32])
    else:
        message.set_content(html, subtype="html", cte="quoted-printable")
    return Mail(sender.addr_spec, recipient.addr_spec, _stuffed(message.as_bytes(policy=SMTP)))


def _mailbox(params: Mapping[str, Any], name: str) -> Address:
    return mailbox(f"request.{name}", params[name])


def _stuffed(raw: bytes) -> bytes:
    """RFC 5321, 4.5.2: a line that begins with a dot gets a second one; a lone dot ends it all."""
    lines = raw.replace(b"\r\n.", b"\r\n..")
    if lines.startswith(b"."):
        lines = b"." + lines
    return lines + (b"" if lines.endswith(b"\r\n") else b"\r\n") + b".\r\n"
