"""Deliveries by a recipe: genuine and in time, or refused; then reduced to what joins them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from standardwebhooks import Webhook

from outbox.contract import Account, VendorContract
from outbox.contracts.keys import rendered
from outbox.outcomes import WebhookFact, WebhookRefused
from tests.vendors.recipe_calls import call_of, contract_of, payment
from vendors.http_json import HttpJsonVendor

NOW = 1795953600
TEXT_SECRET, OTHER = "a secret", "another"
STANDARD = "whsec_" + base64.b64encode(b"thirty-two bytes of a secret, ok").decode()
CLASSIC = base64.b64encode(b"the secret before").decode()
BODY = json.dumps({"id": "evt_1", "type": "payment.created", "data": {}}).encode()

PAYMENTS = contract_of("payments")
MESSAGES = contract_of("messages")
STRIPE_LIKE = contract_of(
    "payments",
    {'scheme = "standard_webhooks"': 'scheme = "stripe_like"\nheader = "X-Sig"\ntolerance_s = 60'},
)
CONTACTS = contract_of("contacts")


def _read(
    contract: VendorContract,
    secrets: tuple[str, ...],
    headers: Mapping[str, str],
    body: bytes = BODY,
    now: int = NOW,
) -> list[WebhookFact]:
    vendor = HttpJsonVendor(contract, connect_s=1, read_s=1)
    account = Account("default", "test", credential="x", webhook_secrets=secrets)
    return vendor.read_webhook(account, headers, body, now)


def _mac(secret: str, signed: bytes) -> bytes:
    return hmac.new(secret.encode(), signed, hashlib.sha256).digest()


def _standard(secret: str, at: int = NOW, body: bytes = BODY) -> dict[str, str]:
    signature = Webhook(secret).sign("msg_1", datetime.fromtimestamp(at, UTC), body.decode())
    return {"Webhook-Id": "msg_1", "Webhook-Timestamp": str(at), "Webhook-Signature": signature}


def _slack(secret: str, at: int = NOW, body: bytes = BODY) -> dict[str, str]:
    mark = _mac(secret, f"v0:{at}:".encode() + body).hex()
    return {"X-Request-Timestamp": str(at), "X-Signature": f"v0={mark}"}


def _stripe(secret: str, at: int = NOW, body: bytes = BODY) -> dict[str, str]:
    mark = _mac(secret, f"{at}.".encode() + body).hex()
    return {"x-sig": f"t={at},v1={'0' * 64},v1={mark},v0=zz"}


SCHEMES = [
    (PAYMENTS, _standard, STANDARD, CLASSIC, 300),
    (MESSAGES, _slack, TEXT_SECRET, OTHER, 300),
    (STRIPE_LIKE, _stripe, TEXT_SECRET, OTHER, 60),
]


@pytest.mark.parametrize(("contract", "sign", "secret", "other", "past_s"), SCHEMES)
def test_each_scheme_takes_what_is_genuine_and_in_time(
    contract: VendorContract, sign: Any, secret: str, other: str, past_s: int
) -> None:
    assert _read(contract, (secret,), sign(secret))
    assert _read(contract, (other, secret), sign(secret)), "either secret, while rotating"
    for at in (NOW - past_s, NOW + 60):
        assert _read(contract, (secret,), sign(secret, at))
    for at in (NOW - past_s - 1, NOW + 61):
        with pytest.raises(WebhookRefused, match="signed more than"):
            _read(contract, (secret,), sign(secret, at))


@pytest.mark.parametrize(("contract", "sign", "secret", "other", "past_s"), SCHEMES)
def test_each_scheme_refuses_what_is_not_genuine(
    contract: VendorContract, sign: Any, secret: str, other: str, past_s: int
) -> None:
    good = sign(secret)
    for secrets in ((other,), ("",), (), (other, other, secret)):
        with pytest.raises(WebhookRefused):
            _read(contract, secrets, good)
    with pytest.raises(WebhookRefused, match="no signature matches"):
        _read(contract, (secret,), good, BODY + b" ")
    for name in good:
        for value in ("", "x", "v1,", "v1,%%%", "\xff", "1" * 13, "-5", "1e9", " "):
            with pytest.raises(WebhookRefused):
                _read(contract, (secret,), {**good, name: value})
        with pytest.raises(WebhookRefused, match=f"(?i)no {name} header"):
            _read(contract, (secret,), {n: v for n, v in good.items() if n != name})
    later = {n: v.replace(str(NOW), str(NOW + 1)) for n, v in good.items()}
    with pytest.raises(WebhookRefused):
        _read(contract, (secret,), later)


def test_the_older_names_of_the_standards_headers_are_known() -> None:
    older = {n.replace("Webhook", "svix"): v for n, v in _standard(STANDARD).items()}
    assert _read(PAYMENTS, (STANDARD,), older)
    with pytest.raises(WebhookRefused):
        _read(PAYMENTS, (CLASSIC,), older)
    mixed = {**_standard(CLASSIC), "svix-signature": _standard(STANDARD)["Webhook-Signature"]}
    with pytest.raises(WebhookRefused):
        _read(PAYMENTS, (STANDARD,), mixed)


def test_a_body_that_is_no_text_is_refused_and_not_a_crash() -> None:
    with pytest.raises(WebhookRefused):
        _read(PAYMENTS, (STANDARD,), _standard(STANDARD), b"\xff\xfe")


def test_a_bare_hmac_of_the_body_has_no_time_to_compare() -> None:
    mark = _mac(TEXT_SECRET, BODY).hex()
    assert _read(CONTACTS, (TEXT_SECRET,), {"x-hub-signature-256": f"sha256={mark}"})
    for wrong in (f"sha1={mark}", mark, "sha256=", f"sha256={mark.upper()}", f"SHA256={mark}"):
        with pytest.raises(WebhookRefused):
            _read(CONTACTS, (TEXT_SECRET,), {"x-hub-signature-256": wrong})


def test_base64_signatures_and_encoded_secrets_are_read_as_the_recipe_says() -> None:
    raw = b"k\x00y"
    for encoding, secret in (("hex", raw.hex()), ("base64", base64.b64encode(raw).decode())):
        changes = {
            'encoding = "hex"': f'encoding = "base64"\nkey_encoding = "{encoding}"',
            'prefix = "sha256="\n': "",
        }
        contract = contract_of("contacts", changes)
        digest = hmac.new(raw, BODY, hashlib.sha256).digest()
        header = {"X-Hub-Signature-256": base64.b64encode(digest).decode()}
        assert _read(contract, (secret,), header)
        with pytest.raises(WebhookRefused, match="none is readable"):
            _read(contract, ("no such encoding!",), header)


def _facts(contract: VendorContract, document: Any) -> list[WebhookFact]:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    vendor = HttpJsonVendor(contract, connect_s=1, read_s=1)
    return vendor.reread_webhook(Account("default", "test"), body)


def test_a_fact_holds_what_joins_and_what_is_compared() -> None:
    call = call_of(PAYMENTS)
    event: dict[str, Any] = {
        "id": "evt_1", "type": "payment.created", "created_at": "2026-11-29T12:00:00Z",
        "livemode": False, "data": payment(call),
    }  # fmt: skip
    (fact,) = _facts(PAYMENTS, event)
    assert fact == WebhookFact(
        event_id="evt_1", kind="payment.created", object_id="pay_1", receipt_ids=("pay_1",),
        owner=str(call.intent_id), owner_key=call.key.hex(), livemode=False, vendor_time=NOW,
        snapshot=event["data"],
    )  # fmt: skip


@pytest.mark.parametrize("rendering", ["hex64", "b64url43", "uuid"])
def test_the_key_that_caused_an_event_joins_in_every_rendering(rendering: str) -> None:
    contract = contract_of("payments", {'object = "data"\n': 'object = "data"\nkey = "cause"\n'})
    call = call_of(contract)
    event = {"id": "evt_1", "cause": rendered(call.key, rendering), "data": {"id": "pay_9"}}
    (fact,) = _facts(contract, event)
    assert fact.owner == str(call.intent_id)
    assert fact.request_key == ("" if rendering == "uuid" else call.key.hex())


def test_an_event_without_an_id_is_named_by_its_bytes_and_a_redelivery_is_the_same() -> None:
    first, again = (_facts(PAYMENTS, {"type": "x", "data": {}})[0] for _ in range(2))
    assert first.event_id == again.event_id
    assert first.event_id.startswith("sha256:")
    assert _facts(PAYMENTS, {"type": "y", "data": {}})[0].event_id != first.event_id


@pytest.mark.parametrize("body", [b"", b"[]", b"nope", b"7", b"\xff"])
def test_a_genuine_body_that_is_no_event_is_kept_as_unreadable(body: bytes) -> None:
    (fact,) = _facts(PAYMENTS, body)
    assert (fact.kind, fact.object_id, fact.snapshot) == ("unreadable", "", None)


def test_a_delivery_of_several_events_is_read_one_by_one() -> None:
    changes = {'object = "data"\n': 'object = "data"\nevents = "events"\n'}
    contract = contract_of("payments", changes)
    call = call_of(contract)
    events = [{"id": "e1", "data": payment(call)}, "odd", {"data": {"id": 7}}]
    facts = _facts(contract, {"events": events})
    assert facts[0].event_id == "e1"
    assert [fact.kind for fact in facts] == ["event", "unreadable", "event"]
    assert facts[2].receipt_ids == ("7",)
    assert len({fact.event_id for fact in facts}) == 3
