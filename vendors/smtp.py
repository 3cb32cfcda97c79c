"""The mail adapter: one message to one recipient in one SMTP dialogue, never a second.

Until the first byte of the message everything is safe to repeat, and every step is answered by
itself. From that byte on only the server's last answer tells; without it the message may have been
delivered, and nothing can be read back. Facts: RFC 5321 (3.3, 4.2.1, 4.2.4), RFC 4954.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from outbox.contract import Account, Call, Listing, Sought, TooLate, VendorContract
from outbox.outcomes import (
    Business,
    LookUp,
    Lost,
    NotSent,
    Outcome,
    Reading,
    Receipt,
    Standing,
    Unreadable,
    WebhookFact,
    WebhookRefused,
    Wire,
)
from vendors.smtp_dialogue import Answered, Dialogue, Place
from vendors.smtp_message import composed, message_id

_ACCEPTED = 250
_UNREADABLE = Unreadable("mail cannot be read back")


class SmtpVendor:
    """Mail submission. A connection serves one message: one that was kept may be dead in a way
    that shows only after the message has left."""

    def __init__(self, contract: VendorContract, *, connect_s: float, read_s: float) -> None:
        self._contract = contract
        self._connect_s = connect_s
        self._read_s = read_s

    @property
    def contract(self) -> VendorContract:
        """The data that this adapter keeps to."""
        return self._contract

    def perform(self, call: Call) -> Outcome:
        """One dialogue; ``Lost`` from the first byte of the message to the server's last word."""
        assert len(call.key) == 32, "a call without its intent's key"
        dialogue = None
        try:
            mail = composed(call)
            dialogue = Dialogue(
                call.cutoff,
                Place.of(call.account),
                connect_s=self._connect_s,
                read_s=self._read_s,
            )
            dialogue.open()
            return self._outcome(call, *dialogue.send(mail))
        except Answered as answered:
            return answered.outcome()
        except TooLate:
            return NotSent("too_late")
        except Exception as error:
            # A soft time limit of the worker may be what was raised.
            began = dialogue is not None and dialogue.began
            name = type(error).__name__
            if began:
                return Lost(f"no_answer:{name}")
            # What the network or a server did is an OSError, those of smtplib too.
            return NotSent(name, local=not isinstance(error, OSError))
        finally:
            if dialogue is not None:
                dialogue.close()

    def _outcome(self, call: Call, code: int, text: bytes) -> Outcome:
        if 400 <= code <= 599:
            raise Answered("content", code, text)
        if code != _ACCEPTED:
            return Lost(f"smtp_content_{code}", wire=Wire(http_status=code))
        document = {
            "message_id": message_id(call),
            "intent_id": str(call.intent_id),
            "reply": text.decode("utf-8", "replace"),
        }
        reading = self.classify(call.operation, document, call.params)
        assert reading is not None
        return Receipt(reading, Wire(http_status=code))

    def look_up(
        self,
        call: Call,  # noqa: ARG002
        since_epoch_s: int,  # noqa: ARG002
        until_epoch_s: int | None = None,  # noqa: ARG002
    ) -> LookUp:
        """Nothing: a mail server does not tell what it delivered."""
        return _UNREADABLE

    def shares_list(self, operation: str) -> bool:  # noqa: ARG002
        """Never, as of ``look_up``."""
        return False

    def read_list(self, sought: Sought) -> Listing | Unreadable:  # noqa: ARG002
        """Nothing, as of ``look_up``."""
        return _UNREADABLE

    def retrieve(self, call: Call, receipt_id: str) -> LookUp:  # noqa: ARG002
        """Nothing, as of ``look_up``."""
        return _UNREADABLE

    def read_webhook(
        self,
        account: Account,  # noqa: ARG002
        headers: Mapping[str, str],  # noqa: ARG002
        body: bytes,  # noqa: ARG002
        now_epoch_s: int,  # noqa: ARG002
    ) -> list[WebhookFact]:
        """Refused: a mail server sends no events."""
        raise WebhookRefused("this vendor sends no events")

    def reread_webhook(self, account: Account, body: bytes) -> list[WebhookFact]:  # noqa: ARG002
        """Nothing, as of ``read_webhook``."""
        return []

    def classify(
        self,
        operation: str,
        document: Mapping[str, Any],
        params: Mapping[str, Any] | None,  # noqa: ARG002
    ) -> Reading | None:
        """A message that a server took in; None where the document is no receipt of ours."""
        named = document.get("message_id")
        if operation not in self._contract.operations or not isinstance(named, str) or not named:
            return None
        return Reading(
            receipt_id=named,
            standing=Standing.LANDED,
            business=Business.OTHER,
            word="accepted",
            owner=str(document.get("intent_id", "")),
            document=json.dumps(dict(document)),
        )

    def whoami(self, account: Account) -> str | Unreadable:
        """Who signs on where: a server knows no other name of an account."""
        try:
            place = Place.of(account)
        except ValueError:
            return Unreadable("base_url is no address of a mail server")
        return f"{place.user}@{place.host}" if place.user else place.host

    def close(self) -> None:
        """Nothing is kept open."""
