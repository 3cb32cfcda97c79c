"""What each write need not pay for: checks of what only an insert writes, and the index of runs.

Postgres reads the stored text of every CHECK of a table for each statement that writes to it, and
this one's was 26 kB: a sixth of what an enqueue costs the server. The checks that are only written
shorter are not validated anew: their rows were held to the very same by those that they replace.

It holds outbox.intents alone while two indexes are built, about three seconds for a million rows
that are in memory: on a large ledger while nobody writes.

Revision ID: 1_0007
Revises: 1_0006
"""

from __future__ import annotations

from alembic import op

revision = "1_0007"
down_revision = "1_0006"
branch_labels = None
depends_on = None


_EARLIEST, _LATEST = "'1970-01-01 00:00+00'", "'3000-01-01 00:00+00'"


def _is_object(column: str) -> str:
    """Text that everybody can read as an object, no deeper than what enqueue takes: as it was, but
    read once."""
    return (
        f"octet_length({column}) <= 1048576 AND jsonb_path_exists({column}::jsonb, "
        """'strict $ ? (@.type() == "object" && !exists(@.**{33}))')"""
    )


# What the trigger is for: no claim and no end of an attempt sets any of them.
_COLUMNS = {
    "created_at": "timestamptz", "ttl_s": "float8", "once_per": "text", "on_doubt": "text",
    "occurrence": "integer", "key": "bytea", "fingerprint": "bytea", "request_sha256": "bytea",
    "tenant": "text", "lane": "text", "identity": "text", "guard": "text", "args": "text",
    "args_codec": "text",
}  # fmt: skip
# By the names of the constraints that they were: whoever is refused is told the same.
_MOVED = {
    "intents_once_per_check": "once_per IN ('run', 'epoch', 'tenant')",
    "intents_on_doubt_check": "on_doubt IN ('hold', 'continue')",
    "intents_occurrence_check": "occurrence >= 0",
    "intents_key_check": "octet_length(key) = 32",
    "intents_fingerprint_check": "octet_length(fingerprint) = 32",
    "intents_request_sha256_check": "octet_length(request_sha256) = 32",
    "intents_ttl_s_check": "ttl_s > 0",
    "ttl_bounded": "ttl_s <= 366 * 86400.0",
    "lane_of_its_tenant": "lane IS NULL OR settled_at IS NOT NULL OR split_part(lane, '/', 3) "
    "= left(encode(sha256(convert_to(tenant, 'UTF8')), 'hex'), 32)",
}
_BESIDE = {
    "intents_times_bounded": f"created_at > {_EARLIEST} AND created_at < {_LATEST}",
    "identity_readable": _is_object("identity"),
    "guard_readable": _is_object("guard"),
    "args_readable": f"args_codec <> 'plain' OR {_is_object('args')}",
}
_PARAMETERS = {**_COLUMNS, "settled_at": "timestamptz"}
_CASES = " ".join(f"WHEN NOT ({rule}) THEN '{name}'" for name, rule in (_MOVED | _BESIDE).items())
_OF_NEW = ", ".join(f"NEW.{name}" for name in _PARAMETERS)
# A function whose body was parsed when it was made: no search_path of a caller's puts another
# function or operator into a rule. It becomes part of the one expression of the trigger, which runs
# as whoever writes: the roles may call it even where nobody may call a new function by default.
READABLE = f"""
CREATE FUNCTION outbox.broken_rule({", ".join(f"{n} {kind}" for n, kind in _PARAMETERS.items())})
    RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT CASE {_CASES} END;
END;
DROP TRIGGER intents_readable ON outbox.intents;
CREATE OR REPLACE FUNCTION outbox.refuse_unreadable() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    -- Named in full: a type of that name might be first on a caller's path.
    broken pg_catalog.text := outbox.broken_rule({_OF_NEW});
BEGIN
    IF broken IS NOT NULL THEN
        RAISE EXCEPTION 'new row for relation "%" violates check constraint "%"',
            TG_TABLE_NAME, broken
            USING ERRCODE = 'check_violation', CONSTRAINT = broken, TABLE = TG_TABLE_NAME,
                SCHEMA = TG_TABLE_SCHEMA;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER intents_readable BEFORE INSERT OR UPDATE OF {", ".join(_COLUMNS)}
    ON outbox.intents FOR EACH ROW EXECUTE FUNCTION outbox.refuse_unreadable();
DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['outbox_agent', 'outbox_worker'] LOOP
        IF EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION outbox.broken_rule TO %I', name);
        END IF;
    END LOOP;
END $$;
"""

_TIMES = (
    "due_at, ttl_at, window_ends_at, escalate_at, verify_at, first_sent_at, last_sent_at, "
    "last_lease_end, absent_first_at, absent_last_at, lease_until, resolver_until, settled_at, "
    "contradicted_at, told_at, retracted_at"
)


def _was_bounded(columns: str) -> str:
    return f"GREATEST({columns}) < {_LATEST} AND LEAST({columns}) > {_EARLIEST}"


