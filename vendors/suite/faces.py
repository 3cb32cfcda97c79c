"""The faces of the sandbox that the suite runs against: every adapter, and each kind of key."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from outbox.contract import VendorContract
from outbox.contracts import contract_of, register
from outbox.contracts.keys import rendered
from outbox.contracts.recipes import read_recipe
from vendors.sandbox import RECIPES
from vendors.sandbox.client import Sandbox
from vendors.smtp_message import message_id
from vendors.suite.face import COMMON, HTTP, Face, Row

_DECLINE = {"payment_method": "pm_card_chargeDeclined"}


def _stripe() -> Face:
    params = {
        "amount": 1999,
        "currency": "usd",
        "payment_method": "pm_card_visa",
        "confirm": True,
    }
    return Face(
        contract=contract_of("stripe"),
        operation="payment_intents.create",
        params=params,
        base_url=lambda sandbox: sandbox.url,
        wire_key=lambda call: call.key.hex(),
        rows=(
            Row("none", "Refused", 0, covers_key=True, params=_DECLINE),
            Row("none", "Refused", 0, covers_key=False, params={"colour": "red"}),
            Row("stored_500_no_object", "Lost", 0, veto=True),
            Row("stored_500_object_later", "Lost", 1, veto=True, fields={"after_s": 3600.0}),
            Row("in_use_409", "Lost", 1, fields={"after_s": 3600.0}),
            Row("lock_timeout_429", "NotSent", 0, throttled=True),
            Row("unavailable_503", "Lost", 0),
            Row("do_not_retry", "Lost", 0, veto=True),
        ),
        lag="events_lag_s",
        many=_many_payment_intents,
    )


def _many_payment_intents(sandbox: Sandbox, name: str) -> None:
    for n in range(120):
        sandbox.plant(name, "payment_intents.create", {"amount": 100 + n, "currency": "usd"})


def _payments() -> Face:
    return Face(
        contract=_recipe("payments"),
        operation="payments.create",
        params={"amount": 1999, "currency": "usd", "recipient": "ann"},
        base_url=lambda sandbox: sandbox.json_url("keys"),
        wire_key=lambda call: call.key.hex(),
        rows=(
            Row("none", "Refused", 0, covers_key=True, params={"recipient": "blocked"}),
            Row("none", "Refused", 0, params={"recipient": "unknown"}),
            Row("none", "Refused", 0, covers_key=False, params={"memo": 7}),
            Row("stored_500_no_object", "Lost", 0, veto=True),
            Row("in_use_409", "Lost", 1, fields={"after_s": 3600.0}),
            Row("unavailable_503", "Lost", 0),
        ),
    )


def _contacts() -> Face:
    return Face(
        contract=_recipe("contacts"),
        operation="contacts.create",
        params={"email": "ann@example.org"},
        base_url=lambda sandbox: sandbox.json_url("external_ids"),
        wire_key=lambda call: rendered(call.key, "uuid"),
        rows=(
            Row("none", "Refused", 0, covers_key=False, params={"email": 7}),
            Row("unavailable_503", "Lost", 0),
        ),
        lag="list_lag_s",
        stamps=False,
    )


def _tickets() -> Face:
    return Face(
        contract=_recipe("tickets"),
        operation="tickets.create",
        params={"title": "The printer is on fire"},
        base_url=lambda sandbox: sandbox.json_url("references"),
        wire_key=lambda _: None,
        rows=(
            Row("none", "Refused", 0, covers_key=False, params={"title": 7}),
            Row("unavailable_503", "Lost", 0),
        ),
        lag="list_lag_s",
    )


def _messages() -> Face:
    return Face(
        contract=_recipe("messages"),
        operation="messages.post",
        params={"channel": "general", "text": "hello"},
        base_url=lambda sandbox: sandbox.json_url("nothing"),
        wire_key=lambda _: None,
        rows=(
            Row("none", "Refused", 0, covers_key=False, params={"channel": "nowhere"}),
            # It says so in a 200, with a word that its recipe does not name.
            Row("forbidden_403", "Lost", 0),
            Row("unavailable_503", "Lost", 0),
        ),
    )


def _smtp() -> Face:
    return Face(
        contract=contract_of("smtp"),
        operation="messages.send",
        params={
            "from": "shop@example.com",
            "to": "ann@example.org",
            "subject": "Your order",
            "text": "It is on its way.",
        },
        base_url=lambda sandbox: sandbox.smtp_url,
        wire_key=message_id,
        rows=(
            Row("reply:mail:451", "NotSent", 0, throttled=True),
            Row("reply:rcpt:450", "NotSent", 0, throttled=True),
            Row("reply:rcpt:550", "Refused", 0, covers_key=False),
            Row("reply:content:452", "NotSent", 0, throttled=True),
            Row("reply:content:554", "Refused", 0, covers_key=False),
            Row("unauthorized_401", "NotSent", 0, pause=True),
            Row("refuse", "NotSent", 0),
        ),
        credential=lambda _, name: f"{name}:password",
        mode="live",
    )


@cache
def faces() -> Mapping[str, Face]:
    """Every face by its vendor's name."""
    made = (_stripe(), _payments(), _contacts(), _tickets(), _messages(), _smtp())
    return {face.name: face for face in made}


def rows_of(face: Face) -> tuple[Row, ...]:
    """The whole outcome table of a face; its own rows replace those of its protocol."""
    shared = (*COMMON, *(() if face.name == "smtp" else HTTP))
    own = {row.fault for row in face.rows} - {"none"}
    return (*(row for row in shared if row.fault not in own), *face.rows)


def _recipe(name: str) -> VendorContract:
    contract = read_recipe((RECIPES / f"{name}.toml").read_text(encoding="utf-8"))
    register(contract)
    return contract
