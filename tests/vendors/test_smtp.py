"""Mail over real SMTP: what each step's answer makes of the write, and what the server holds."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from email import message_from_string, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP as Server
from aiosmtpd.smtp import AuthResult, Envelope, Session

from outbox.contract import Account, Call, Cutoff, TooLate, Unlimited
from outbox.contracts import contract_of
from outbox.errors import Invalid
from outbox.intent import draft
from outbox.outcomes import Lost, NotSent, Outcome, Receipt, Refused, Unreadable
from outbox.tool import Scope, WriteTool
from tests.workers.floor import wait_until
from vendors.registry import build
from vendors.sandbox.client import Sandbox
from vendors.smtp import SmtpVendor
from vendors.smtp_message import message_id
from vendors.watchdog import Cut

MAIL: Mapping[str, Any] = {
    "from": "Shop <shop@example.com>",
    "to": "ann@example.org",
    "subject": "Your order 7",
    "text": "It is on its way.\n.\n..and more\n",
}
PASSWORD = "PASSWORDMARK"
NOWHERE = Account("nowhere", "live", base_url="smtp+plain://127.0.0.1:9")
_numbers = itertools.count()


@pytest.fixture
def vendor() -> SmtpVendor:
    built = build("smtp", connect_s=2.0, read_s=5.0)
    assert isinstance(built, SmtpVendor)
    return built


@pytest.fixture
def account(sandbox: Sandbox) -> Account:
    name = f"m{os.getpid()}x{next(_numbers)}"
    return Account(
        name=name,
        mode="live",
        vendor_account=f"{name}@127.0.0.1",
        credential=f"{name}:{PASSWORD}",
        base_url=sandbox.smtp_url,
    )


def call_of(account: Account = NOWHERE, cutoff: Cutoff | None = None, **changes: Any) -> Call:
    """A new intent's call, frozen as a real enqueue freezes it. Raises ``Invalid``."""
    params = {name: value for name, value in {**MAIL, **changes}.items() if value is not None}
    tool = WriteTool(
        "send_mail",
        vendor="smtp",
        operation="messages.send",
        identity=("order",),
        request=lambda _: params,
    )
    made = draft(tool, Scope(tenant="acme", run_id="run"), {"order": next(_numbers)})
    frozen = json.loads(made.columns["request"])
    return Call(
        intent_id=made.id,
        key=made.key,
        operation="messages.send",
        method=frozen["method"],
        path=frozen["path"],
        api_version=frozen["api_version"],
        params=frozen["params"],
        account=account,
        recorded_epoch_s=1_790_000_000,
        cutoff=cutoff or Unlimited(),
    )


def taken_in(sandbox: Sandbox, account: Account) -> list[EmailMessage]:
    """The messages that the server holds for its recipients."""
    held = sandbox.objects(account.name, "messages")
    return [message_from_string(m["body"], policy=policy.default) for m in held]


def test_a_message_is_taken_in_once_and_its_own_id_is_the_receipt(
    vendor: SmtpVendor, sandbox: Sandbox, account: Account
) -> None:
    call = call_of(account)
    outcome = vendor.perform(call)
    assert isinstance(outcome, Receipt)
    (effect,) = sandbox.effects(account.name)
    assert effect["object_id"] == outcome.reading.receipt_id
    assert effect["outbox_id"] == outcome.reading.owner == str(call.intent_id)
    (message,) = taken_in(sandbox, account)
    assert message["Message-ID"] == outcome.reading.receipt_id
    assert message["From"] == "Shop <shop@example.com>"
    assert message["Date"].datetime.timestamp() == call.recorded_epoch_s
    assert message.get_content().replace("\r\n", "\n") == MAIL["text"]


