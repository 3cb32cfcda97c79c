"""What an account's bucket lacks, in requests: as a time alone it outlived the rate that made it.

Revision ID: 1_0008
Revises: 1_0007
"""

from __future__ import annotations

from alembic import op

revision = "1_0008"
down_revision = "1_0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # A bucket from before is full: at a rate of its own it may owe a burst at the most.
    # `full_at` stays, as when it is full by the rate of whoever took last.
    op.execute(
        "ALTER TABLE outbox.rates "
        "ADD missing float8 NOT NULL DEFAULT 0, "
        "ADD at timestamptz NOT NULL DEFAULT '1970-01-01 00:00+00', "
        "ADD next_at timestamptz, ADD held_until timestamptz, ADD look_at timestamptz"
    )


def downgrade() -> None:
    op.execute(
        "ALTER TABLE outbox.rates DROP missing, DROP at, DROP next_at, DROP held_until, "
        "DROP look_at"
    )
