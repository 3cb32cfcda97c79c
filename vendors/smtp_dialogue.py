"""One SMTP dialogue, step by step: each step's answer decides whether the next is taken."""

from __future__ import annotations

import contextlib
import re
import smtplib
import socket
import ssl
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from outbox.contract import Account, Cutoff
from outbox.outcomes import NotSent, Refused, Wire
from vendors.smtp_message import Mail

_PORTS = {"smtp": 587, "smtps": 465, "smtp+plain": 25}
_ENHANCED = re.compile(rb"([245])\.(\d{1,3})\.(\d{1,3})(?=\s|$)")
_GO_AHEAD = 354
# Sign-on refused, wanted, or wanted encrypted (RFC 4954): nothing of this account will be taken.
_SIGN_ON = frozenset({530, 534, 535, 538})


@dataclass(frozen=True, slots=True)
class Place:
    """A server and who signs on there. ``scheme``: ``smtp`` insists on STARTTLS, ``smtps`` begins
    with TLS, ``smtp+plain`` has none."""

    scheme: str
    host: str
    port: int
    user: str
    password: str

    @classmethod
    def of(cls, account: Account) -> Place:
        """Out of ``base_url`` and a credential ``USER:PASSWORD``. Raises ``ValueError``."""
        at = urlsplit(account.base_url)
        if at.scheme not in _PORTS or not at.hostname:
            raise ValueError("base_url is no address of a mail server")
        user, _, password = account.credential.partition(":")
        return cls(at.scheme, at.hostname, at.port or _PORTS[at.scheme], unquote(user), password)


@dataclass(slots=True)
class Answered(Exception):
    """The server's answer to a step, which is not to go on."""

    step: str
    code: int
    text: bytes

    def outcome(self) -> NotSent | Refused:
        """4yz: not accepted, nothing happened, ask again; 5yz: not accepted, do not (RFC 5321,
        4.2.1). What a server says of itself or of us is not a word on this message."""
        wire = Wire(http_status=self.code)
        reason = f"smtp_{self.step}_{self.code}"
        if self.code in _SIGN_ON or (self.step == "auth" and self.code >= 500):
            return NotSent(reason, pause=True, wire=wire)
        own = self.step in ("greeting", "ehlo", "starttls", "auth")
        if own or not 500 <= self.code <= 599:
            later = 400 <= self.code < 500 and self.step in ("mail", "rcpt", "data", "content")
            return NotSent(reason, throttled=later, wire=wire)
        enhanced = _ENHANCED.match(self.text)
        code = f"{reason}_{enhanced[0].decode()}" if enhanced else reason
        return Refused(code, covers_key=False, wire=wire)


class _Connection(smtplib.SMTP):
    """Attaches every socket to the call's limit before anything is said over it."""

    def __init__(self, cutoff: Cutoff, place: Place, tls: ssl.SSLContext, read_s: float) -> None:
        self._cutoff = cutoff
        self._place = place
        self._tls = tls
        self._read_s = read_s
        # Our own name is looked up in DNS otherwise, without any limit.
        super().__init__(local_hostname="[127.0.0.1]")
        self._host = place.host  # whose certificate STARTTLS expects

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        sock = socket.create_connection((host, port), timeout)
        try:
            sock.settimeout(self._read_s)
            self._cutoff.attach(sock)
            if self._place.scheme == "smtps":
                sock = self._tls.wrap_socket(sock, server_hostname=host)
                self._cutoff.attach(sock)
        except BaseException:
            sock.close()
            raise
        return sock


class Dialogue:
    """``began`` is set just before the first byte of the message may leave."""

    def __init__(self, cutoff: Cutoff, place: Place, *, connect_s: float, read_s: float) -> None:
        self.began = False
        self._cutoff = cutoff
        self._place = place
        self._connect_s = connect_s
        self._read_s = read_s
        self._tls = ssl.create_default_context()
        self._smtp = _Connection(cutoff, place, self._tls, read_s)

    def open(self) -> None:
        """Connects, greets, encrypts and signs on. Raises ``Answered``, or what the network did."""
        smtp, place = self._smtp, self._place
        smtp.timeout = self._connect_s
        self._expect("greeting", smtp.connect(place.host, place.port), 220)
        self._greet()
        if place.scheme == "smtp":
            # Never without: who strips the offer on the way would read the password.
            code, text = smtp.starttls(context=self._tls)
            self._expect("starttls", (code, text), 220)
            self._cutoff.attach(smtp.sock)
            self._greet()
        if place.user:
            self._sign_on()

    def send(self, mail: Mail) -> tuple[int, bytes]:
        """The envelope, the message, and the server's last word. Raises as ``open`` does."""
        smtp = self._smtp
        options = [f"SIZE={len(mail.content)}"] if smtp.has_extn("size") else []
        self._expect("mail", smtp.mail(mail.sender, options), 250)
        self._expect("rcpt", smtp.rcpt(mail.recipient), 250, 251)
        self._expect("data", smtp.docmd("DATA"), _GO_AHEAD)
        if self._has_more():
            # It has said more than it was asked: which answer is the message's could not be told.
            raise Answered("data", 0, b"an answer to nothing")
        # The gate proper: nothing that was said so far moved anything.
        self._cutoff.attach(smtp.sock)
        self.began = True
        smtp.send(mail.content)
        code, text = smtp.getreply()
        return code, text

    def close(self) -> None:
        """Takes leave without waiting for an answer."""
        with contextlib.suppress(Exception):
            if self._smtp.sock is not None:
                self._smtp.putcmd("QUIT")
        with contextlib.suppress(Exception):
            self._smtp.close()

    def _has_more(self) -> bool:
        """Whether it has said something that nobody has read."""
        sock, said = self._smtp.sock, self._smtp.file
        assert sock is not None
        assert said is not None
        sock.settimeout(0.0)
        try:
            return bool(said.peek(1))
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        finally:
            sock.settimeout(self._read_s)

    def _greet(self) -> None:
        code, text = self._smtp.ehlo()
        if not 200 <= code <= 299:
            code, text = self._smtp.helo()
        self._expect("ehlo", (code, text), 250)

    def _sign_on(self) -> None:
        """By one mechanism: the library would try each, and a server that counts wrong passwords
        would lock the account the sooner."""
        smtp = self._smtp
        smtp.user, smtp.password = self._place.user, self._place.password
        offered = smtp.esmtp_features.get("auth", "").upper().split()
        try:
            if "PLAIN" in offered:
                smtp.auth("PLAIN", smtp.auth_plain)
            elif "LOGIN" in offered:
                smtp.auth("LOGIN", smtp.auth_login)
            else:
                raise Answered("auth", 504, b"no mechanism that we know")
        except smtplib.SMTPAuthenticationError as refused:
            raise Answered("auth", refused.smtp_code, _bytes(refused.smtp_error)) from None

    def _expect(self, step: str, answer: tuple[int, bytes], *good: int) -> None:
        code, text = answer
        if code not in good:
            raise Answered(step, code, text)


def _bytes(said: bytes | str) -> bytes:
    return said if isinstance(said, bytes) else said.encode()