def test_both_forms_and_other_scripts_arrive_as_they_were_asked_for(
    vendor: SmtpVendor, sandbox: Sandbox, account: Account
) -> None:
    text, subject = "Grüße, 你好 — " + "lang " * 300, "Bestellung für Jürgen 🎉"
    asked: dict[str, Any] = {
        "from": "Läden & Söhne, GmbH <shop@example.com>",
        "subject": subject,
        "text": text,
        "html": "<p>Grüße</p>",
        "reply_to": "help@example.com",
        "headers": {"X-Order": "7 für Ann", "List-Unsubscribe": "<mailto:off@example.com>"},
    }
    assert isinstance(vendor.perform(call_of(account, **asked)), Receipt)
    (message,) = taken_in(sandbox, account)
    assert message["Subject"] == subject
    assert message["From"].addresses[0].display_name == "Läden & Söhne, GmbH"
    assert message["X-Order"] == "7 für Ann"
    assert message["Reply-To"] == "help@example.com"
    plain, html = message.get_body(("plain",)), message.get_body(("html",))
    assert plain is not None
    assert html is not None
    assert plain.get_content().strip() == text.strip()
    assert html.get_content().strip() == "<p>Grüße</p>"


def test_every_try_sends_the_same_bytes_under_the_same_message_id(
    vendor: SmtpVendor, sandbox: Sandbox, account: Account
) -> None:
    call = call_of(account, html="<p>both</p>")
    sandbox.fault("unavailable_503", account=account.name, attempts=[1])
    assert isinstance(vendor.perform(call), NotSent)
    other = build("smtp", connect_s=2.0, read_s=5.0)
    assert isinstance(other.perform(replace(call)), Receipt)
    first, second = sandbox.requests(account.name)
    assert (first["status"], second["status"]) == (451, 250)
    assert first["key"] == second["key"] is not None
    assert first["body_sha256"] == second["body_sha256"] is not None


@pytest.mark.parametrize("fault", ["lost_ack", "late_commit", "lost_request", "redelivery"])
@pytest.mark.parametrize("lose", ["reset", "close"])
def test_without_the_last_word_the_message_may_have_been_delivered(
    vendor: SmtpVendor, sandbox: Sandbox, account: Account, fault: str, lose: str
) -> None:
    sandbox.fault(fault, account=account.name, lose=lose)
    outcome = vendor.perform(call_of(account))
    if fault == "redelivery":
        assert isinstance(outcome, Receipt)
    else:
        assert isinstance(outcome, Lost)
    sandbox.release(account.name)
    effects = {"lost_ack": 1, "late_commit": 1, "lost_request": 0, "redelivery": 2}[fault]
    assert len(sandbox.effects(account.name)) == effects
    assert len(sandbox.requests(account.name)) == 1


def test_a_server_that_falls_silent_after_the_message_is_cut_off_and_leaves_doubt(
    vendor: SmtpVendor, sandbox: Sandbox, account: Account
) -> None:
    sandbox.fault("hang", account=account.name)
    cut = Cut()
    with ThreadPoolExecutor() as pool:
        sent = pool.submit(vendor.perform, call_of(account, cut))
        wait_until(lambda: [r for r in sandbox.requests(account.name) if r["body_sha256"]])
        cut.cut()
        assert isinstance(sent.result(), Lost)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("reply:mail:451", NotSent("smtp_mail_451", throttled=True)),
        ("reply:rcpt:450", NotSent("smtp_rcpt_450", throttled=True)),
        ("reply:content:452", NotSent("smtp_content_452", throttled=True)),
        ("reply:mail:530", NotSent("smtp_mail_530", pause=True)),
        ("reply:mail:550", Refused("smtp_mail_550_5.7.1", covers_key=False)),
        ("reply:rcpt:550", Refused("smtp_rcpt_550_5.7.1", covers_key=False)),
        ("reply:rcpt:553", Refused("smtp_rcpt_553_5.7.1", covers_key=False)),
        ("reply:content:554", Refused("smtp_content_554_5.7.1", covers_key=False)),
        ("reply:content:354", Lost("smtp_content_354")),
        ("unauthorized_401", NotSent("smtp_auth_535", pause=True)),
        ("refuse", NotSent("SMTPServerDisconnected")),
    ],
)
def test_each_steps_answer_has_one_meaning(
    vendor: SmtpVendor, sandbox: Sandbox, account: Account, fault: str, expected: Outcome
) -> None:
    sandbox.fault(fault, account=account.name)
    outcome = vendor.perform(call_of(account))
    assert replace(outcome, wire=expected.wire) == expected
    assert sandbox.effects(account.name) == []


