"""The account of doubt, against a second bookkeeper: whatever order claims, answers, repeats and
crashes come in, the row's doubt is the number of attempts that were lost and never answered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from outbox.outcomes import Lost, NotSent, Outcome, Refused
from outbox.states import Event, Status
from outbox.store import doubt, intents, records
from outbox.store.intents import Intent
from outbox.store.moves import Change, apply
from outbox.store.records import Ended
from tests.store.book import Book, receipt

NOT_SENT = NotSent("connect_refused")
REFUSED = Refused("invalid_request", covers_key=False)
STORED = Refused("card_declined", covers_key=True)
UNSETTLED = ("pending", "in_flight", "unknown", "retryable")

# What the vendor answers to each attempt, in the order of the attempts; None: no answer ever.
ANSWERS = st.lists(
    st.sampled_from([None, NOT_SENT, NOT_SENT, REFUSED, "stored", "receipt"]),
    min_size=3,
    max_size=3,
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "send",
                "send",
                "answer",
                "answer",
                "deadline",
                "deadline",
                "expire",
                "bump",
                "withdraw",
            ]
        ),
        st.integers(0, 2),
    ),
    min_size=8,
    max_size=16,
)


@dataclass
class Bookkeeper:
    """What is known of each attempt by its number."""

    claims: list[Intent] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    answered: set[int] = field(default_factory=set)

    @property
    def doubt(self) -> int:
        return len(self.lost - self.answered)


@dataclass
class Play:
    book: Book
    intent_id: UUID
    answers: list[Any]
    kept: Bookkeeper = field(default_factory=Bookkeeper)

    @property
    def row(self) -> Intent:
        return self.book.row(self.intent_id)

    def step(self, name: str, number: int) -> None:
        getattr(self, name)(number)
        self.check()

    def send(self, _: int) -> None:
        """The next attempt, approved first where the row is in doubt."""
        if len(self.kept.claims) < len(self.answers):
            self.move(Status.UNKNOWN, Event.RESEND_APPROVED)
            self.book.sql("UPDATE outbox.intents SET due_at = now() WHERE settled_at IS NULL")
            claimer = self.book.claimer()
            self.kept.claims += claimer.claim(1) or claimer.claim_alone()

    def answer(self, number: int) -> None:
        """The vendor's answer to one attempt, on time, late, or recorded once more."""
        if number >= len(self.kept.claims) or self.answers[number] is None:
            return
        of = self.kept.claims[number]
        outcome = self.answers[number]
        if outcome == "receipt":
            outcome = receipt(of)
        elif outcome == "stored":
            outcome = STORED
        self.record(of, outcome)
        self.kept.answered.add(number)

    def deadline(self, number: int) -> None:
        if number < len(self.kept.claims):
            of = self.kept.claims[number]
            live = self.row.lease_token == of.lease_token
            self.record(of, Lost("deadline"))
            if live:
                self.kept.lost.add(number)

    def expire(self, _: int) -> None:
        live = self.row.lease_token
        self.book.forward(61)
        with self.book.store.transaction() as tx:
            doubt.expire_leases(tx, limit=9, look_after_s=1.0, max_crashes=99)
        numbers = [n for n, c in enumerate(self.kept.claims) if c.lease_token == live]
        self.kept.lost |= set(numbers)

    def bump(self, _: int) -> None:
        """Evidence was noted: the version is another one."""
        self.book.sql("UPDATE outbox.intents SET version = version + 1")

    def withdraw(self, _: int) -> None:
        self.move(Status.RETRYABLE, Event.RESEND_WITHDRAWN)

    def move(self, status: Status, event: Event) -> None:
        with self.book.store.transaction() as tx:
            row = intents.lock(tx, self.intent_id)
            assert row is not None
            if row.state is status:
                apply(tx, row, event, Change(actor="resolver", due_in_s=0.0))

    def record(self, of: Intent, outcome: Outcome) -> None:
        with self.book.store.transaction() as tx:
            records.record(tx, [Ended(of, outcome)])

    def check(self) -> None:
        row, kept = self.row, self.kept
        said = {self.answers[number] for number in kept.answered}
        if row.status in UNSETTLED:
            assert row.doubt == kept.doubt
            assert kept.doubt or REFUSED not in said or row.status == "in_flight"
            assert not said & {"receipt", "stored"}
        if row.status == "pending":
            everyone = set(range(len(kept.claims)))
            assert kept.answered == everyone
            assert said <= {NOT_SENT}
        if row.status == "in_flight":
            assert row.lease_token == kept.claims[-1].lease_token
        if row.status == "failed_poison":
            assert "stored" in said or (REFUSED in said and kept.doubt == 0)
        if row.status == "succeeded":
            assert "receipt" in said
        if "receipt" in said:
            assert row.status == "succeeded" or row.contradicted_at is not None


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@example(
    [REFUSED, NOT_SENT, None], [("deadline", 0), ("send", 0), ("answer", 0), ("answer", 1)]
).via("refused while the next was in the air, which was then not sent")
@example(
    [NOT_SENT, REFUSED, None],
    [("deadline", 0), ("send", 0), ("deadline", 1), ("answer", 1), ("answer", 0)],
).via("the same answers, both late, in the other order")
@given(answers=ANSWERS, steps=STEPS)
def test_doubt_is_what_was_lost_and_never_answered(
    book: Book, answers: list[Any], steps: list[tuple[str, int]]
) -> None:
    book.sql("TRUNCATE outbox.intents CASCADE")
    play = Play(book, book.enqueue().intent_id, answers)
    play.step("send", 0)
    for name, number in steps:
        play.step(name, number)
