"""The verifying look at a landed row: for duplicates where no key is honoured, or where the key of
a row that was sent again was new to the vendor; else for what has become of its object."""

from __future__ import annotations

from outbox.outcomes import Found, Standing, Unreadable
from outbox.store import doubt, intents
from outbox.store.connection import Store
from outbox.store.contradictions import contradict
from outbox.store.intents import Intent
from resolvers.directory import Directory
from resolvers.evidence import apply_reading
from resolvers.reading import Reads
from resolvers.resolving import ACTOR


def verify(store: Store, directory: Directory, reads: Reads, row: Intent) -> None:
    """Reads it again, and keeps what that shows."""
    reached = directory.reach(row.vendor, row.account)
    if reached is None or row.receipt_id is None:
        return
    _, _, contract = reached
    receipt_id = row.receipt_id
    sent_anew = row.resends > 0 and row.settled_by != "replay"
    if not contract.can_look_up or (contract.honours_keys and not sent_anew):
        seen = reads.one(row, lambda vendor, call: vendor.retrieve(call, receipt_id))
    else:
        with store.transaction() as tx:
            began_at = intents.now(tx)
        seen = reads.look(row, began_at)
    if isinstance(seen, Unreadable) and not seen.never:
        return
    with store.transaction() as tx:
        current = intents.lock(tx, row.id)
        if current is None:
            return
        if current.version != row.version:
            # Written since: what was read may be older than what is known by now.
            doubt.schedule_verification(tx, [row.id], 0.0)
            return
        if isinstance(seen, Found):
            objects = sorted({r.receipt_id for r in seen.readings if r.standing is Standing.LANDED})
            others = [o for o in objects if o != current.receipt_id]
            raised = others and contradict(
                tx, current, "duplicate", others, "verifying look", found=seen.readings
            )
            for reading in seen.readings:
                if reading.receipt_id == current.receipt_id and not raised:
                    apply_reading(tx, current, reading, actor=ACTOR, source="lookup")
        doubt.verified(tx, row)