def _are_bounded(columns: str) -> str:
    """The same, with each column named once. What is NULL has no say in it, as before."""
    bounds = f"({_EARLIEST},{_LATEST})".replace("'", "")
    return f"'{bounds}'::tstzrange @> ALL (ARRAY[{columns}])"


def _is_one_of(
    column: str, words: str, rest: str = "{}", *, never: bool = False
) -> tuple[str, str]:
    """The rule as it was and as it is: of an IN each word is kept as a constant with a type and a
    collation of its own, and a constant array is a single one."""
    each = ", ".join(f"'{word}'" for word in words.split(","))
    was = f"{column} {'NOT IN' if never else 'IN'} ({each})"
    now = f"{column} {'<> ALL' if never else '= ANY'} ('{{{words}}}')"
    return rest.format(was), rest.format(now)


_SHORTER = {
    "intents_status_check": _is_one_of(
        "status",
        "awaiting_approval,pending,in_flight,unknown,retryable,succeeded,failed_poison,cancelled",
    ),
    "intents_business_status_check": _is_one_of(
        "business_status", "paid,pending,action_required,failed,reversed,other"
    ),
    "intents_mode_check": _is_one_of("mode", "live,test"),
    "never_sent": _is_one_of(
        "status", "awaiting_approval,pending,cancelled", "first_sent_at IS NULL OR {}", never=True
    ),
    "sent_has_a_time": _is_one_of(
        "status", "in_flight,unknown,retryable", "first_sent_at IS NOT NULL OR {}", never=True
    ),
    "settled_has_a_time": _is_one_of(
        "status", "succeeded,failed_poison,cancelled", "({}) = (settled_at IS NOT NULL)"
    ),
    "unsettled_has_no_receipt": _is_one_of(
        "status", "succeeded,failed_poison", "receipt_id IS NULL OR {}"
    ),
    "intents_times_bounded": (_was_bounded(f"created_at, {_TIMES}"), _are_bounded(_TIMES)),
}

# Each row is in the one or in the other: the run's own index has nothing to enter for a row that
# has not been told, and such a row is written three times. What guards the twin begins with the run
# for that; it guards the very same.
_NO_REPEAT = "occurrence = 0 AND supersedes IS NULL"
RUNS = f"""
DROP INDEX outbox.intents_run, outbox.intents_twin;
CREATE UNIQUE INDEX intents_twin
    ON outbox.intents (tenant, run_id, vendor, account, tool, fingerprint)
    WHERE told_at IS NULL AND {_NO_REPEAT};
CREATE INDEX intents_run ON outbox.intents (tenant, run_id)
    WHERE told_at IS NOT NULL OR occurrence <> 0 OR supersedes IS NOT NULL;
"""
_RUNS_BEFORE = f"""
DROP INDEX outbox.intents_run, outbox.intents_twin;
CREATE UNIQUE INDEX intents_twin
    ON outbox.intents (tenant, vendor, account, run_id, tool, fingerprint)
    WHERE told_at IS NULL AND {_NO_REPEAT};
CREATE INDEX intents_run ON outbox.intents (tenant, run_id, epoch);
"""


def upgrade() -> None:
    changes = [f"DROP CONSTRAINT {name}" for name in (*_MOVED, *_SHORTER)]
    changes += [
        f"ADD CONSTRAINT {name} CHECK ({rule}) NOT VALID" for name, (_, rule) in _SHORTER.items()
    ]
    op.execute(f"ALTER TABLE outbox.intents {', '.join(changes)}")
    op.execute(READABLE)
    op.execute(RUNS)


# As the revision before had it.
def _was_object(column: str) -> str:
    return (
        f"octet_length({column}) <= 1048576 AND jsonb_typeof({column}::jsonb) = 'object' "
        f"AND NOT jsonb_path_exists({column}::jsonb, '$.**{{33}}')"
    )


_WHEN = " AND ".join(
    f"COALESCE({rule}, true)"
    for rule in (
        _was_object("NEW.identity"),
        _was_object("NEW.guard"),
        f"NEW.args_codec <> 'plain' OR {_was_object('NEW.args')}",
    )
)
_READABLE_BEFORE = f"""
DROP TRIGGER intents_readable ON outbox.intents;
CREATE OR REPLACE FUNCTION outbox.refuse_unreadable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'identity, guard and args are JSON objects of 1 MiB and 32 levels at the most'
        USING ERRCODE = 'check_violation';
END $$;
DROP FUNCTION outbox.broken_rule;
CREATE TRIGGER intents_readable BEFORE INSERT OR UPDATE OF identity, guard, args, args_codec
    ON outbox.intents FOR EACH ROW WHEN (NOT ({_WHEN})) EXECUTE FUNCTION outbox.refuse_unreadable();
"""


def downgrade() -> None:
    rules = _MOVED | {name: rule for name, (rule, _) in _SHORTER.items()}
    changes = [f"DROP CONSTRAINT {name}" for name in _SHORTER]
    changes += [f"ADD CONSTRAINT {name} CHECK ({rule})" for name, rule in rules.items()]
    op.execute(_RUNS_BEFORE)
    op.execute(_READABLE_BEFORE)
    op.execute(f"ALTER TABLE outbox.intents {', '.join(changes)}")
