"""What is genuine: over the raw bytes, in time by the database's clock, by either secret."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from outbox.errors import SettingsError
from outbox.settings import Settings
from resolvers.joining import join_once
from resolvers.receiving import receive
from tests.resolvers.deliveries import Delivery, event, signed
from tests.resolvers.ledger import ACCOUNT, SECRET, Ledger, open_ledger


@pytest.fixture
def ledger(database: str) -> Iterator[Ledger]:
    with open_ledger(database) as found:
        found.freeze()
        yield found


def deliver(ledger: Ledger, delivery: Delivery) -> tuple[int, str]:
    return receive(
        ledger.store,
        ledger.directory,
        vendor="stripe",
        account="default",
        headers=delivery.headers,
        body=delivery.body,
    )


@pytest.mark.parametrize(
    "render",
    [
        lambda e: json.dumps(e, indent=2),
        lambda e: json.dumps(e, ensure_ascii=False),
        lambda e: json.dumps(e) + "\n",
        lambda e: json.dumps(e, separators=(" , ", " : ")),
    ],
)
def test_a_genuine_delivery_is_verified_as_it_came_and_stored_byte_for_byte(
    ledger: Ledger, render: object
) -> None:
    """B24: parsing before verifying refuses every genuine pretty-printed webhook."""
    assert callable(render)
    delivery = signed(render(event({"name": "Jürgen ☕"})), ledger.now())
    assert deliver(ledger, delivery)[0] == 200
    (row,) = ledger.inbox()
    assert bytes(row["body"]) == delivery.body


def test_a_body_that_was_parsed_and_written_again_is_refused(ledger: Ledger) -> None:
    """B24."""
    delivery = signed(json.dumps(event(), indent=2), ledger.now())
    rewritten = replace(delivery, body=json.dumps(json.loads(delivery.body)).encode())
    assert deliver(ledger, rewritten)[0] == 400
    assert ledger.inbox() == []


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Stripe-Signature": ""},
        {"Stripe-Signature": "t=soon,v1=00"},
        {"Stripe-Signature": "v1=" + "0" * 64},
        {"Stripe-Signature": "t=1780000000,v0=" + "0" * 64},
        {"Stripe-Signature": "t=99999999999999999999,v1=é"},
        {"Authorization": SECRET},
    ],
)
def test_a_forged_or_unsigned_delivery_is_refused_and_leaves_nothing(
    ledger: Ledger, headers: dict[str, str]
) -> None:
    """B24: nothing stored as trusted, and the answer tells no secret."""
    status, text = deliver(ledger, Delivery(headers, json.dumps(event()).encode()))
    assert status == 400
    assert SECRET not in text
    assert ledger.inbox() == []
    assert ledger.sql("SELECT 1 FROM outbox.escalations") == []


def test_another_secret_is_refused_and_both_are_taken_while_they_rotate(database: str) -> None:
    """B24: rotation gives each delivery two signatures, and us two secrets."""
    both = {("stripe", "default"): replace(ACCOUNT, webhook_secrets=("whsec_new", "whsec_old"))}
    with open_ledger(database, accounts=both) as ledger:
        now = ledger.freeze()
        assert deliver(ledger, signed(event(), now, "whsec_old"))[0] == 200
        assert deliver(ledger, signed(event(), now, "whsec_new"))[0] == 200
        assert deliver(ledger, signed(event(), now, "whsec_other"))[0] == 400
        body = event()
        two = signed(body, now, "whsec_other")
        good = signed(body, now, "whsec_old").headers["Stripe-Signature"].split(",")[1]
        two.headers["Stripe-Signature"] += f",{good}"
        assert deliver(ledger, two)[0] == 200
        assert len(ledger.inbox()) == 3


@pytest.mark.parametrize(
    ("age_s", "status"),
    [
        (0, 200),
        (299, 200),
        (300, 200),
        (301, 400),
        (3600, 400),
        (-60, 200),
        (-61, 400),
        (-3600, 400),
    ],
)
def test_a_signature_is_good_for_300_s_and_never_from_the_future(
    ledger: Ledger, age_s: int, status: int
) -> None:
    """B60: the SDK takes a stamp an hour ahead; a replayed one must not be good for longer."""
    answer, text = deliver(ledger, signed(event(), ledger.now() - age_s))
    assert answer == status
    assert len(ledger.inbox()) == (1 if status == 200 else 0)
    if status == 400:
        assert "clock" in text


def test_the_database_s_clock_decides_and_not_the_host_s(ledger: Ledger) -> None:
    """B60: clock ten minutes wrong."""
    delivery = signed(event(), ledger.now())
    ledger.forward(600)
    assert deliver(ledger, delivery)[0] == 400
    assert deliver(ledger, signed(event(), ledger.now()))[0] == 200


def test_an_event_that_waits_in_the_inbox_is_not_too_old_when_it_is_joined(
    ledger: Ledger,
) -> None:
    """B60: verified once, at receipt; a worker that comes 15 minutes later asks no more."""
    intent = ledger.intent()
    assert deliver(ledger, signed(event({"outbox_id": str(intent)}), ledger.now()))[0] == 200
    ledger.forward(900)
    assert join_once(ledger.store, ledger.directory) == 1
    (row,) = ledger.inbox()
    assert (row["state"], row["intent_id"]) == ("joined", intent)


@pytest.mark.parametrize("value", ["", "0", "999999"])
def test_no_setting_switches_the_age_check_off(database: str, value: str) -> None:
    """B60: an empty or large tolerance must not mean none."""
    env = {
        "DATABASE_URL": database,
        "STRIPE_API_KEY": "sk_test_nowhere",
        "STRIPE_WEBHOOK_SECRET": SECRET,
        "OUTBOX_WEBHOOK_PAST_S": value,
    }
    try:
        settings = Settings.from_env(env)
    except SettingsError:
        return
    with open_ledger(database, policy=settings.policy, accounts=settings.accounts) as ledger:
        now = ledger.freeze()
        assert deliver(ledger, signed(event(), now - 301))[0] == 400


def test_a_nul_in_the_body_is_stored_and_joined_and_never_fails_for_ever(ledger: Ledger) -> None:
    """B26: Postgres takes no NUL in text or jsonb; the vendor would deliver it for days."""
    intent = ledger.intent()
    ledger.sql(
        "UPDATE outbox.intents SET status = 'unknown', doubt = 1, first_sent_at = outbox.clock(), "
        "last_lease_end = outbox.clock(), window_ends_at = outbox.clock() + INTERVAL '22 hours'"
    )
    odd = event({"outbox_id": str(intent), "note": "a\x00b"})
    odd["data"]["object"]["description"] = "a\x00b"
    delivery = signed(odd, ledger.now())
    assert b"\\u0000" in delivery.body
    assert deliver(ledger, delivery)[0] == 200
    join_once(ledger.store, ledger.directory)
    (row,) = ledger.inbox()
    assert (row["state"], row["intent_id"]) == ("joined", intent)
    (settled,) = ledger.sql("SELECT status, receipt_id FROM outbox.intents")
    assert (settled["status"], settled["receipt_id"]) == (
        "succeeded",
        odd["data"]["object"]["id"],
    )


@pytest.mark.parametrize("event_id", ["evt_\x00", "evt_\ud800", "evt_" + "x" * 5000, "evt_\n"])
def test_an_event_id_that_no_column_takes_is_stored_once_all_the_same(
    ledger: Ledger, event_id: str
) -> None:
    """B26: in the envelope."""
    for _ in range(2):
        body = event(event_id=event_id, type="odd\x00type")
        assert deliver(ledger, signed(body, ledger.now()))[0] == 200
    assert [row["deliveries"] for row in ledger.inbox()] == [2]
