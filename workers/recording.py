"""Recording what came of the calls: in batches, row by row where a batch fails, and with all that
an outcome asks for beside its own row (pauses, breakers, verifying looks)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from outbox.errors import Busy, Unreachable
from outbox.outcomes import Lost, NotSent, Outcome, Receipt
from outbox.store import doubt, records, switches
from outbox.store.connection import Store, Transaction
from outbox.store.records import Ended
from resolvers import pacing
from resolvers.decide import mismatch
from resolvers.directory import Directory
from workers.breaker import HANDED_BACK, Breaker, verdict_of_probe
from workers.flight import Flight

_log = logging.getLogger(__name__)
_JITTER = 0.2
_FORBIDDEN = 403
# So many rows that cannot be written in their time are waited for, before the rest is put off.
_MOST_BUSY = 2

Result = tuple[Flight, Outcome]


@dataclass(slots=True)
class Left:
    """What could not be written: because the database is ``away``, or because another transaction
    has the row in hand (``held``)."""

    away: list[Result] = field(default_factory=list)
    held: list[Result] = field(default_factory=list)


class Recorder:
    """Writes ended calls. ``probes`` are the rows that a tripped breaker let through; ``jitter``
    gives a number from 0 to 1."""

    def __init__(
        self,
        store: Store,
        directory: Directory,
        *,
        probes: set[UUID],
        jitter: Callable[[], float],
    ) -> None:
        self._store = store
        self._directory = directory
        self._policy = directory.policy
        self._probes = probes
        self._breaker = Breaker(self._policy)
        self._jitter = jitter

    def write(self, batch: list[Result]) -> Left:
        """Returns what could not be written now."""
        first: dict[UUID, Result] = {}
        late: list[Result] = []
        for result in batch:
            if first.setdefault(result[0].intent.id, result) is not result:
                late.append(result)
        alone, held = late, frozenset[UUID]()
        try:
            held = self._write_together([self._ended(*result) for result in first.values()])
        except Busy:
            alone = [*first.values(), *late]
        except Unreachable:
            return Left(away=batch)
        except Exception as error:
            # By its class: the message of a database error quotes the row.
            _log.error("a batch of %d is recorded one by one: %s", len(first), _name(error))
            alone = [*first.values(), *late]
        left = Left(held=[first[intent_id] for intent_id in sorted(held)])
        return self._write_each(alone, set(held), left)

    def _write_each(self, results: list[Result], held: set[UUID], left: Left) -> Left:
        busy = 0
        for position, result in enumerate(results):
            intent_id = result[0].intent.id
            # Each wait for a lock takes its time-out, and the answers behind it wait too.
            kept = intent_id in held or busy >= _MOST_BUSY
            try:
                if not kept:
                    kept = self._write_alone(self._ended(*result))
            except Busy:
                kept, busy = True, busy + 1
            except Unreachable:
                left.away += results[position:]
                return left
            if kept:
                held.add(intent_id)
                left.held.append(result)
        return left

    def _write_together(self, ended: list[Ended]) -> frozenset[UUID]:
        """Returns the intents of which nothing was written: somebody has their row in hand."""
        with self._store.transaction(planned_once=True) as tx:
            held = records.record(tx, ended).held
            written = [one for one in ended if one.intent.id not in held]
            self._look_after(tx, written)
        self._push_back(written)
        return held

    def _push_back(self, ended: list[Ended]) -> None:
        """A vendor that asks one request to wait asks all of its account: none leaves before. In a
        transaction of its own: a claim holds the bucket's lock, and may
        wait for a row that is written here."""
        for one in ended:
            row, outcome = one.intent, one.outcome
            if not (isinstance(outcome, NotSent) and outcome.throttled and outcome.retry_after_s):
                continue
            try:
                with self._store.transaction() as tx:
                    where = (row.vendor, row.account)
                    pacing.leave_alone(tx, self._directory, where, outcome.retry_after_s)
            except Unreachable:
                return  # the answers are written; the next send is told the same

    def _write_alone(self, one: Ended) -> bool:
        """Whether it must be offered again: somebody has its row in hand."""
        try:
            return bool(self._write_together([one]))
        except Unreachable:
            raise
        except Exception as error:
            _log.error("the answer of %s could not be recorded: %s", one.intent.id, _name(error))
            lost = Lost(f"the answer could not be recorded: {_name(error)}")
        try:
            return bool(self._write_together([Ended(one.intent, lost, look_in_s=one.look_in_s)]))
        except Unreachable:
            raise
        except Exception as error:
            # Its lease ends, and the row is in doubt like that of any lost worker.
            _log.error("%s could not be put in doubt: %s", one.intent.id, _name(error))
            return False

    def _ended(self, flight: Flight, outcome: Outcome) -> Ended:
        policy, row = self._policy, flight.intent
        back_off = min(
            policy.not_sent_first_s * 2.0 ** min(row.not_sent_count, 30), policy.not_sent_max_s
        )
        back_off *= 1 + _JITTER * (2 * self._jitter() - 1)
        look_in_s = policy.looks_s[0]
        if isinstance(outcome, NotSent):
            if outcome.reason == HANDED_BACK:
                back_off = 0.0
            elif outcome.retry_after_s is not None:
                back_off = max(back_off, outcome.retry_after_s)
                look_in_s = max(look_in_s, outcome.retry_after_s)
        # An answer that is ours and is not what was asked for needs a person.
        wrong = mismatch(row, outcome.reading) if isinstance(outcome, Receipt) else None
        return Ended(
            row,
            outcome,
            row.last_sent_at,
            back_off_s=back_off,
            look_in_s=look_in_s,
            contradicts=(wrong or "").replace(" ", "_"),
        )

    def _look_after(self, tx: Transaction, ended: list[Ended]) -> None:
        """Pauses, breakers and verifying looks that the outcomes ask for."""
        policy = self._policy
        for one in ended:
            row, outcome = one.intent, one.outcome
            where = (row.vendor, row.account)
            if isinstance(outcome, NotSent) and outcome.pause:
                if outcome.wire.http_status == _FORBIDDEN and doubt.is_forbidden_alone(tx, row):
                    doubt.forbid(tx, row, by="sender")
                else:
                    switches.pause(tx, *where, kind="pause", reason=outcome.reason, by="sender")
            elif row.id in self._probes:
                self._probes.discard(row.id)
                passed = verdict_of_probe(outcome)
                if passed is False:
                    switches.slow_breaker(tx, *where, max_s=policy.breaker_probe_max_s)
                elif passed:
                    switches.close_breaker(tx, *where)
                else:
                    switches.give_probe_back(tx, *where)
            elif self._breaker.count(*where, outcome, time.monotonic()):
                switches.trip_breaker(
                    tx, *where, reason="most calls fail", probe_s=policy.breaker_probe_s
                )
            contract = self._directory.contract(row.vendor)
            if isinstance(outcome, Receipt) and contract is not None and contract.can_look_up:
                # Where an earlier send may have landed, a key that was new to the vendor may have
                # been forgotten there.
                is_replay = outcome.wire.replayed or row.doubt == 0
                if not (contract.honours_keys and is_replay):
                    after_s = policy.lease_s + policy.quiet_after_s(contract)
                    doubt.schedule_verification(tx, [row.id], after_s)


def _name(error: BaseException) -> str:
    return type(error).__name__
