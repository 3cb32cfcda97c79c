"""Two connections of the product's own, each of which can keep its transaction open for as long as
the test likes, and a vendor that does what each attempt's fate says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg

from outbox.contract import Account, Call
from outbox.errors import Busy
from outbox.outcomes import (
    Absent,
    Business,
    Found,
    LookUp,
    Lost,
    NotSent,
    Outcome,
    Reading,
    Receipt,
    Refused,
    Standing,
)
from outbox.store.connection import Store, Transaction
from outbox.store.intents import Intent
from vendors.stripe import StripeVendor


class Held(Store):
    """A store whose transactions can be made parts of one that stays open: each is a savepoint of
    it then, so that what fails is taken back as its own transaction would have been."""

    held: Transaction | None = None

    @contextmanager
    def transaction(
        self, patience_s: float | None = None, *, planned_once: bool = False
    ) -> Iterator[Transaction]:
        """As the product's."""
        if self.held is None:
            with super().transaction(patience_s, planned_once=planned_once) as tx:
                yield tx
            return
        try:
            with self.held.connection.transaction():
                yield self.held
        except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled) as error:
            raise Busy("another transaction has it in hand") from error


@dataclass
class Side:
    """One of the two: its store, and what the test will know once its transaction is committed."""

    store: Held
    _open: ExitStack | None = None
    _steps: int = 0
    _kept: bool = True
    _then: list[Callable[[], None]] = field(default_factory=list)

    @property
    def is_held(self) -> bool:
        """Whether a transaction is open."""
        return self._open is not None

    def hold(self, steps: int, *, kept: bool) -> None:
        """Begins a transaction that stays open for so many steps and then is kept, or not."""
        self._steps, self._kept = steps, kept
        self._open = ExitStack()
        self.store.held = self._open.enter_context(self.store.transaction())

    def step(self) -> None:
        """One more step was taken: what is held open may have come to its end."""
        if self.is_held:
            self._steps -= 1
            if self._steps < 0:
                self.commit() if self._kept else self.roll_back()

    def commit(self) -> None:
        """Ends it; what was done in it is so."""
        assert self._open is not None
        self.store.held = None
        self._open.close()
        self._open = None
        then, self._then = self._then, []
        for known in then:
            known()

    def roll_back(self) -> None:
        """Ends it; nothing of it ever was."""
        assert self._open is not None
        assert self.store.held is not None
        connection = self.store.held.connection
        self.store.held = None
        connection.execute("ROLLBACK")
        self._open.close()
        self._open, self._then = None, []

    def once_committed(self, known: Callable[[], None]) -> None:
        """Now, or with the commit of what is open."""
        if self.is_held:
            self._then.append(known)
        else:
            known()

    def close(self) -> None:
        """Rolls back what is open and drops the connection."""
        if self.is_held:
            self.roll_back()
        self.store.close()


# -- the world -----------------------------------------------------------------------------------

# What becomes of one attempt: it arrives and is executed (at a vendor that honours the key: once),
# it arrives and is refused without being stored, or it never leaves.
ARRIVES, REFUSED, DROPPED = "arrives", "refused", "dropped"


@dataclass
class Attempt:
    """One claim, and what became of the request that it allowed."""

    row: Intent
    fate: str

    @property
    def number(self) -> int:
        return self.row.lease_no


class World(StripeVendor):
    """Stripe as its ledger knows it: one object a key, landed or declined, and never another."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.objects: dict[UUID, Reading] = {}

    def execute(self, row: Intent, *, lands: bool) -> None:
        """The request arrives under its key; a second time it changes nothing."""
        receipt_id = f"pi_{str(row.id)[:8]}"
        self.objects.setdefault(
            row.id,
            Reading(
                receipt_id=receipt_id,
                standing=Standing.LANDED if lands else Standing.DECLINED,
                business=Business.PAID if lands else Business.FAILED,
                word="succeeded" if lands else "canceled",
                owner=str(row.id),
                amount_minor=row.amount_minor,
                currency=row.currency,
                livemode=False,
                vendor_time=1_780_000_000,
                failure_code="" if lands else "card_declined",
                document=json.dumps({"id": receipt_id}),
            ),
        )

    def landed(self, intent_id: UUID) -> bool:
        """Whether the write took effect."""
        found = self.objects.get(intent_id)
        return found is not None and found.standing is Standing.LANDED

    def answer(self, attempt: Attempt) -> Outcome:
        """What the vendor says to one attempt, whenever it is heard."""
        if attempt.fate == DROPPED:
            return NotSent("connect_refused")
        if attempt.fate == REFUSED:
            return Refused("invalid_request", covers_key=False)
        seen = self.objects[attempt.row.id]
        if seen.standing is Standing.LANDED:
            return Receipt(seen)
        return Refused("card_declined", covers_key=True, reading=seen)

    def silence(self) -> Outcome:
        """What is recorded of an attempt whose answer was not seen in time."""
        return Lost("deadline")

    # -- what the resolvers and a person ask ---------------------------------------------------

    def look_up(self, call: Call, since_epoch_s: int, until_epoch_s: int | None = None) -> LookUp:
        """The whole truth, at once."""
        found = self.objects.get(call.intent_id)
        return Found((found,)) if found else Absent()

    def retrieve(self, call: Call, receipt_id: str) -> LookUp:
        """One object by its id."""
        found = self.objects.get(call.intent_id)
        return Found((found,)) if found and found.receipt_id == receipt_id else Absent()

    def whoami(self, account: Account) -> str:
        """The account is who it says it is."""
        return account.vendor_account
