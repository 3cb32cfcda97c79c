"""Deliveries: genuine ones give facts whatever their shape, others are refused without a word."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import stripe

from outbox.outcomes import WebhookFact, WebhookRefused
from tests.vendors.stripe_calls import NOWHERE, WEBHOOK_SECRET
from vendors.stripe import StripeVendor

NOW = 1_790_000_000
ACCOUNT = replace(NOWHERE, webhook_secrets=(WEBHOOK_SECRET,))
EVENT = {
    "id": "evt_1",
    "object": "event",
    "type": "payment_intent.succeeded",
    "created": NOW - 5,
    "livemode": False,
    "api_version": "2026-10-28.endive",
    "request": {"id": "req_1", "idempotency_key": "ab" * 32},
    "data": {
        "object": {
            "id": "pi_1",
            "object": "payment_intent",
            "latest_charge": "ch_1",
            "metadata": {"outbox_id": "intent", "outbox_key": "ab" * 32},
        }
    },
}


def signed(body: bytes, secret: str = WEBHOOK_SECRET, at: int = NOW) -> dict[str, str]:
    """By the SDK, as a second opinion on the scheme."""
    header = stripe.WebhookSignature.generate_signature_header(body.decode(), secret, at)
    return {"Stripe-Signature": header}


def fact_of(vendor: StripeVendor, event: Any) -> WebhookFact:
    body = event if isinstance(event, bytes) else json.dumps(event).encode()
    (fact,) = vendor.reread_webhook(ACCOUNT, body)
    return fact


@pytest.mark.parametrize(
    "body",
    [
        json.dumps(EVENT).encode(),
        json.dumps(EVENT, indent=2).encode(),
        json.dumps(EVENT).encode() + b"\n",
        json.dumps({**EVENT, "note": "Grüße, 東京"}, ensure_ascii=False).encode(),
    ],
)
def test_a_genuine_delivery_is_taken_byte_for_byte(vendor: StripeVendor, body: bytes) -> None:
    """B24: pretty-printed, with a newline at its end, or not ASCII."""
    (fact,) = vendor.read_webhook(ACCOUNT, signed(body), body, NOW)
    assert (fact.event_id, fact.kind, fact.object_id) == (
        "evt_1", "payment_intent.succeeded", "pi_1")  # fmt: skip
    assert fact.receipt_ids == ("pi_1", "ch_1")
    assert fact.request_key == "ab" * 32
    assert (fact.owner, fact.owner_key) == ("intent", "ab" * 32)
    assert (fact.livemode, fact.vendor_account, fact.vendor_time) == (False, None, NOW - 5)
    assert fact.api_version == "2026-10-28.endive"
    assert fact.snapshot is not None


def test_a_body_that_was_parsed_and_written_again_is_refused(vendor: StripeVendor) -> None:
    """B24: the signature is over the bytes, not over what they mean."""
    body = json.dumps(EVENT, indent=2).encode()
    with pytest.raises(WebhookRefused):
        vendor.read_webhook(ACCOUNT, signed(body), json.dumps(json.loads(body)).encode(), NOW)


def header_with(value: str) -> dict[str, str]:
    return {"Stripe-Signature": value}


BODY = json.dumps(EVENT).encode()
GOOD = signed(BODY)["Stripe-Signature"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        header_with(""),
        header_with("nonsense"),
        header_with(GOOD.replace("v1=", "v0=")),
        header_with(GOOD.replace(f"t={NOW}", f"t={NOW + 1}")),
        header_with(GOOD.replace(f"t={NOW},", "")),
        header_with("t=" + "9" * 400 + ",v1=aa"),
        header_with("t=\u0661\u0662,v1=aa"),
        header_with(f"t={NOW},v1=é"),
        header_with(f"t={NOW},v1="),
        header_with(f"t=-1,{GOOD}"),
        signed(BODY, "whsec_other"),
        signed(BODY + b" "),
    ],
)
def test_a_forged_or_unsigned_delivery_is_refused(
    vendor: StripeVendor, headers: dict[str, str]
) -> None:
    """B24: and nothing of the secret or the body is in the refusal."""
    with pytest.raises(WebhookRefused) as refusal:
        vendor.read_webhook(ACCOUNT, headers, BODY, NOW)
    assert WEBHOOK_SECRET not in repr(refusal.value)
    assert "pi_1" not in repr(refusal.value)


def test_both_secrets_are_good_while_they_rotate(vendor: StripeVendor) -> None:
    rotating = replace(ACCOUNT, webhook_secrets=("whsec_new", "whsec_old"))
    for secret in rotating.webhook_secrets:
        assert vendor.read_webhook(rotating, signed(BODY, secret), BODY, NOW)
    new, old = (signed(BODY, s)["Stripe-Signature"] for s in ("whsec_new", "whsec_x"))
    both = f"{old},{new.partition(',')[2]}"
    assert vendor.read_webhook(rotating, header_with(both), BODY, NOW)
    third = replace(ACCOUNT, webhook_secrets=("whsec_new", "whsec_old", "whsec_older"))
    with pytest.raises(WebhookRefused):
        vendor.read_webhook(third, signed(BODY, "whsec_older"), BODY, NOW)


@pytest.mark.parametrize("secrets", [(), ("",), ("  ",)])
def test_an_account_without_a_secret_trusts_nobody(
    vendor: StripeVendor, secrets: tuple[str, ...]
) -> None:
    for secret in ("", "  "):
        with pytest.raises(WebhookRefused):
            vendor.read_webhook(
                replace(ACCOUNT, webhook_secrets=secrets), signed(BODY, secret), BODY, NOW
            )


@pytest.mark.parametrize(
    ("age_s", "taken"),
    [(0, True), (299, True), (301, False), (-60, True), (-61, False), (-3600, False)],
)
def test_a_stamp_counts_at_receipt_and_must_be_near(
    vendor: StripeVendor, age_s: int, taken: bool
) -> None:
    """B60: 300 s in the past, 60 s ahead, by the time that the receiver gives."""
    headers = signed(BODY, at=NOW - age_s)
    if taken:
        assert vendor.read_webhook(ACCOUNT, headers, BODY, NOW)
    else:
        with pytest.raises(WebhookRefused):
            vendor.read_webhook(ACCOUNT, headers, BODY, NOW)


def test_stored_bytes_are_read_later_without_their_age(vendor: StripeVendor) -> None:
    """B60: verified once at receipt, however long they wait in the inbox."""
    first = vendor.read_webhook(ACCOUNT, signed(BODY), BODY, NOW)
    assert vendor.reread_webhook(ACCOUNT, BODY) == first


def test_headers_are_found_however_a_server_spells_them(vendor: StripeVendor) -> None:
    assert vendor.read_webhook(ACCOUNT, {"stripe-signature": GOOD}, BODY, NOW)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'"text"', b"{}", b'{"id": 1, "type": "x"}']
)
def test_a_genuine_body_that_is_no_event_is_kept_as_unreadable(
    vendor: StripeVendor, body: bytes
) -> None:
    fact = fact_of(vendor, body)
    assert fact.kind == "unreadable"
    assert fact.event_id.startswith("sha256:")
    assert fact == fact_of(vendor, body)
    assert fact.event_id != fact_of(vendor, body + b" ").event_id


def test_a_thin_event_gives_its_kind_and_its_object(vendor: StripeVendor) -> None:
    """B33: the SDK raises for it where a snapshot is expected."""
    fact = fact_of(
        vendor,
        {
            "id": "evt_2",
            "object": "v2.core.event",
            "type": "v2.core.account.updated",
            "created": "2026-09-21T13:33:20.000Z",
            "livemode": True,
            "context": "acct_7",
            "reason": {"type": "request", "request": {"id": "req_1", "idempotency_key": "cd"}},
            "related_object": {"id": "acct_8", "type": "v2.core.account", "url": "/v2/x"},
        },
    )
    assert (fact.event_id, fact.kind, fact.object_id) == (
        "evt_2", "v2.core.account.updated", "acct_8")  # fmt: skip
    assert (fact.request_key, fact.livemode, fact.vendor_account) == ("cd", True, "acct_7")
    assert fact.vendor_time == 1789997600
    assert fact.snapshot is None


def test_the_same_join_is_found_in_every_shape(vendor: StripeVendor) -> None:
    """B33: fields move between API versions; ids, type, mode, account and our marks stay."""
    marks = {"outbox_id": "i", "outbox_key": "k"}
    old = {
        "id": "in_1", "object": "invoice", "subscription": "sub_1", "payment_intent": "pi_1",
        "charge": "ch_1", "metadata": {}, "subscription_details": {"metadata": marks},
    }  # fmt: skip
    new = {
        "id": "in_1", "object": "invoice", "metadata": {},
        "parent": {"subscription_details": {"subscription": "sub_1", "metadata": marks}},
        "payments": {"data": [{"payment": {"type": "payment_intent", "payment_intent": "pi_1"}}]},
    }  # fmt: skip
    expanded = {**old, "subscription": {"id": "sub_1"}, "payment_intent": {"id": "pi_1"}}
    for version, invoice in [
        ("2024-09-30.acacia", old),
        ("2026-10-28.endive", new),
        ("", expanded),
    ]:
        event = {
            **EVENT,
            "type": "invoice.paid",
            "api_version": version,
            "data": {"object": invoice},
        }
        fact = fact_of(vendor, event)
        assert {"in_1", "sub_1", "pi_1"} <= set(fact.receipt_ids)
        assert (fact.owner, fact.owner_key, fact.api_version) == ("i", "k", version)


@pytest.mark.parametrize(
    "changed",
    [
        {"request": None},
        {"request": "req_of_an_old_version"},
        {"request": {"id": None, "idempotency_key": None}},
        {"data": None},
        {"data": {"object": None}},
        {"data": {"object": {"id": 5, "metadata": "text", "payments": {"data": "x"}}}},
        {"created": "soon"},
        {"livemode": None},
        {"account": "acct_9"},
        {"type": "something.unheard_of"},
    ],
)
def test_no_shape_of_an_event_crashes_the_reader(
    vendor: StripeVendor, changed: Mapping[str, Any]
) -> None:
    """B33: an unknown type, a null request, a missing field."""
    fact = fact_of(vendor, {**EVENT, **changed})
    assert fact.event_id == "evt_1"
    if "request" in changed:
        assert fact.request_key == ""
    if "account" in changed:
        assert fact.vendor_account == "acct_9"


def test_a_missing_status_is_never_read_as_good(vendor: StripeVendor) -> None:
    """B33: then the resolver retrieves the object in the pinned version."""
    fact = fact_of(vendor, EVENT)
    assert fact.snapshot is not None
    assert vendor.classify("payment_intents.create", fact.snapshot, {}) is None


def test_a_session_names_what_was_born_of_it(vendor: StripeVendor) -> None:
    """B34: the payment's own event carries no mark, the session's carries both."""
    session = {
        "id": "cs_1", "object": "checkout.session", "payment_intent": "pi_9",
        "subscription": None, "setup_intent": None, "metadata": {"outbox_id": "i"},
    }  # fmt: skip
    fact = fact_of(
        vendor, {**EVENT, "type": "checkout.session.completed", "data": {"object": session}}
    )
    assert fact.receipt_ids == ("cs_1", "pi_9")
    assert fact.owner == "i"
    foreign = {"id": "pi_9", "object": "payment_intent", "metadata": {}}
    alone = fact_of(vendor, {**EVENT, "request": None, "data": {"object": foreign}})
    assert (alone.owner, alone.owner_key, alone.request_key) == ("", "", "")
    assert alone.receipt_ids == ("pi_9",)


def test_a_fact_shows_nothing_of_the_object(vendor: StripeVendor) -> None:
    event = {**EVENT, "data": {"object": {"id": "cus_1", "email": "MARK@example.com"}}}
    assert "MARK" not in repr(fact_of(vendor, event))
