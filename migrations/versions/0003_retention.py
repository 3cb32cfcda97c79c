"""Retention: what is over is found by its age, and only what is nobody's may be deleted.

Revision ID: 1_0003
Revises: 1_0002
"""

from __future__ import annotations

from alembic import op

revision = "1_0003"
down_revision = "1_0002"
branch_labels = None
depends_on = None

INDEXES = """
-- Each holds what may be pruned one day and nothing else: what has been emptied leaves it.
CREATE INDEX intents_retained ON outbox.intents (settled_at, id) WHERE settled_at IS NOT NULL
    AND (args IS NOT NULL OR request IS NOT NULL OR receipt IS NOT NULL);
CREATE INDEX inbox_matched ON outbox.webhook_inbox (received_at, id)
    WHERE body IS NOT NULL AND intent_id IS NOT NULL;
CREATE INDEX inbox_unmatched ON outbox.webhook_inbox (received_at, id)
    WHERE intent_id IS NULL AND due_at IS NULL AND (body IS NOT NULL OR state = 'foreign');
"""

KEPT = """
-- An event of ours stays, whoever deletes: it is evidence, and its id says that it came before.
CREATE TRIGGER inbox_kept BEFORE DELETE ON outbox.webhook_inbox
    FOR EACH ROW WHEN (OLD.state <> 'foreign') EXECUTE FUNCTION outbox.refuse_change();
"""

ROLES = """
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'outbox_worker') THEN
        GRANT DELETE ON outbox.webhook_inbox TO outbox_worker;
    END IF;
END $$;
"""


def upgrade() -> None:
    for block in (INDEXES, KEPT, ROLES):
        op.execute(block)


def downgrade() -> None:
    op.execute("DROP TRIGGER inbox_kept ON outbox.webhook_inbox")
    op.execute("DROP INDEX outbox.intents_retained, outbox.inbox_matched, outbox.inbox_unmatched")
    op.execute(
        """
        DO $$
        BEGIN
            IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'outbox_worker') THEN
                REVOKE DELETE ON outbox.webhook_inbox FROM outbox_worker;
            END IF;
        END $$;
        """
    )
