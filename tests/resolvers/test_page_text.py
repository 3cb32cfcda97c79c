"""What a page says."""

from __future__ import annotations

from dataclasses import replace

from resolvers.paging import page_once
from tests.resolvers.ledger import Ledger
from tests.resolvers.page_target import Target, pagers_of


def test_a_page_says_whose_and_what_to_type_and_nothing_personal(
    ledger: Ledger, first: Target
) -> None:
    intent = ledger.intent()
    ledger.sql(
        "UPDATE outbox.intents SET status = 'unknown', doubt = 1, first_sent_at = outbox.clock(), "
        "window_ends_at = outbox.clock() + INTERVAL '22 hours'"
    )
    ledger.forward(4 * 3600)
    escalation = ledger.escalate(intent)
    page_once(ledger.store, pagers_of(first), replace(ledger.settings, environment="staging"))
    (page,) = first.bodies
    payload = page["payload"]
    command = f"outbox escalation show {escalation}"
    assert command in payload["summary"]
    details = payload["custom_details"]
    assert details == {
        "first_command": command,
        "escalation": str(escalation),
        "intent": str(intent),
        "environment": "staging",
        "reason": "ttl",
        "outcome": "unknown",
        "age": "4 h",
        "window_left": details["window_left"],
        "tenant": "acme",
        "vendor": "stripe",
        "account": "default",
        "tool": "charge_invoice",
        "amount_minor": 1200,
        "currency": "usd",
    }
    assert details["window_left"].startswith("17 h 59 min") or details["window_left"] == "18 h"
    assert payload["severity"] == "error"
    text = first.requests[0][2].decode()
    for secret in ("Jane", "Elm", "cus_jane", "failed", "sk_test"):
        assert secret not in text


def test_a_page_about_a_contradiction_says_unknown_and_is_critical(
    ledger: Ledger, first: Target
) -> None:
    ledger.escalate(ledger.intent(), "contradiction")
    page_once(ledger.store, pagers_of(first), ledger.settings)
    (page,) = first.bodies
    assert page["payload"]["severity"] == "critical"
    assert page["payload"]["custom_details"]["outcome"] == "unknown"
