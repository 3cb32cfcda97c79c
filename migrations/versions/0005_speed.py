"""What each write need not pay for: three checks and two foreign keys that hold by other means.

Revision ID: 1_0005
Revises: 1_0004
"""

from __future__ import annotations

from alembic import op

revision = "1_0005"
down_revision = "1_0004"
branch_labels = None
depends_on = None

_TEXTS = ("identity", "guard", "args")


def _is_object(column: str) -> str:
    """Text that everybody can read as an object: no deeper than what enqueue takes."""
    return (
        f"octet_length({column}) <= 1048576 AND jsonb_typeof({column}::jsonb) = 'object' "
        f"AND NOT jsonb_path_exists({column}::jsonb, '$.**{{33}}')"
    )


_READABLE = {
    "identity": _is_object("identity"),
    "guard": _is_object("guard"),
    "args": f"args_codec <> 'plain' OR {_is_object('args')}",
}
_NEW = (
    " AND ".join(f"COALESCE({rule}, true)" for rule in _READABLE.values())
    .replace("(identity", "(NEW.identity")
    .replace("(guard", "(NEW.guard")
    .replace("(args", "(NEW.args")
)

# A check is made again by each claim and each end of an attempt, of texts that neither writes.
READABLE = f"""
ALTER TABLE outbox.intents DROP CONSTRAINT identity_readable, DROP CONSTRAINT guard_readable,
    DROP CONSTRAINT args_readable;
CREATE FUNCTION outbox.refuse_unreadable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'identity, guard and args are JSON objects of 1 MiB and 32 levels at the most'
        USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER intents_readable BEFORE INSERT OR UPDATE OF identity, guard, args, args_codec
    ON outbox.intents FOR EACH ROW WHEN (NOT ({_NEW})) EXECUTE FUNCTION outbox.refuse_unreadable();
"""

# Attempts and settlements are written by the statement that has their intent's row in hand, and no
# intent is ever deleted; `outbox doctor` looks for one of no intent all the same.
BESIDE = """
ALTER TABLE outbox.attempts DROP CONSTRAINT attempts_intent_id_fkey;
ALTER TABLE outbox.settlements DROP CONSTRAINT settlements_intent_id_fkey;
"""


def upgrade() -> None:
    for block in (READABLE, BESIDE):
        op.execute(block)


def downgrade() -> None:
    for table in ("attempts", "settlements"):
        op.execute(
            f"ALTER TABLE outbox.{table} ADD CONSTRAINT {table}_intent_id_fkey "
            "FOREIGN KEY (intent_id) REFERENCES outbox.intents (id)"
        )
    op.execute("DROP TRIGGER intents_readable ON outbox.intents")
    op.execute("DROP FUNCTION outbox.refuse_unreadable()")
    for name, rule in _READABLE.items():
        op.execute(f"ALTER TABLE outbox.intents ADD CONSTRAINT {name}_readable CHECK ({rule})")
