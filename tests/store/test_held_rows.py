"""What repeats or replaces a write that may have landed after all is claimed by no way there is: by
its gate, as the head of its lane, or alone after it lost its worker."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest
from psycopg.errors import LockNotAvailable

from outbox import WriteTool
from outbox.outcomes import Refused
from outbox.states import Event
from outbox.store import doubt, intents, records
from outbox.store.contradictions import contradict
from outbox.store.intents import Intent
from outbox.store.moves import Change, apply
from outbox.store.records import Ended
from tests.store.book import ACCOUNT, CHARGE, LANED, SCOPE, Book, charge


def refused(book: Book, row: Intent) -> None:
    with book.store.transaction() as tx:
        records.record(tx, [Ended(row, Refused("card_declined", covers_key=True))])


def lost_its_worker(book: Book, row: Intent) -> None:
    book.forward(61)
    with book.store.transaction() as tx:
        assert doubt.expire_leases(tx, limit=10, look_after_s=1.0, max_crashes=9) == 1
        current = intents.lock(tx, row.id)
        assert current is not None
        apply(tx, current, Event.RESEND_APPROVED, Change(actor="resolver", due_in_s=0.0))


@pytest.mark.parametrize("rate_per_s", [None, 100.0], ids=["no rate", "at a rate"])
@pytest.mark.parametrize("way", ["gate", "lane", "alone"])
@pytest.mark.parametrize("landed", [True, False])
def test_what_replaces_a_refused_write_is_claimed_by_no_way_once_that_one_may_have_landed(
    book: Book, way: str, landed: bool, rate_per_s: float | None
) -> None:
    tool: WriteTool = LANED if way == "lane" else CHARGE
    first = book.in_flight(tool)
    refused(book, first)
    second = book.enqueue(tool, args=charge(), supersedes=first.id)
    claimer = book.claimer(replace(ACCOUNT, rate_per_s=rate_per_s, burst=100))
    if way == "alone":
        (sent,) = claimer.claim(64)
        lost_its_worker(book, sent)
    if landed:
        with book.store.transaction() as tx:
            row = intents.lock(tx, first.id)
            assert row is not None
            assert contradict(tx, row, "contradiction", ["pi_1"], "an event")
    claimed = [row.id for row in [*claimer.claim(64), *claimer.claim_alone()]]
    assert claimed == ([] if landed else [second.intent_id])


def test_no_evidence_slips_between_the_question_what_became_of_a_write_and_its_successor(
    book: Book,
) -> None:
    first = book.in_flight()
    refused(book, first)
    # As a settlement locks it: the key of the successor alone would not be in its way.
    writes = "SELECT id FROM outbox.intents WHERE id = %(id)s FOR NO KEY UPDATE NOWAIT"
    with psycopg.connect(book.url) as caller:
        book.outbox.enqueue(caller, CHARGE, SCOPE, charge(), supersedes=first.id)
        with pytest.raises(LockNotAvailable):
            book.sql(writes, {"id": first.id})
    assert book.sql(writes, {"id": first.id}) == [{"id": first.id}]
