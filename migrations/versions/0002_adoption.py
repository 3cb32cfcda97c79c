"""Results that were taken back, consumers that fail, values that are sealed, and teams kept apart.

Revision ID: 1_0002
Revises: 1_0001
"""

from __future__ import annotations

from alembic import op

revision = "1_0002"
down_revision = "1_0001"
branch_labels = None
depends_on = None

TOLD = """
ALTER TABLE outbox.intents
    -- The path names the vendor's object, a join key. Noted where the request is sealed, which may
    -- open no more, and when it is emptied.
    ADD COLUMN request_path text,
    -- When the word that was told stopped being true: a contradiction or a ruling. The run has the
    -- present word again once told_at is later.
    ADD COLUMN retracted_at timestamptz,
    -- The last try failed here, before any byte left: nothing that a vendor or a switch does helps
    -- the row. The release before leaves it as it is, and false is what it then means.
    ADD COLUMN local_failure boolean NOT NULL DEFAULT false,
    -- By what the vendor knows the frozen request again: where it has its key, and its marks. Empty
    -- where the adapter knows, which is all that the release before can send.
    ADD COLUMN carries text NOT NULL DEFAULT '';
-- Few rows: a word that was taken back guards its twin too, and holds one that waits.
CREATE INDEX intents_retracted
    ON outbox.intents (tenant, vendor, account, run_id, tool, fingerprint)
    WHERE retracted_at IS NOT NULL AND occurrence = 0 AND supersedes IS NULL;
CREATE INDEX intents_successors ON outbox.intents (supersedes)
    WHERE supersedes IS NOT NULL AND status IN ('pending', 'retryable');
-- Rows that wait to be sent, by account: those of one that is closed are skipped at once. The
-- index of all that may be escalated shrinks by them: the release before reads a little slower.
CREATE INDEX intents_escalate_waiting ON outbox.intents (vendor, account, escalate_at)
    WHERE escalate_at IS NOT NULL AND status = 'pending' AND veto IS NULL AND NOT local_failure;
DROP INDEX outbox.intents_escalate;
CREATE INDEX intents_escalate ON outbox.intents (escalate_at)
    WHERE escalate_at IS NOT NULL AND settled_at IS NULL
      AND (status <> 'pending' OR veto IS NOT NULL OR local_failure);
"""

LANES = """
-- A lane begins with its account, as the gate does, so that a claim skips all lanes of one that is
-- closed; then comes its tenant, so that no row of one stands in a lane of another. The release
-- before writes them without: its rows are brought to the one form, or two rows of one lane would
-- pass each other while both releases run.
CREATE FUNCTION outbox.lane_with_account() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.lane := split_part(NEW.gate, '/', 1) || '/' || split_part(NEW.gate, '/', 2) || '/'
        || left(encode(sha256(convert_to(NEW.tenant, 'UTF8')), 'hex'), 32) || '/' || NEW.lane;
    RETURN NEW;
END $$;
CREATE TRIGGER intents_lane BEFORE INSERT ON outbox.intents
    FOR EACH ROW WHEN (NEW.lane IS NOT NULL AND strpos(NEW.lane, '/') = 0)
    EXECUTE FUNCTION outbox.lane_with_account();
UPDATE outbox.intents
    SET lane = split_part(gate, '/', 1) || '/' || split_part(gate, '/', 2) || '/'
        || left(encode(sha256(convert_to(tenant, 'UTF8')), 'hex'), 32) || '/' || lane
    WHERE lane IS NOT NULL AND strpos(lane, '/') = 0 AND settled_at IS NULL;
ALTER TABLE outbox.intents ADD CONSTRAINT lane_of_its_tenant CHECK (
    lane IS NULL OR settled_at IS NOT NULL OR split_part(lane, '/', 3)
        = left(encode(sha256(convert_to(tenant, 'UTF8')), 'hex'), 32));
"""

BESIDE = """
-- One row that each registration changes: a snapshot from before one cannot lock it, and so cannot
-- hand results to the consumers that it sees and to no later one.
CREATE TABLE outbox.registrations (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    made bigint NOT NULL
);
INSERT INTO outbox.registrations (made) VALUES (0);
ALTER TABLE outbox.deliveries
    -- A result that its consumer could not use comes again later each time; NULL: at once.
    ADD COLUMN due_at timestamptz,
    ADD COLUMN tries integer NOT NULL DEFAULT 0;
CREATE INDEX deliveries_failing ON outbox.deliveries (consumer, settlement_id)
    WHERE consumed_at IS NULL AND tries > 0;
-- Whose rows an agent's login sees and writes; a NULL tenant means every one. While the table is
-- empty every login does; from its first row on, a login that is not in it sees none.
CREATE TABLE outbox.agent_tenants (
    login name NOT NULL,
    tenant text
);
CREATE UNIQUE INDEX agent_tenants_once ON outbox.agent_tenants (login, COALESCE(tenant, ''));
"""

