"""The mail server's face: real SMTP by aiosmtpd, in the sandbox's process and on its ledger.

Whoever signs on is the account (`acme`); any password will do. A transaction is one request row
(method SMTP, key: its Message-ID), a message that was taken in one effect (`mail.send`). Faults go
by the endpoint `messages.send` or `POST /messages`, attempts counted per account: those of the
transport, 401 as a refused sign-on, 429 and 503 as `450` and `451`, 403 as a refused recipient, and
`reply:<step>:<code>` for any answer to mail, rcpt or content. A mail server honours no key: what
the transport delivers twice is two effects.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import warnings
from collections import Counter
from email import message_from_bytes
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from vendors.sandbox.faults import Fault, Picked
from vendors.sandbox.ledger import Json
from vendors.sandbox.mail import deliver
from vendors.sandbox.server import Server

HOST = "127.0.0.1"
_NAMES = ("messages.send", "POST /messages")
_OWNER = re.compile(r"<([0-9a-f-]{36})@")
_REPLIES = {
    "rate_limited_429": ("rcpt", 450),
    "forbidden_403": ("rcpt", 550),
    "unavailable_503": ("content", 451),
}
_TAKEN = "250 2.0.0 taken in"


class MailFace:
    """Listens beside the others. ``url`` is what an account's ``base_url`` says."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ledger = server.ledger
        self._tries: Counter[str] = Counter()
        self._listener: asyncio.Server | None = None
        logging.getLogger("mail.log").setLevel(logging.ERROR)
        for row in self._ledger.all(
            "select account, count(*) as n from requests where method = 'SMTP' group by 1"
        ):
            self._tries[row["account"]] = row["n"]

    async def listen(self, port: int) -> str:
        """Starts listening; returns the address."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._connection, HOST, port)
        return f"smtp+plain://{HOST}:{self._listener.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def _connection(self) -> SMTP:
        with warnings.catch_warnings():
            # That passwords are asked for without TLS: here they are anybody's.
            warnings.simplefilter("ignore", UserWarning)
            return SMTP(
                self,
                hostname="sandbox",
                auth_required=True,
                auth_require_tls=False,
                authenticator=self._authenticate,
                loop=asyncio.get_running_loop(),
            )

    # ---- the steps of a transaction, as aiosmtpd calls them

    def _authenticate(
        self, _server: SMTP, session: Session, _envelope: Envelope, _mechanism: str, said: Any
    ) -> AuthResult:
        assert isinstance(said, LoginPassword)
        name = said.login.decode("utf-8", "replace").removeprefix("acct_")
        account = f"acct_{name}"
        # Numbered as they sign on: several may be in the air at once.
        self._tries[account] += 1
        picked = self._server.faults.pick(account, None, _NAMES, self._tries[account])
        session.sandbox = (account, picked, self._tries[account])  # type: ignore[attr-defined]
        if picked.vendor is not None and picked.vendor.kind == "unauthorized_401":
            self._record(account, picked, self._tries[account], status=535)
            return AuthResult(success=False, handled=False)
        return AuthResult(success=True, auth_data=said)

    async def handle_MAIL(
        self, _s: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        account, picked, number = session.sandbox  # type: ignore[attr-defined]
        envelope.request_id = self._record(account, picked, number)  # type: ignore[attr-defined]
        if refusal := self._reply(envelope, picked, "mail"):
            return refusal
        envelope.mail_from = address
        envelope.mail_options.extend(options)
        return "250 2.1.0 go on"

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        _, picked, _ = session.sandbox  # type: ignore[attr-defined]
        if picked.transport is not None and picked.transport.kind == "refuse":
            _reset(server)
        if refusal := self._reply(envelope, picked, "rcpt"):
            return refusal
        envelope.rcpt_tos.append(address)
        envelope.rcpt_options.extend(options)
        return "250 2.1.5 go on"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        account, picked, _ = session.sandbox  # type: ignore[attr-defined]
        assert isinstance(envelope.content, bytes)
        mail = self._read(account, envelope)
        if refusal := self._reply(envelope, picked, "content"):
            return refusal
        fault = picked.transport
        kind = fault.kind if fault is not None else ""
        if kind not in ("lost_request", "late_commit", "hang"):
            deliver(self._ledger, account, mail)
        if kind == "redelivery":
            deliver(self._ledger, account, mail)
        if fault is not None and kind == "late_commit":
            self._server.hold(account, "mail", fault.after_s, mail)
        if fault is not None and kind not in ("redelivery", "slow", "drip"):
            self._ledger.commit()
            await self._lose(server, fault)
        self._answered(mail["request_id"], 250)
        if fault is not None and kind in ("slow", "drip"):
            await asyncio.sleep(fault.after_s)
        return _TAKEN

    # ---- the ledger

    def _record(self, account: str, picked: Picked, number: int, status: int | None = None) -> str:
        request_id = self._ledger.new_id("req_")
        now = self._ledger.now(account)
        self._ledger.run(
            "insert into requests (id, account, method, path, operation, at, arrived_at, attempt,"
            " origin, fault, status, answered_at) values (?,?,'SMTP','/messages',?,?,?,?,'client',"
            " ?,?,?)",
            request_id, account, _NAMES[0], now, self._ledger.wall_s(), number,
            str(picked) or None, status, self._ledger.wall_s() if status else None,
        )  # fmt: skip
        self._ledger.commit()
        return request_id

    def _read(self, account: str, envelope: Envelope) -> Json:
        assert isinstance(envelope.content, bytes)
        named = str(message_from_bytes(envelope.content)["Message-ID"] or "").strip()
        request_id: str = envelope.request_id  # type: ignore[attr-defined]
        self._ledger.run(
            "update requests set key = ?, body_sha256 = ? where id = ?",
            named or None, hashlib.sha256(envelope.content).hexdigest(), request_id,
        )  # fmt: skip
        owner = _OWNER.match(named)
        body = envelope.content.decode("utf-8", "replace")
        message = {"id": named, "to": envelope.rcpt_tos, "from": envelope.mail_from, "body": body}
        return {
            "message": message,
            "outbox_id": owner[1] if owner else None,
            "request_id": request_id,
            "account": account,
        }

    def _reply(self, envelope: Envelope, picked: Picked, step: str) -> str:
        kind = picked.vendor.kind if picked.vendor is not None else ""
        at, code = _REPLIES.get(kind, ("", 0))
        if kind.startswith("reply:"):
            at, _, said = kind.removeprefix("reply:").partition(":")
            code = int(said)
        if at != step:
            return ""
        self._answered(envelope.request_id, code)  # type: ignore[attr-defined]
        return f"{code} {code // 100}.7.1 as the sandbox was told"

    def _answered(self, request_id: str, status: int) -> None:
        self._ledger.run(
            "update requests set status = ?, answered_at = ? where id = ?",
            status, self._ledger.wall_s(), request_id,
        )  # fmt: skip
        self._ledger.commit()

    async def _lose(self, server: SMTP, fault: Fault) -> None:
        if fault.kind != "hang" and fault.lose != "hang":
            _reset(server)
        await asyncio.Event().wait()  # until the connection ends


def _reset(server: SMTP) -> None:
    assert isinstance(server.transport, asyncio.Transport)
    server.transport.abort()
