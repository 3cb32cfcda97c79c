"""Accounts that a claim leaves out: their rows wait, and nobody else's."""

from __future__ import annotations

from dataclasses import replace

from outbox import Scope
from tests.store.book import ACCOUNT, LANED, Book

OTHER = replace(ACCOUNT, name="other")


def enqueue(book: Book, account: str, *tenants: str) -> None:
    for tenant in tenants:
        for _ in range(3):
            book.enqueue(scope=Scope(tenant=tenant, run_id="run-1", account=account))


def test_a_claim_passes_over_the_accounts_that_it_is_told_to_leave_out(book: Book) -> None:
    enqueue(book, "default", "acme", "zeta")
    enqueue(book, "other", "acme")
    claimer = book.claimer(ACCOUNT, OTHER)
    without = frozenset({("stripe", "default")})
    assert {row.account for row in claimer.claim(64, without=without)} == {"other"}
    assert claimer.claim(64, without=without) == []
    assert len(claimer.claim(64)) == 6


def test_a_lane_of_an_account_that_is_left_out_waits(book: Book) -> None:
    for account in ("default", "other"):
        book.enqueue(LANED, Scope(tenant="acme", run_id="run-1", account=account))
    claimer = book.claimer(ACCOUNT, OTHER)
    without = frozenset({("stripe", "other")})
    assert [row.account for row in claimer.claim(64, without=without)] == ["default"]
    assert [row.account for row in claimer.claim(64)] == ["other"]


def test_a_row_that_is_claimed_alone_is_of_any_account(book: Book) -> None:
    book.in_flight()
    book.sql(
        "UPDATE outbox.intents SET status = 'retryable', doubt = 1, crashes = 1, "
        "lease_token = NULL, lease_until = NULL, lease_owner = NULL"
    )
    claimer = book.claimer()
    assert claimer.claim(64, without=frozenset({("stripe", "default")})) == []
    assert len(claimer.claim_alone()) == 1
