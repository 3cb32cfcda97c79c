"""The epoch of a conversation: which turn of a run may still start new writes."""

from __future__ import annotations

from outbox.errors import StaleEpoch
from outbox.store.callers import Steps
from outbox.store.settlements import SHARE_CONSUMERS

_END = (
    "UPDATE outbox.epochs SET ended_at = outbox.clock() WHERE tenant = CAST(%(tenant)s AS text) "
    "AND run_id = CAST(%(run_id)s AS text) AND epoch <> CAST(%(epoch)s AS text) "
    "AND ended_at IS NULL"
)
# A turn that is delivered again after its successor began must not end the successor.
_OVER = (
    "SELECT epoch FROM outbox.epochs WHERE tenant = CAST(%(tenant)s AS text) "
    "AND run_id = CAST(%(run_id)s AS text) AND epoch = CAST(%(epoch)s AS text) "
    "AND ended_at IS NOT NULL"
)
_BEGIN = (
    "INSERT INTO outbox.epochs (tenant, run_id, epoch, started_at) VALUES "
    "(CAST(%(tenant)s AS text), CAST(%(run_id)s AS text), CAST(%(epoch)s AS text), outbox.clock()) "
    "ON CONFLICT (tenant, run_id, epoch) DO NOTHING"
)
_CANCEL = (
    "WITH due AS (SELECT id, status FROM outbox.intents "
    "WHERE tenant = CAST(%(tenant)s AS text) AND run_id = CAST(%(run_id)s AS text) "
    "AND epoch <> CAST(%(epoch)s AS text) AND epoch <> '' AND once_per = 'epoch' "
    "AND status IN ('pending', 'awaiting_approval') AND side_effect <> 'compensation' "
    "ORDER BY id FOR UPDATE), gone AS (UPDATE outbox.intents i SET status = 'cancelled', "
    "version = version + 1, settled_at = outbox.clock(), settled_by = 'epoch', escalate_at = NULL "
    "FROM due WHERE i.id = due.id RETURNING i.id, i.version, i.settled_at, due.status AS was), "
    "logged AS (INSERT INTO outbox.events (intent_id, at, actor, kind, from_status, to_status, "
    "reason) SELECT id, outbox.clock(), 'agent', 'cancelled', was, 'cancelled', "
    "'the epoch is over' FROM gone) "
    "INSERT INTO outbox.settlements (intent_id, version, kind, status, told, settled_by, at) "
    "SELECT id, version, 'settled', 'cancelled', 'cancelled', 'epoch', settled_at FROM gone "
    "RETURNING id"
)
# A statement of its own: the policy on deliveries must see the settlements that they are of.
_DELIVER = (
    "INSERT INTO outbox.deliveries (consumer, settlement_id) "
    "SELECT c.name, s.id FROM outbox.settlements s CROSS JOIN outbox.consumers c "
    "WHERE s.id = ANY(CAST(%(made)s AS bigint[]))"
)
# Locked by whoever hands results to every consumer in a caller's transaction. Where the caller's
# snapshot is older than a registration, Postgres refuses the lock: the caller repeats, and sees it.
_KNOWN_TO_ALL = "SELECT made FROM outbox.registrations FOR SHARE"
# Two turns that begin at once take turns: the later one ends the earlier one.
_LOCK = (
    "SELECT pg_advisory_xact_lock(hashtextextended(CAST(%(tenant)s AS text) || '/' || "
    "CAST(%(run_id)s AS text), 0))"
)


def advance(tenant: str, run_id: str, epoch: str) -> Steps:
    """Ends the run's current epoch, begins ``epoch``, cancels what was never sent; the count.
    Raises ``StaleEpoch`` for one that is over already, and ``RetryTransaction`` where the caller's
    snapshot hides a consumer."""
    params = {"tenant": tenant, "run_id": run_id, "epoch": epoch}
    yield _LOCK, params
    yield SHARE_CONSUMERS, {}
    over = yield _OVER, params
    if over:
        raise StaleEpoch(run_id, epoch)
    yield _END, params
    yield _BEGIN, params
    rows = yield _CANCEL, params
    if rows:
        yield _KNOWN_TO_ALL, {}
        yield _DELIVER, {"made": [row["id"] for row in rows]}
    return len(rows)
