"""Escalation: nothing waits unseen. Within a tick after its TTL or window, a person is asked.

Each part is bounded by time and by what was due when the job began, so that a storm of one kind
never keeps the others, or the job's heartbeat, waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from uuid import UUID

from outbox.states import Status
from outbox.store import escalations, held, intents, looks, overdue, switches
from outbox.store.connection import Store, Transaction
from outbox.store.escalations import Asked
from outbox.store.intents import Intent
from resolvers import parts
from resolvers.decide import reasons_to_escalate, window_end
from resolvers.directory import Directory

_BATCH = 500
# How many rows at once: those of a transaction are locked for its length.
_ASKED = 100
# How many rows of one lane are put off in one statement.
_RESTED = 5000
# After so many ticks a row that waits behind another one is looked at again: not at each tick,
# since there may be many, and soon enough once that one is settled.
_HELD_TICKS = 4
_LANE_HELD = {"why": "others wait behind it in their lane"}


def escalate_once(store: Store, directory: Directory) -> int:
    """Opens what is due; returns how many rows and holders were asked about, or put off."""
    with store.transaction() as tx:
        since = intents.now(tx)
        places = overdue.places(tx, since)
    closed = [place for place in places if place.holder is not None]
    open_ = [place for place in places if place.holder is None]
    budget_s = directory.policy.tick_escalate_s / 2
    work = [
        partial(parts.in_pieces, partial(_sent, store, directory, since), _ASKED, budget_s),
        *(partial(_closed, store, place) for place in closed if not place.asked),
        *(
            partial(
                parts.in_pieces,
                partial(_waiting, store, directory, place, since),
                _ASKED,
                budget_s / len(open_),
            )
            for place in open_
        ),
        partial(_lanes, store, directory),
        partial(_predecessors, store, directory),
        partial(_settled, store),
        partial(_opened, store),
    ]
    return parts.each(work)


def _sent(store: Store, directory: Directory, since: datetime) -> int:
    """Rows in doubt, and such as may never be sent, or cannot be from here."""
    with store.transaction() as tx:
        rows = overdue.claim_sent(tx, since, _ASKED)
        _ask(tx, directory, rows)
    return len(rows)


def _closed(store: Store, place: overdue.Place) -> int:
    """Never sent, and held: one question about the holder, not one for each row."""
    assert place.holder is not None
    with store.transaction() as tx:
        # Whoever opens it again waits for this, and closes the question then.
        switch = switches.hold(tx, place.holder)
        if switch is None:
            return 0
        escalations.open_for_holder(
            tx,
            place.holder,
            ["paused" if switch["kind"] == "pause" else switch["kind"]],
            {"vendor": place.vendor, "account": place.account, "why": switch["reason"]},
        )
    return 1


def _waiting(store: Store, directory: Directory, place: overdue.Place, since: datetime) -> int:
    """Rows of an open account that were never sent: each by itself, but those behind the head of
    their lane share its question."""
    held_s = _HELD_TICKS * directory.policy.tick_escalate_s
    with store.transaction() as tx:
        rows = overdue.claim_waiting(tx, place, since, _ASKED)
        shared: dict[str | None, bool] = {None: False}
        alone: list[Intent] = []
        for row, lane_head in rows:
            if row.lane is not None and row.lane not in shared and lane_head is not None:
                shared[row.lane] = _is_held_by(tx, lane_head)
                if shared[row.lane]:
                    overdue.rest_lane(tx, row.lane, since, in_s=held_s, limit=_RESTED)
            if lane_head is None or not shared[row.lane]:
                alone.append(row)
        _ask(tx, directory, alone)
    return len(rows)


def _is_held_by(tx: Transaction, lane_head: UUID) -> bool:
    """Whether a head that waits for evidence keeps its lane; then it is asked about."""
    head = overdue.lock_head(tx, lane_head)
    if head is None:
        return True  # somebody has it in hand: what comes of that is seen the next time
    if head.state is Status.PENDING:
        return False
    escalations.open_for_intent(tx, head, ["lane_held"], _LANE_HELD)
    return True


def _ask(tx: Transaction, directory: Directory, rows: Sequence[Intent]) -> None:
    now = intents.now(tx)
    asked: list[Asked] = []
    again: dict[UUID, datetime | None] = {}
    for row in rows:
        reasons, again[row.id] = _judged(directory, row, now)
        if reasons:
            asked.append(Asked(row, reasons, {}))
    unread = looks.last_unreadable(
        tx, [one.row.id for one in asked if one.row.absent_looks < one.row.looks]
    )
    for one in asked:
        one.detail["why"] = _why(tx, one.row, unread.get(one.row.id))
    escalations.open_for_intents(tx, asked)
    overdue.arm(tx, again)


def _judged(directory: Directory, row: Intent, now: datetime) -> tuple[list[str], datetime | None]:
    """Why a person is asked about a row now, and when it is due again."""
    unsendable = (
        row.veto is not None
        and row.contradicted_at is None
        and row.doubt == 0
        and row.state in (Status.PENDING, Status.UNKNOWN)
    )
    window = _window_end(directory, row)
    reasons = reasons_to_escalate(
        ttl_at=row.ttl_at,
        window_ends_at=window,
        crashes=row.crashes,
        policy=directory.policy,
        now=now,
        unsendable=unsendable,
    )
    later = [at for at in (row.ttl_at, window) if at is not None and at > now and not unsendable]
    return reasons, min(later) if later else None


def _window_end(directory: Directory, row: Intent) -> datetime | None:
    if row.first_sent_at is None:
        return None
    contract = directory.contract(row.vendor)
    now_said = window_end(row, contract, directory.policy) if contract is not None else None
    return now_said or row.window_ends_at


def _why(tx: Transaction, row: Intent, unread: str | None) -> str:
    if row.veto:
        return row.veto
    if row.state is not Status.PENDING:
        return _unseen(row, unread)
    # Nothing that anybody else does helps such a row, so the question says what is wrong with it.
    return f"never sent: {overdue.last_word(tx, row.id)}" if row.local_failure else "never sent"


def _unseen(row: Intent, unread: str | None) -> str:
    """Why nothing settled it: what the looks came to, the last ``unread`` one among them."""
    said = ["outcome not seen"]
    if row.absent_looks:
        proof = "" if row.absent_first_at else ", which is no proof"
        said.append(f"{row.absent_looks} looks found nothing{proof}")
    if unread:
        said.append(f"what the vendor showed could not be read: {unread}")
    return "; ".join(said)


def _lanes(store: Store, directory: Directory) -> int:
    """Heads in doubt that have kept others waiting for long."""
    with store.transaction() as tx:
        heads = overdue.held_lanes(tx, wait_s=directory.policy.lane_wait_s, limit=_BATCH)
        for head in heads:
            escalations.open_for_intent(tx, head, ["lane_held"], _LANE_HELD)
    return len(heads)


def _predecessors(store: Store, directory: Directory) -> int:
    """Rows that repeat or replace what may have landed."""
    hold_s = _HELD_TICKS * directory.policy.tick_escalate_s
    with store.transaction() as tx:
        claimed = held.claim_held(tx, limit=_BATCH, hold_s=hold_s)
        for successor, predecessor in claimed:
            why = f"intent {predecessor}, which it repeats or replaces, may have landed"
            detail = {"why": why, "predecessor": str(predecessor)}
            escalations.open_for_intent(tx, successor, ["predecessor"], detail)
    return len(claimed)


def _settled(store: Store) -> int:
    """Questions whose intent was settled by what may not close them."""
    with store.transaction() as tx:
        for intent_id in escalations.settled_intents(tx, _BATCH):
            settled = intents.lock(tx, intent_id)
            assert settled is not None
            escalations.close_doubt(tx, settled, by=settled.settled_by or "sweep")
    return 0


def _opened(store: Store) -> int:
    """Questions about a holder that is open again."""
    with store.transaction() as tx:
        return escalations.close_opened(tx, by="sweep")
