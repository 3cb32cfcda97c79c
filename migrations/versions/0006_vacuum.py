"""How soon the ledger's tables are vacuumed and analysed: by less of them than the defaults.

Revision ID: 1_0006
Revises: 1_0005
"""

from __future__ import annotations

from alembic import op

revision = "1_0006"
down_revision = "1_0005"
branch_labels = None
depends_on = None

# What came and went leaves its entries at the head of the indexes by which the next is found, and
# each claim steps over them. The default waits for a fifth of the table: beside ten million settled
# rows, for a million intents. And it leaves the indexes alone while few pages of the table hold
# anything dead, which beside ten million is always.
_CHANGED = {
    "autovacuum_vacuum_scale_factor": "0.005",
    "autovacuum_analyze_scale_factor": "0.02",
    "vacuum_index_cleanup": "on",
}
# Only ever added to: a piece at a time, so that no vacuum finds all of it to be frozen.
_ADDED = {
    "autovacuum_vacuum_insert_scale_factor": "0.05",
    "autovacuum_analyze_scale_factor": "0.05",
}
_SETTINGS = {
    "intents": _CHANGED,
    "deliveries": _CHANGED,
    "attempts": _ADDED,
    "settlements": _ADDED,
    "events": _ADDED,
    # A row for each account, written with each of its claims. A share of so few is nothing: by
    # their number.
    "rates": {"autovacuum_vacuum_scale_factor": "0", "autovacuum_vacuum_threshold": "1000"},
}


def upgrade() -> None:
    for table, settings in _SETTINGS.items():
        said = ", ".join(f"{name} = {value}" for name, value in settings.items())
        op.execute(f"ALTER TABLE outbox.{table} SET ({said})")


def downgrade() -> None:
    for table, settings in _SETTINGS.items():
        op.execute(f"ALTER TABLE outbox.{table} RESET ({', '.join(settings)})")