@pytest.mark.parametrize(
    "greeting", [b"", b"554 go away\r\n", b"421 busy\r\n", b"nonsense\r\n", b"\xff" * 10_000]
)
def test_nothing_is_sent_to_a_server_that_does_not_greet(
    vendor: SmtpVendor, greeting: bytes
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:
        url = f"smtp+plain://127.0.0.1:{listener.getsockname()[1]}"
        sent = pool.submit(vendor.perform, call_of(replace(NOWHERE, base_url=url)))
        connection, _ = listener.accept()
        with connection:
            connection.sendall(greeting)
        assert isinstance(sent.result(), NotSent)


def test_a_server_that_is_not_there_was_sent_nothing(vendor: SmtpVendor) -> None:
    assert vendor.perform(call_of()) == NotSent("ConnectionRefusedError")


def test_after_the_claims_own_time_no_message_leaves(
    vendor: SmtpVendor, sandbox: Sandbox, account: Account
) -> None:
    """The dialogue took so long that the time to start had passed when the message was next."""

    class Late:
        asked = 0

        def attach(self, _sock: Any) -> None:
            self.asked += 1
            if self.asked > 1:
                raise TooLate

    assert vendor.perform(call_of(account, Late())) == NotSent("too_late")
    (request,) = sandbox.requests(account.name)
    assert request["body_sha256"] is None
    assert sandbox.effects(account.name) == []


class _Keeping:
    """A server's handler that keeps what it takes in."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []

    async def handle_DATA(self, _s: Server, _session: Session, envelope: Envelope) -> str:
        assert isinstance(envelope.content, bytes)
        self.taken.append(envelope.content)
        return "250 taken"


class _Tls(Controller):
    """STARTTLS, or TLS from the first byte."""

    def __init__(self, handler: _Keeping, context: ssl.SSLContext, *, at_once: bool) -> None:
        self._at_once = at_once
        super().__init__(
            handler,
            hostname="localhost",
            port=0,
            ssl_context=context if at_once else None,
            tls_context=None if at_once else context,
            require_starttls=not at_once,
            auth_required=not at_once,
            authenticator=lambda *_: AuthResult(success=True),
        )

    def _trigger_server(self) -> None:
        """Port 0 until now: the address that is tried first is known only here."""
        assert isinstance(self.server, asyncio.Server)
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()  # type: ignore[no-untyped-call]


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> trustme.CA:
    made = trustme.CA()
    made.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    return made


@pytest.fixture(params=["smtp", "smtps"])
def encrypted(request: pytest.FixtureRequest, authority: trustme.CA) -> Iterator[tuple[str, Any]]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    handler = _Keeping()
    controller = _Tls(handler, context, at_once=request.param == "smtps")
    controller.start()
    yield f"{request.param}://localhost:{controller.port}", handler
    controller.stop()


def test_a_message_goes_over_tls_to_the_server_that_the_certificate_names(
    vendor: SmtpVendor, encrypted: tuple[str, _Keeping]
) -> None:
    url, handler = encrypted
    signs_on = f"shop:{PASSWORD}" if url.startswith("smtp:") else ""
    account = Account("tls", "live", credential=signs_on, base_url=url)
    assert isinstance(vendor.perform(call_of(account)), Receipt)
    assert len(handler.taken) == 1


def test_a_server_whose_certificate_is_another_ones_is_told_nothing(
    vendor: SmtpVendor, encrypted: tuple[str, _Keeping]
) -> None:
    url, handler = encrypted
    elsewhere = url.replace("localhost", "127.0.0.1")
    account = Account("tls", "live", credential=f"shop:{PASSWORD}", base_url=elsewhere)
    assert vendor.perform(call_of(account)) == NotSent("SSLCertVerificationError")
    assert handler.taken == []


def test_without_starttls_no_password_is_spoken(vendor: SmtpVendor, account: Account) -> None:
    """Who strips the offer on the way would read it."""
    plain = replace(account, base_url=account.base_url.replace("smtp+plain", "smtp"))
    assert vendor.perform(call_of(plain)) == NotSent("SMTPNotSupportedError")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"to": None}, "request.to"),
        ({"to": "ann@example.org, bob@example.org"}, "request.to"),
        ({"to": "ann"}, "request.to"),
        ({"to": "ann@example.org\r\nBcc: eve@example.org"}, "request.to"),
        ({"to": ["ann@example.org"]}, "request.to"),
        ({"to": "jürgen@example.org"}, "request.to"),
        ({"to": "ann@é.org"}, "request.to"),
        ({"to": "Ann <ann@é.org>"}, "request.to"),
        ({"from": "shop@é.org"}, "request.from"),
        ({"reply_to": "help@é.org"}, "request.reply_to"),
        ({"to": "x" * 65 + "@example.org"}, "request.to"),
        ({"to": "ann@" + "x." * 126 + "org1"}, "request.to"),
        ({"from": None}, "request.from"),
        ({"from": "Shop"}, "request.from"),
        ({"subject": None}, "request.subject"),
        ({"subject": "two\nlines"}, "request.subject"),
        ({"subject": "x" * 901}, "request.subject"),
        ({"text": None}, "request.text"),
        ({"text": 7}, "request.text"),
        ({"html": ["<p>"]}, "request.html"),
        ({"headers": {"Bcc": "eve@example.org"}}, "request.headers"),
        ({"headers": {"Message-ID": "<mine@example.org>"}}, "request.headers"),
        ({"headers": {"X-A\r\nBcc": "eve@example.org"}}, "request.headers"),
        ({"headers": {"X-A": "b\r\nBcc: eve@example.org"}}, "request.headers.X-A"),
        ({"headers": ["X-A"]}, "request.headers"),
    ],
)
def test_what_no_mail_could_carry_is_refused_before_anything_is_recorded(
    changes: Mapping[str, Any], field: str
) -> None:
    with pytest.raises(Invalid) as refused:
        call_of(**changes)
    assert refused.value.field == field


def test_the_contract_promises_nothing_that_mail_does_not_keep() -> None:
    contract = contract_of("smtp")
    assert not contract.honours_keys
    assert not contract.can_look_up
    assert not contract.has_webhooks
    assert contract.window_s is None


def test_no_word_of_the_mail_or_the_password_shows_in_what_is_kept_of_an_attempt(
    vendor: SmtpVendor, sandbox: Sandbox, account: Account
) -> None:
    sandbox.fault("reply:rcpt:550", account=account.name, attempts=[1])
    sandbox.fault("lost_ack", account=account.name, attempts=[2])
    for _ in range(3):
        call = call_of(account)
        shown = repr(vendor.perform(call)) + repr(call)
        assert not [w for w in (PASSWORD, "ann@", "order 7", "on its way") if w in shown]


def test_an_account_is_who_signs_on_where(vendor: SmtpVendor, account: Account) -> None:
    assert vendor.whoami(account) == f"{account.name}@127.0.0.1"
    assert vendor.whoami(replace(account, credential="")) == "127.0.0.1"
    assert isinstance(vendor.whoami(replace(account, base_url="http://x")), Unreadable)


def test_the_message_id_names_the_intent(account: Account) -> None:
    call = call_of(account)
    assert message_id(call) == f"<{call.intent_id}@example.com>"