# What an agent's login writes is read by the claims, the checks and the consumers of everybody.
_EARLIEST, _LATEST = "'1970-01-01 00:00+00'", "'3000-01-01 00:00+00'"
_TIMES = {
    "intents": "created_at, due_at, ttl_at, window_ends_at, escalate_at, verify_at, first_sent_at, "
    "last_sent_at, last_lease_end, absent_first_at, absent_last_at, lease_until, resolver_until, "
    "settled_at, contradicted_at, told_at, retracted_at",
    "epochs": "started_at, ended_at",
    "consumers": "registered_at",
    "settlements": "at",
    "deliveries": "consumed_at, due_at",
    "events": "at",
}


def _is_object(column: str) -> str:
    """Text that everybody can read as an object: no deeper than what enqueue takes."""
    return (
        f"octet_length({column}) <= 1048576 AND jsonb_typeof({column}::jsonb) = 'object' "
        f"AND NOT jsonb_path_exists({column}::jsonb, '$.**{{33}}')"
    )


def _bounds() -> str:
    times = "".join(
        f"""
        ALTER TABLE outbox.{table} ADD CONSTRAINT {table}_times_bounded CHECK (
            GREATEST({columns}) < {_LATEST} AND LEAST({columns}) > {_EARLIEST});"""
        for table, columns in _TIMES.items()
    )
    return f"""
{times}
-- In days: no duration of a policy is longer than 366 of them.
ALTER TABLE outbox.intents ADD CONSTRAINT ttl_bounded CHECK (ttl_s <= 366 * 86400.0),
    ADD CONSTRAINT identity_readable CHECK ({_is_object("identity")}),
    ADD CONSTRAINT guard_readable CHECK ({_is_object("guard")}),
    ADD CONSTRAINT args_readable CHECK (args_codec <> 'plain' OR {_is_object("args")});
ALTER TABLE outbox.deliveries ADD CONSTRAINT tries_bounded CHECK (tries BETWEEN 0 AND 2000000000);
-- Each write of a row adds one to its version: no row can be brought to where that overflows.
CREATE FUNCTION outbox.refuse_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a version goes up by one' USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER intents_version BEFORE UPDATE OF version ON outbox.intents
    FOR EACH ROW WHEN (NEW.version NOT BETWEEN OLD.version AND OLD.version + 1)
    EXECUTE FUNCTION outbox.refuse_version();
"""


# They run as the owner of the tables, so that an agent needs no right to what they read.
OF_OWNER = """
-- NULL: all of them. By the session's login, which no SET changes: neither SET ROLE nor a setting,
-- and behind a transaction pooler it is the login that the pool is for.
CREATE FUNCTION outbox.tenants_allowed() RETURNS text[] LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE
        WHEN NOT EXISTS (SELECT FROM outbox.agent_tenants) THEN NULL
        WHEN EXISTS (SELECT FROM outbox.agent_tenants
                     WHERE login = session_user AND tenant IS NULL) THEN NULL
        ELSE ARRAY(SELECT tenant FROM outbox.agent_tenants WHERE login = session_user)
    END $$;
-- Whether an intent is of this tenant, and the tenant one of the login's.
CREATE FUNCTION outbox.is_own(intent uuid, of_tenant text) RETURNS boolean LANGUAGE sql STABLE
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (
        SELECT FROM outbox.intents i WHERE i.id = intent AND i.tenant = of_tenant
        AND (outbox.tenants_allowed() IS NULL OR i.tenant = ANY (outbox.tenants_allowed()))) $$;
-- The next piece of the past for a new consumer, of every tenant: a consumer's name is shared.
CREATE FUNCTION outbox.fill_deliveries(of_consumer text, piece integer) RETURNS bigint LANGUAGE sql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH due AS (
        SELECT s.id FROM outbox.settlements s, outbox.consumers c
        WHERE c.name = of_consumer AND s.id > c.filled_to ORDER BY s.id LIMIT GREATEST(piece, 1)
    ), filled AS (
        INSERT INTO outbox.deliveries (consumer, settlement_id)
        SELECT of_consumer, id FROM due ON CONFLICT DO NOTHING
    )
    UPDATE outbox.consumers SET filled_to = (SELECT max(id) FROM due)
    WHERE name = of_consumer AND filled_to IS NOT NULL
    RETURNING filled_to $$;
-- Whoever writes results shares this table's lock, and whoever makes a consumer known has it alone:
-- an agent may do that, and may neither lock the table by itself nor write the count. Snapshots
-- from before the count changed hand no results to consumers any more.
CREATE FUNCTION outbox.register_alone() RETURNS trigger LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    LOCK TABLE outbox.registrations IN EXCLUSIVE MODE;
    UPDATE outbox.registrations SET made = made + 1;
    RETURN NULL;
END $$;
CREATE TRIGGER consumers_alone BEFORE INSERT ON outbox.consumers
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.register_alone();
REVOKE ALL ON FUNCTION outbox.tenants_allowed(), outbox.is_own(uuid, text),
    outbox.fill_deliveries(text, integer), outbox.register_alone() FROM PUBLIC;
"""

