"""Deciding rows in doubt by what looks have shown, and writing that: many in one transaction."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import assert_never
from uuid import UUID

from outbox.contract import VendorContract
from outbox.errors import Busy, Unreachable
from outbox.outcomes import Found, LookUp, Unreadable
from outbox.states import Event
from outbox.store import doubt, intents, looks, neighbours, switches
from outbox.store.connection import Store, Transaction
from outbox.store.contradictions import contradict
from outbox.store.intents import Intent
from outbox.store.looks import Looked
from outbox.store.moves import Change, Moved, Settled, apply
from resolvers.decide import (
    Contradict,
    Decision,
    Evidence,
    Resend,
    Settle,
    Wait,
    decide,
    window_end,
)
from resolvers.directory import Directory
from resolvers.evidence import apply_reading

_log = logging.getLogger(__name__)
ACTOR = "resolver"

Looks = Mapping[UUID, LookUp]


@dataclass
class _Piece:
    """Rows of one vendor that are decided in one transaction."""

    tx: Transaction
    contract: VendorContract
    began_at: datetime
    now: datetime
    asked: Mapping[UUID, looks.Question]
    paused: Mapping[str, bool]
    looked: list[Looked] = field(default_factory=list)
    settled: Settled = field(default_factory=Settled)


class Resolving:
    """Decides and moves; never reads at a vendor."""

    def __init__(self, store: Store, directory: Directory) -> None:
        self._store = store
        self._directory = directory

    def resolve(
        self, rows: Sequence[Intent], seen: Looks, contract: VendorContract, began_at: datetime
    ) -> None:
        """Decides rows of one vendor, as they were read, each by its look (none: it needs none)
        that began at ``began_at``. A row that was written since is left as it is. Where the whole
        cannot be written, each row is by itself: an odd one takes no other with it. Raises what
        kept the last such row."""
        if len(rows) == 1:
            self._write(rows, seen, contract, began_at)
            return
        try:
            self._write(rows, seen, contract, began_at)
            return
        except Unreachable as error:
            if not isinstance(error, Busy):
                raise
        except Exception as error:
            # By its class: the message may quote a row.
            _log.warning("%d rows are decided one by one: %s", len(rows), type(error).__name__)
        self._write_each(rows, seen, contract, began_at)

    def pause(self, vendor: str, account: str, reason: str) -> None:
        """The account waits for a person: its credentials are refused."""
        with self._store.transaction() as tx:
            switches.pause(tx, vendor, account, kind="pause", reason=reason, by=ACTOR)

    def _write_each(
        self, rows: Sequence[Intent], seen: Looks, contract: VendorContract, began_at: datetime
    ) -> None:
        failed: Exception | None = None
        for row in rows:
            try:
                self._write([row], seen, contract, began_at)
            except (Busy, Moved):
                continue  # its hold runs out, and it is looked at again
            except Unreachable:
                raise
            except Exception as error:
                failed = error
        if failed is not None:
            raise failed

    def _write(
        self, rows: Sequence[Intent], seen: Looks, contract: VendorContract, began_at: datetime
    ) -> None:
        with self._store.transaction() as tx:
            current = neighbours.lock(tx, list(rows))
            doubted = switches.clock_is_doubted(tx)
            gates = sorted({row.gate for row in current})
            piece = _Piece(
                tx=tx,
                contract=contract,
                began_at=began_at,
                now=intents.now(tx),
                asked=looks.questions(tx, [row.id for row in current]),
                paused={gate: doubted or switches.is_closed(tx, gate) for gate in gates},
            )
            for row in current:
                self._decide(piece, row, seen.get(row.id))
            piece.settled.write(tx)
            looks.note_looks(tx, piece.looked, by=ACTOR)

    def _decide(self, piece: _Piece, row: Intent, look: LookUp | None) -> None:
        policy = self._directory.policy
        end = window_end(row, piece.contract, policy)
        if end is not None and end != row.window_ends_at:
            row = doubt.shorten_window(piece.tx, row, end)
        evidence = Evidence(
            look=look,
            began_at=piece.began_at,
            paused=piece.paused[row.gate],
            person_is_looking=piece.asked.get(row.id) == "acknowledged",
            escalated=row.id in piece.asked,
            unsendable=self._directory.unsendable(row) is not None,
        )
        self._act(piece, row, look, decide(row, evidence, piece.contract, policy, piece.now))

    def _act(self, piece: _Piece, row: Intent, look: LookUp | None, decision: Decision) -> None:
        tx = piece.tx
        match decision:
            case Settle(reading):
                apply_reading(
                    tx, row, reading, actor=ACTOR, source="lookup", together=piece.settled
                )
            case Contradict(reason, objects):
                found = look.readings if isinstance(look, Found) else ()
                contradict(tx, row, reason, list(objects), "look-up", found=found)
                written = intents.lock(tx, row.id)
                assert written is not None
                later = Wait(self._directory.policy.look_after_page_s)
                piece.looked.append(_looked(written, piece.began_at, later))
            case Resend(confirmed_absent):
                apply(
                    tx,
                    row,
                    Event.RESEND_APPROVED,
                    Change(
                        actor=ACTOR,
                        reason="absence confirmed" if confirmed_absent else "same key",
                        confirmed_absent=confirmed_absent,
                        due_in_s=0.0,
                        resends=1,
                    ),
                )
            case Wait():
                unread = look.reason if isinstance(look, Unreadable) else None
                piece.looked.append(_looked(row, piece.began_at, decision, unread))
            case _:
                assert_never(decision)


def _looked(row: Intent, began_at: datetime, decision: Wait, unread: str | None = None) -> Looked:
    return Looked(
        intent_id=row.id,
        version=row.version,
        due_in_s=decision.due_in_s,
        absent=decision.absent,
        quiet_absence_at=began_at if decision.quiet_absence else None,
        unread=unread,
    )
