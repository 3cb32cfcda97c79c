"""The epoch of a conversation: which turn of a run may still start new writes."""

from __future__ import annotations

from outbox.store.connection import CONSUMERS_LOCK
from outbox.store.enqueueing import Steps

_END = (
    "UPDATE outbox.epochs SET ended_at = outbox.clock() WHERE tenant = CAST(%(tenant)s AS text) "
    "AND run_id = CAST(%(run_id)s AS text) AND epoch <> CAST(%(epoch)s AS text) "
    "AND ended_at IS NULL"
)
# Turns that enqueued before the first call of advance_epoch end with it.
_END_EARLIER = (
    "INSERT INTO outbox.epochs (tenant, run_id, epoch, started_at, ended_at) "
    "SELECT tenant, run_id, epoch, min(created_at), outbox.clock() FROM outbox.intents "
    "WHERE tenant = CAST(%(tenant)s AS text) AND run_id = CAST(%(run_id)s AS text) "
    "AND epoch <> '' AND epoch <> CAST(%(epoch)s AS text) "
    "GROUP BY tenant, run_id, epoch ON CONFLICT DO NOTHING"
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
    "made AS ("
    "INSERT INTO outbox.settlements (intent_id, version, kind, status, told, settled_by, at) "
    "SELECT id, version, 'settled', 'cancelled', 'cancelled', 'epoch', settled_at FROM gone "
    "RETURNING id), delivered AS (INSERT INTO outbox.deliveries (consumer, settlement_id) "
    "SELECT c.name, made.id FROM made CROSS JOIN outbox.consumers c), "
    "logged AS (INSERT INTO outbox.events (intent_id, at, actor, kind, from_status, to_status, "
    "reason) SELECT id, outbox.clock(), 'agent', 'cancelled', was, 'cancelled', "
    "'the epoch is over' FROM gone) SELECT id FROM gone"
)
# Two turns that begin at once take turns: the later one ends the earlier one.
_LOCK = (
    "SELECT pg_advisory_xact_lock(hashtextextended(CAST(%(tenant)s AS text) || '/' || "
    "CAST(%(run_id)s AS text), 0)), pg_advisory_xact_lock_shared(CAST(%(lock)s AS bigint))"
)


def advance(tenant: str, run_id: str, epoch: str) -> Steps:
    """Ends the run's other epochs, begins ``epoch``, cancels what was never sent; the count."""
    params = {"tenant": tenant, "run_id": run_id, "epoch": epoch}
    yield _LOCK, {**params, "lock": CONSUMERS_LOCK}
    yield _END, params
    yield _END_EARLIER, params
    yield _BEGIN, params
    rows = yield _CANCEL, params
    return len(rows)