ROLES = """
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'outbox_agent') THEN
        GRANT UPDATE (retracted_at) ON outbox.intents TO outbox_agent;
        -- What enqueue writes, in this release and the one before: no state, lease or counter.
        REVOKE INSERT ON outbox.intents FROM outbox_agent;
        GRANT INSERT (id, tenant, vendor, account, tool, operation, side_effect, run_id, epoch,
            occurrence, once_per, supersedes, key, fingerprint, fingerprint_version, identity,
            guard, args, args_codec, request, request_sha256, request_codec, request_path, carries,
            api_version, amount_minor, currency, lane, on_doubt, resend_when_absent, gate, ttl_s,
            due_at, ttl_at, escalate_at, created_at, tool_call_id, traceparent, note)
            ON outbox.intents TO outbox_agent;
        -- An agent marks what it took and ends its own epochs; the rest of these rows is not its.
        REVOKE UPDATE ON outbox.epochs, outbox.deliveries FROM outbox_agent;
        GRANT UPDATE (ended_at) ON outbox.epochs TO outbox_agent;
        GRANT UPDATE (consumed_at, due_at, tries) ON outbox.deliveries TO outbox_agent;
        REVOKE INSERT, UPDATE (filled_to) ON outbox.consumers FROM outbox_agent;
        GRANT INSERT (name, registered_at) ON outbox.consumers TO outbox_agent;
        -- A row lock needs the right to update some column; this one can only be true.
        GRANT SELECT, UPDATE (one) ON outbox.registrations TO outbox_agent;
        GRANT EXECUTE ON FUNCTION outbox.tenants_allowed(), outbox.is_own(uuid, text),
            outbox.fill_deliveries(text, integer) TO outbox_agent;
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'outbox_worker') THEN
        GRANT SELECT, INSERT, UPDATE ON outbox.registrations TO outbox_worker;
        GRANT SELECT ON outbox.agent_tenants TO outbox_worker;
        GRANT EXECUTE ON FUNCTION outbox.fill_deliveries(text, integer) TO outbox_worker;
        REVOKE INSERT, UPDATE ON outbox.alembic_version FROM outbox_worker;
    END IF;
END $$;
"""

# Of an agent's login and nobody else: the owner of the tables is not asked, and to every other role
# the one policy is a constant, which the planner drops. What belongs to an intent is seen where
# the intent is; the subquery is under this very policy.
_OF_INTENT = "(SELECT outbox.tenants_allowed()) IS NULL OR EXISTS (SELECT FROM outbox.intents i "
_OF_INTENT += "WHERE i.id = intent_id)"
_OF_TENANT = "(SELECT outbox.tenants_allowed()) IS NULL OR "
_OF_TENANT += "tenant = ANY ((SELECT outbox.tenants_allowed())::text[])"
_MAY_SEE = {
    "intents": _OF_TENANT,
    "epochs": _OF_TENANT,
    "attempts": _OF_INTENT,
    "events": _OF_INTENT,
    "settlements": _OF_INTENT,
    "escalations": _OF_INTENT,
    "deliveries": "(SELECT outbox.tenants_allowed()) IS NULL OR EXISTS (SELECT FROM "
    "outbox.settlements s WHERE s.id = settlement_id)",
}
# The key and the id that a row has by its own columns, as enqueue makes them: what stands under
# another one would keep its owner, of whatever tenant, from recording it.
_KEY = """sha256(convert_to('["outbox-key/1",' || to_json(tenant)::text || ','
    || to_json(vendor)::text || ',' || to_json(account)::text || ',' || CASE once_per
        WHEN 'run' THEN '["run",' || to_json(run_id)::text || ']'
        WHEN 'epoch' THEN '["epoch",' || to_json(run_id)::text || ',' || to_json(epoch)::text || ']'
        ELSE '["tenant"]' END
    || ',' || to_json(tool)::text || ',"' || encode(fingerprint, 'hex') || '",' || occurrence::text
    || ',' || COALESCE('"' || supersedes::text || '"', 'null') || ']', 'UTF8'))"""
