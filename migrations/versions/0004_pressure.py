"""How many intents wait, counted from an index alone, and what an account's rate has left.

Revision ID: 1_0004
Revises: 1_0003
"""

from __future__ import annotations

from alembic import op

revision = "1_0004"
down_revision = "1_0003"
branch_labels = None
depends_on = None

DEPTH = """
-- What was recorded and has not left, of a tenant and of each of its tools. A row is in them from
-- its enqueue to its first claim.
CREATE INDEX intents_waiting ON outbox.intents (tenant, tool)
    WHERE status IN ('awaiting_approval', 'pending');
-- The tenant beside it, because an agent's login asks of each row whose it is.
CREATE INDEX intents_waiting_lane ON outbox.intents (lane) INCLUDE (tenant)
    WHERE lane IS NOT NULL AND status IN ('awaiting_approval', 'pending');
"""

RATES = """
-- The bucket of one (vendor, account): the moment at which it is full again if nothing more is
-- taken. How fast it fills and what it holds are settings, and not here. Small and written often:
-- room in its page keeps each write out of the index.
CREATE TABLE outbox.rates (
    gate_prefix text COLLATE "C" PRIMARY KEY,
    full_at timestamptz NOT NULL
) WITH (fillfactor = 20);
"""

ROLES = """
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'outbox_worker') THEN
        GRANT SELECT, INSERT, UPDATE ON outbox.rates TO outbox_worker;
    END IF;
END $$;
"""


def upgrade() -> None:
    for block in (DEPTH, RATES, ROLES):
        op.execute(block)


def downgrade() -> None:
    op.execute("DROP TABLE outbox.rates")
    op.execute("DROP INDEX outbox.intents_waiting_lane")
    op.execute("DROP INDEX outbox.intents_waiting")
