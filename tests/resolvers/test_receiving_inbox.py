"""What is kept: once an event, before it is acknowledged, and whose it is."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from outbox.errors import SettingsError
from outbox.settings import Settings
from outbox.store.connection import Store
from resolvers.directory import Directory
from resolvers.paging import page_once
from resolvers.receiving import Receiver, receive
from tests.resolvers.deliveries import Delivery, event, signed
from tests.resolvers.ledger import ACCOUNT, SECRET, Ledger, open_ledger
from vendors.registry import build


@pytest.fixture
def ledger(database: str) -> Iterator[Ledger]:
    with open_ledger(database, lock_timeout_s=0.2) as found:
        yield found


def deliver(
    ledger: Ledger, delivery: Delivery, vendor: str = "stripe", account: str = "default"
) -> int:
    status, text = receive(
        ledger.store,
        ledger.directory,
        vendor=vendor,
        account=account,
        headers=delivery.headers,
        body=delivery.body,
    )
    assert SECRET not in text
    return status


def test_an_event_that_could_not_be_stored_leaves_no_mark_and_is_taken_when_it_comes_again(
    ledger: Ledger,
) -> None:
    """B18: a marker committed apart from its effect makes the retry look like a duplicate."""
    delivery = signed(event(), ledger.now())
    with psycopg.connect(ledger.settings.database_url.replace("+psycopg", "")) as other:
        other.execute("LOCK TABLE outbox.webhook_inbox IN ACCESS EXCLUSIVE MODE")
        assert deliver(ledger, delivery) == 503
        other.rollback()
    assert ledger.inbox() == []
    assert deliver(ledger, delivery) == 200
    assert deliver(ledger, delivery) == 200
    assert [(row["state"], row["deliveries"]) for row in ledger.inbox()] == [("new", 2)]


def test_two_deliveries_of_one_event_at_once_are_one_row(ledger: Ledger) -> None:
    delivery = signed(event(), ledger.now())
    answers: list[int] = []
    together = threading.Barrier(4)

    def run() -> None:
        together.wait()
        answers.append(deliver(ledger, delivery))

    senders = [threading.Thread(target=run) for _ in range(4)]
    for each in senders:
        each.start()
    for each in senders:
        each.join()
    assert answers == [200] * 4
    assert [row["deliveries"] for row in ledger.inbox()] == [4]


def test_a_database_that_is_away_asks_the_vendor_to_come_again(ledger: Ledger) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        port = unheard.getsockname()[1]
        settings = replace(
            ledger.settings,
            database_url=f"postgresql+psycopg://nobody@127.0.0.1:{port}/none",
            statement_timeout_s=0.5,
        )
        away = Store(settings)
        delivery = signed(event(), ledger.now())
        status, text = receive(
            away,
            ledger.directory,
            vendor="stripe",
            account="default",
            headers=delivery.headers,
            body=delivery.body,
        )
        away.close()
    assert status == 503
    assert "127.0.0.1" not in text


@pytest.mark.parametrize(
    ("vendor", "account"),
    [("stripe", "other"), ("nobody", "default"), ("stripe", "../default"), ("", "")],
)
def test_a_vendor_or_account_that_nobody_configured_is_not_found(
    ledger: Ledger, vendor: str, account: str
) -> None:
    assert deliver(ledger, signed(event(), ledger.now()), vendor, account) == 404
    assert ledger.inbox() == []


def test_a_body_over_the_limit_is_refused_and_one_at_the_limit_is_not(database: str) -> None:
    with open_ledger(database, webhook_max_bytes=2000) as ledger:
        small = event()
        small["pad"] = "x" * (2000 - len(signed({**small, "pad": ""}, 1).body))
        at_limit = signed(small, ledger.now())
        assert len(at_limit.body) == 2000
        assert deliver(ledger, at_limit) == 200
        small["pad"] += "x"
        assert deliver(ledger, signed(small, ledger.now())) == 413
        assert len(ledger.inbox()) == 1


@pytest.mark.parametrize("secrets", [(), ("",), ("  ",)])
def test_an_account_without_a_secret_verifies_nothing_and_says_so(
    database: str, secrets: tuple[str, ...]
) -> None:
    account = replace(ACCOUNT, webhook_secrets=secrets)
    with open_ledger(database, accounts={("stripe", "default"): account}) as ledger:
        assert deliver(ledger, signed(event(), ledger.now(), "")) == 503
        assert deliver(ledger, Delivery({}, b"{}")) == 503
        assert ledger.inbox() == []


@pytest.mark.parametrize("body", [b"", b"[]", b"not json", b'{"id": 7}', b"[" * 100_000])
def test_a_genuine_body_that_cannot_be_read_is_kept_and_does_not_come_for_ever(
    ledger: Ledger, body: bytes
) -> None:
    for _ in range(2):
        assert deliver(ledger, signed(body, ledger.now())) == 200
    (row,) = ledger.inbox()
    assert (row["kind"], row["deliveries"], bytes(row["body"])) == ("unreadable", 2, body)


def test_an_event_without_any_mark_of_ours_is_kept_for_the_joiner_to_decide(
    ledger: Ledger,
) -> None:
    assert deliver(ledger, signed(event(), ledger.now())) == 200
    (row,) = ledger.inbox()
    assert row["state"] == "new"
    assert row["body"] is not None
    assert row["due_at"] is not None
    assert ledger.sql("SELECT 1 FROM outbox.escalations") == []


@pytest.mark.parametrize("wrong", [{"livemode": True}, {"account": "acct_somebody_else"}])
def test_events_of_another_mode_or_account_are_kept_apart_and_raise_one_alert_together(
    database: str, wrong: dict[str, Any]
) -> None:
    account = replace(ACCOUNT, vendor_account="acct_ours")
    with open_ledger(database, accounts={("stripe", "default"): account}) as ledger:
        for _ in range(5):
            intent = ledger.intent()
            body = event({"outbox_id": str(intent)}, **wrong)
            assert deliver(ledger, signed(body, ledger.now())) == 200
        assert {row["state"] for row in ledger.inbox()} == {"mismatch"}
        assert {row["due_at"] for row in ledger.inbox()} == {None}
        (asked,) = ledger.sql("SELECT * FROM outbox.escalations")
        assert asked["holder"] == "webhook:stripe/default"
        assert asked["reasons"] == ["webhook_mismatch"]
        assert len(ledger.pages()) == 1
        page_once(ledger.store, (), ledger.settings)
        ours = event(account="acct_ours", livemode=False)
        assert deliver(ledger, signed(ours, ledger.now())) == 200
        assert ledger.inbox()[-1]["state"] == "new"


def test_an_event_of_the_other_mode_is_filed_under_its_own_mode(ledger: Ledger) -> None:
    deliver(ledger, signed(event(event_id="evt_same", livemode=True), ledger.now()))
    deliver(ledger, signed(event(event_id="evt_same", livemode=False), ledger.now()))
    assert [(row["mode"], row["state"]) for row in ledger.inbox()] == [
        ("live", "mismatch"),
        ("test", "new"),
    ]


def test_headers_are_found_in_any_case_and_a_clock_can_be_given(ledger: Ledger) -> None:
    delivery = signed(event(), 1_000_000_000)
    (header,) = delivery.headers.values()
    for name in ("stripe-signature", "STRIPE-SIGNATURE"):
        status, _ = receive(
            ledger.store,
            ledger.directory,
            vendor="stripe",
            account="default",
            headers={name: header},
            body=delivery.body,
            now_epoch_s=1_000_000_010,
        )
        assert status == 200


def test_the_receiver_needs_nothing_but_the_environment(database: str) -> None:
    env = {
        "DATABASE_URL": database,
        "STRIPE_API_KEY": "sk_test_nowhere",
        "STRIPE_WEBHOOK_SECRET": f"whsec_next,{SECRET}",
    }
    receiver = Receiver.from_env(env)
    try:
        with receiver.parts()[0].transaction() as tx:
            row = tx.one("SELECT EXTRACT(EPOCH FROM outbox.clock())::bigint AS at")
        assert row is not None
        delivery = signed(event(), row["at"])
        assert receiver.receive("stripe", "default", delivery.headers, delivery.body)[0] == 200
        receiver.close()
        assert receiver.receive("stripe", "default", delivery.headers, delivery.body) == (
            200,
            "stored before",
        )
    finally:
        receiver.close()


def test_a_receiver_without_a_database_is_refused_before_the_first_delivery() -> None:
    with pytest.raises(SettingsError) as refused:
        Receiver.from_env({"STRIPE_API_KEY": "sk_test_nowhere"})
    assert refused.value.problems[0][0] == "DATABASE_URL"


def test_an_account_of_a_vendor_that_this_release_does_not_know_is_not_found(
    ledger: Ledger,
) -> None:
    settings = Settings(
        database_url=ledger.settings.database_url,
        accounts={("stripe", "default"): ACCOUNT, ("unknown", "default"): ACCOUNT},
    )
    receiver = Receiver(settings)
    try:
        delivery = signed(event(), ledger.now())
        answer = receiver.receive("unknown", "default", delivery.headers, delivery.body)
        assert answer[0] == 404
        answer = receiver.receive("stripe", "default", delivery.headers, delivery.body)
        assert answer[0] == 200
    finally:
        receiver.close()
    directory = Directory(settings, {"stripe": build("stripe")})
    assert directory.reach("unknown", "default") is None
    directory.close()