_ID = """encode(set_byte(set_byte(substring(key FROM 1 FOR 16),
    6, (get_byte(key, 6) & 15) | 128), 8, (get_byte(key, 8) & 63) | 128), 'hex')::uuid"""
_MAY_WRITE = {
    "intents": f"""(SELECT outbox.tenants_allowed()) IS NULL OR (
        tenant = ANY ((SELECT outbox.tenants_allowed())::text[])
        AND (supersedes IS NULL OR outbox.is_own(supersedes, tenant))
        AND key = {_KEY} AND id = {_ID})""",
}


def _policies() -> str:
    tables = "".join(
        f"""
        ALTER TABLE outbox.{table} ENABLE ROW LEVEL SECURITY;
        CREATE POLICY everyone ON outbox.{table} USING (true);
        CREATE POLICY own_tenants ON outbox.{table} AS RESTRICTIVE TO outbox_agent
            USING ({sees}) WITH CHECK ({_MAY_WRITE.get(table, sees)});"""
        for table, sees in _MAY_SEE.items()
    )
    return f"""
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'outbox_agent') THEN{tables}
    END IF;
END $$;
"""


def upgrade() -> None:
    for block in (TOLD, LANES, BESIDE, _bounds(), OF_OWNER, ROLES, _policies()):
        op.execute(block)


def downgrade() -> None:
    for table in _MAY_SEE:
        op.execute(f"DROP POLICY IF EXISTS own_tenants ON outbox.{table}")
        op.execute(f"DROP POLICY IF EXISTS everyone ON outbox.{table}")
        op.execute(f"ALTER TABLE outbox.{table} DISABLE ROW LEVEL SECURITY")
    op.execute("DROP TRIGGER intents_lane ON outbox.intents")
    op.execute("DROP FUNCTION outbox.lane_with_account()")
    op.execute("DROP TRIGGER intents_version ON outbox.intents")
    op.execute("DROP FUNCTION outbox.refuse_version()")
    op.execute(
        "ALTER TABLE outbox.intents DROP CONSTRAINT lane_of_its_tenant, "
        "DROP CONSTRAINT ttl_bounded, DROP CONSTRAINT identity_readable, "
        "DROP CONSTRAINT guard_readable, DROP CONSTRAINT args_readable"
    )
    for table in _TIMES:
        op.execute(f"ALTER TABLE outbox.{table} DROP CONSTRAINT {table}_times_bounded")
    op.execute("DROP TRIGGER consumers_alone ON outbox.consumers")
    op.execute("DROP FUNCTION outbox.register_alone()")
    op.execute("DROP FUNCTION outbox.fill_deliveries(text, integer)")
    op.execute("DROP FUNCTION outbox.is_own(uuid, text)")
    op.execute("DROP FUNCTION outbox.tenants_allowed()")
    op.execute("DROP TABLE outbox.agent_tenants")
    op.execute("DROP TABLE outbox.registrations")
    op.execute("ALTER TABLE outbox.deliveries DROP COLUMN due_at, DROP COLUMN tries")
    op.execute("DROP INDEX outbox.intents_escalate_waiting, outbox.intents_escalate")
    op.execute("DROP INDEX outbox.intents_successors")
    op.execute(
        "ALTER TABLE outbox.intents DROP COLUMN request_path, DROP COLUMN retracted_at, "
        "DROP COLUMN local_failure, DROP COLUMN carries"
    )
    op.execute(
        "CREATE INDEX intents_escalate ON outbox.intents (escalate_at) "
        "WHERE escalate_at IS NOT NULL AND settled_at IS NULL"
    )
    op.execute(_RIGHTS_BEFORE)


_RIGHTS_BEFORE = """
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'outbox_agent') THEN
        GRANT INSERT ON outbox.intents TO outbox_agent;
        GRANT UPDATE ON outbox.epochs, outbox.deliveries TO outbox_agent;
        GRANT INSERT, UPDATE (filled_to) ON outbox.consumers TO outbox_agent;
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'outbox_worker') THEN
        GRANT INSERT, UPDATE ON outbox.alembic_version TO outbox_worker;
    END IF;
END $$;
"""
