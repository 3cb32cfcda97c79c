"""The ledger: intents and all that is kept beside them.

Revision ID: 1_0001
Revises:
"""

from __future__ import annotations

from alembic import op

revision = "1_0001"
down_revision = None
branch_labels = None
depends_on = None

CLOCK = """
-- STABLE over statement_timestamp(): a volatile clock would make every due index useless.
CREATE FUNCTION outbox.clock() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE
    AS $$ SELECT statement_timestamp() $$;
"""

INTENTS = """
CREATE TABLE outbox.intents (
    id uuid PRIMARY KEY,
    seq bigint GENERATED ALWAYS AS IDENTITY,
    version integer NOT NULL DEFAULT 1,
    tenant text NOT NULL,
    vendor text NOT NULL,
    account text NOT NULL,
    mode text CHECK (mode IN ('live', 'test')),
    vendor_account text,
    tool text NOT NULL,
    operation text NOT NULL,
    side_effect text NOT NULL,
    run_id text NOT NULL,
    epoch text NOT NULL DEFAULT '',
    occurrence integer NOT NULL DEFAULT 0 CHECK (occurrence >= 0),
    once_per text NOT NULL CHECK (once_per IN ('run', 'epoch', 'tenant')),
    supersedes uuid REFERENCES outbox.intents (id),
    key bytea NOT NULL CHECK (octet_length(key) = 32),
    fingerprint bytea NOT NULL CHECK (octet_length(fingerprint) = 32),
    fingerprint_version smallint NOT NULL,
    identity text NOT NULL,
    guard text NOT NULL,
    args text,
    args_codec text NOT NULL DEFAULT 'plain',
    request text,
    request_sha256 bytea NOT NULL CHECK (octet_length(request_sha256) = 32),
    request_codec text NOT NULL DEFAULT 'plain',
    api_version text NOT NULL,
    amount_minor bigint,
    currency text,
    lane text COLLATE "C",
    on_doubt text NOT NULL DEFAULT 'hold' CHECK (on_doubt IN ('hold', 'continue')),
    resend_when_absent boolean NOT NULL DEFAULT false,
    -- By bytes: the claim's cursor is compared in two languages.
    gate text COLLATE "C" NOT NULL,
    status text NOT NULL DEFAULT 'pending' CHECK (status IN (
        'awaiting_approval', 'pending', 'in_flight', 'unknown', 'retryable',
        'succeeded', 'failed_poison', 'cancelled')),
    doubt integer NOT NULL DEFAULT 0 CHECK (doubt >= 0),
    veto text,
    business_status text CHECK (business_status IN (
        'paid', 'pending', 'action_required', 'failed', 'reversed', 'other')),
    business_word text,
    business_vendor_time bigint NOT NULL DEFAULT 0,
    ttl_s double precision NOT NULL CHECK (ttl_s > 0),
    due_at timestamptz NOT NULL,
    ttl_at timestamptz NOT NULL,
    window_ends_at timestamptz,
    escalate_at timestamptz,
    verify_at timestamptz,
    first_sent_at timestamptz,
    last_sent_at timestamptz,
    last_lease_end timestamptz,
    attempts integer NOT NULL DEFAULT 0,
    not_sent_count integer NOT NULL DEFAULT 0,
    crashes integer NOT NULL DEFAULT 0,
    resends integer NOT NULL DEFAULT 0,
    looks integer NOT NULL DEFAULT 0,
    absent_looks integer NOT NULL DEFAULT 0,
    absent_first_at timestamptz,
    absent_last_at timestamptz,
    lease_token uuid,
    lease_no integer NOT NULL DEFAULT 0,
    lease_until timestamptz,
    lease_owner text,
    resolver_token uuid,
    resolver_until timestamptz,
    receipt_id text,
    receipt text,
    receipt_codec text NOT NULL DEFAULT 'plain',
    failure_code text,
    settled_by text,
    settled_at timestamptz,
    contradicted_at timestamptz,
    told_at timestamptz,
    created_at timestamptz NOT NULL,
    tool_call_id text,
    traceparent text,
    note text,
    CONSTRAINT never_sent CHECK (
        first_sent_at IS NULL OR status NOT IN ('awaiting_approval', 'pending', 'cancelled')),
    CONSTRAINT sent_has_a_time CHECK (
        first_sent_at IS NOT NULL OR status NOT IN ('in_flight', 'unknown', 'retryable')),
    CONSTRAINT lease_while_in_flight CHECK (
        (status = 'in_flight') = (lease_token IS NOT NULL)
        AND (lease_token IS NULL) = (lease_until IS NULL)),
    CONSTRAINT landed_has_a_receipt CHECK (status <> 'succeeded' OR receipt_id IS NOT NULL),
    CONSTRAINT settled_has_a_time CHECK (
        (status IN ('succeeded', 'failed_poison', 'cancelled')) = (settled_at IS NOT NULL)),
    CONSTRAINT unsettled_has_no_receipt CHECK (
        receipt_id IS NULL OR status IN ('succeeded', 'failed_poison')),
    CONSTRAINT unsettled_keeps_its_request CHECK (settled_at IS NOT NULL OR request IS NOT NULL)
);
CREATE UNIQUE INDEX intents_key ON outbox.intents (key);
CREATE UNIQUE INDEX intents_supersedes ON outbox.intents (supersedes)
    WHERE supersedes IS NOT NULL;
-- Doubt guards its twin: until its outcome has been told, the same identity is the same intent.
CREATE UNIQUE INDEX intents_twin
    ON outbox.intents (tenant, vendor, account, run_id, tool, fingerprint)
    WHERE told_at IS NULL AND occurrence = 0 AND supersedes IS NULL;
CREATE INDEX intents_ready ON outbox.intents (gate, due_at, seq)
    WHERE status IN ('pending', 'retryable') AND lane IS NULL AND crashes = 0;
CREATE INDEX intents_due ON outbox.intents (due_at)
    WHERE status IN ('pending', 'retryable') AND settled_at IS NULL;
CREATE INDEX intents_lane ON outbox.intents (lane, seq)
    WHERE lane IS NOT NULL AND settled_at IS NULL;
-- One unsettled-and-sent intent per ordered lane, as a physical fact.
CREATE UNIQUE INDEX intents_lane_head ON outbox.intents (lane)
    WHERE lane IS NOT NULL
      AND (status = 'in_flight' OR (status IN ('unknown', 'retryable') AND on_doubt = 'hold'));
CREATE INDEX intents_lease ON outbox.intents (lease_until) WHERE status = 'in_flight';
CREATE INDEX intents_doubt ON outbox.intents (due_at) WHERE status = 'unknown';
-- A row that lost its worker is claimed alone, so that it cannot take others with it again.
CREATE INDEX intents_crashed ON outbox.intents (due_at)
    WHERE status IN ('pending', 'retryable') AND crashes > 0;
CREATE INDEX intents_withdraw ON outbox.intents (window_ends_at) WHERE status = 'retryable';
CREATE INDEX intents_escalate ON outbox.intents (escalate_at)
    WHERE escalate_at IS NOT NULL AND settled_at IS NULL;
CREATE INDEX intents_verify ON outbox.intents (verify_at) WHERE verify_at IS NOT NULL;
CREATE INDEX intents_unsettled ON outbox.intents (vendor, account, created_at)
    WHERE settled_at IS NULL;
CREATE INDEX intents_run ON outbox.intents (tenant, run_id, epoch);
CREATE INDEX intents_receipt ON outbox.intents (vendor, account, receipt_id)
    WHERE receipt_id IS NOT NULL;
CREATE INDEX intents_epoch ON outbox.intents (tenant, run_id, epoch)
    WHERE once_per = 'epoch' AND status IN ('pending', 'awaiting_approval');
CREATE INDEX intents_seq ON outbox.intents (seq);
"""

BESIDE = """
CREATE TABLE outbox.attempts (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    intent_id uuid NOT NULL REFERENCES outbox.intents (id),
    lease_no integer NOT NULL,
    started_at timestamptz,
    ended_at timestamptz NOT NULL,
    outcome text NOT NULL CHECK (outcome IN (
        'receipt', 'refused', 'not_sent', 'lost', 'lease_expired')),
    detail text NOT NULL DEFAULT '',
    http_status integer,
    vendor_request_id text NOT NULL DEFAULT '',
    replayed boolean NOT NULL DEFAULT false,
    should_retry boolean,
    late boolean NOT NULL DEFAULT false
);
CREATE INDEX attempts_intent ON outbox.attempts (intent_id, id);

CREATE TABLE outbox.events (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    intent_id uuid REFERENCES outbox.intents (id),
    holder text,
    at timestamptz NOT NULL,
    actor text NOT NULL,
    kind text NOT NULL,
    from_status text,
    to_status text,
    reason text NOT NULL DEFAULT '',
    detail jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX events_intent ON outbox.events (intent_id, id);

CREATE TABLE outbox.epochs (
    tenant text NOT NULL,
    run_id text NOT NULL,
    epoch text NOT NULL,
    started_at timestamptz NOT NULL,
    ended_at timestamptz,
    PRIMARY KEY (tenant, run_id, epoch)
);
CREATE UNIQUE INDEX epochs_current ON outbox.epochs (tenant, run_id) WHERE ended_at IS NULL;

CREATE TABLE outbox.consumers (
    name text PRIMARY KEY,
    registered_at timestamptz NOT NULL,
    -- How far the settlements of before its registration were handed over; NULL: all of them.
    filled_to bigint DEFAULT 0
);
CREATE TABLE outbox.settlements (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    intent_id uuid NOT NULL REFERENCES outbox.intents (id),
    version integer NOT NULL,
    kind text NOT NULL CHECK (kind IN ('settled', 'business', 'contradiction', 'ruled')),
    status text NOT NULL,
    told text NOT NULL,
    business_status text,
    business_word text,
    receipt_id text,
    failure_code text,
    settled_by text,
    at timestamptz NOT NULL,
    UNIQUE (intent_id, version, kind)
);
CREATE TABLE outbox.deliveries (
    consumer text NOT NULL REFERENCES outbox.consumers (name),
    settlement_id bigint NOT NULL REFERENCES outbox.settlements (id),
    consumed_at timestamptz,
    PRIMARY KEY (consumer, settlement_id)
);
CREATE INDEX deliveries_due ON outbox.deliveries (consumer, settlement_id)
    WHERE consumed_at IS NULL;

CREATE TABLE outbox.webhook_inbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    vendor text NOT NULL,
    account text NOT NULL,
    mode text NOT NULL CHECK (mode IN ('live', 'test')),
    event_id text NOT NULL,
    kind text NOT NULL DEFAULT '',
    body bytea,
    body_codec text NOT NULL DEFAULT 'plain',
    state text NOT NULL CHECK (state IN ('new', 'joined', 'parked', 'foreign', 'mismatch')),
    intent_id uuid REFERENCES outbox.intents (id),
    detail text NOT NULL DEFAULT '',
    tries integer NOT NULL DEFAULT 0,
    due_at timestamptz,
    received_at timestamptz NOT NULL,
    deliveries integer NOT NULL DEFAULT 1,
    UNIQUE (vendor, account, mode, event_id)
);
CREATE INDEX inbox_due ON outbox.webhook_inbox (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX inbox_intent ON outbox.webhook_inbox (intent_id) WHERE intent_id IS NOT NULL;

CREATE TABLE outbox.escalations (
    id uuid PRIMARY KEY,
    intent_id uuid REFERENCES outbox.intents (id),
    holder text,
    episode integer NOT NULL DEFAULT 1,
    reasons text[] NOT NULL CHECK (cardinality(reasons) > 0),
    detail jsonb NOT NULL DEFAULT '{}',
    opened_at timestamptz NOT NULL,
    changed_at timestamptz NOT NULL,
    closed_at timestamptz,
    closed_by text,
    verdict text,
    acked_by text,
    acked_until timestamptz,
    muted_by text,
    muted_until timestamptz,
    CHECK ((intent_id IS NULL) <> (holder IS NULL))
);
CREATE UNIQUE INDEX escalations_open_intent ON outbox.escalations (intent_id)
    WHERE closed_at IS NULL AND intent_id IS NOT NULL;
CREATE UNIQUE INDEX escalations_open_holder ON outbox.escalations (holder)
    WHERE closed_at IS NULL AND holder IS NOT NULL;
CREATE INDEX escalations_intent ON outbox.escalations (intent_id) WHERE intent_id IS NOT NULL;

CREATE TABLE outbox.pages (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    escalation_id uuid NOT NULL REFERENCES outbox.escalations (id),
    pager text NOT NULL,
    dedup_key text NOT NULL,
    action text NOT NULL CHECK (action IN ('trigger', 'acknowledge', 'resolve')),
    body jsonb NOT NULL,
    state text NOT NULL DEFAULT 'due' CHECK (state IN ('due', 'sent', 'failed', 'dropped')),
    attempts integer NOT NULL DEFAULT 0,
    due_at timestamptz,
    claimed_until timestamptz,
    detail text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL,
    sent_at timestamptz,
    UNIQUE (pager, dedup_key, action)
);
CREATE INDEX pages_due ON outbox.pages (due_at) WHERE state = 'due';
CREATE INDEX pages_escalation ON outbox.pages (escalation_id);

CREATE TABLE outbox.switches (
    holder text PRIMARY KEY,
    kind text NOT NULL CHECK (kind IN ('pause', 'breaker', 'freeze', 'clock')),
    gate_prefix text NOT NULL,
    reason text NOT NULL,
    set_by text NOT NULL,
    set_at timestamptz NOT NULL,
    probe_at timestamptz,
    probe_after_s double precision
);
CREATE TABLE outbox.accounts (
    vendor text NOT NULL,
    account text NOT NULL,
    mode text NOT NULL CHECK (mode IN ('live', 'test')),
    vendor_account text NOT NULL,
    seen_at timestamptz NOT NULL,
    PRIMARY KEY (vendor, account)
);
CREATE TABLE outbox.heartbeats (
    role text NOT NULL,
    instance text NOT NULL,
    at timestamptz NOT NULL,
    detail jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (role, instance)
);
"""

APPEND_ONLY = """
CREATE FUNCTION outbox.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'raise_exception';
END $$;
CREATE TRIGGER events_append_only BEFORE UPDATE OR DELETE ON outbox.events
    FOR EACH ROW EXECUTE FUNCTION outbox.refuse_change();
CREATE TRIGGER attempts_append_only BEFORE UPDATE OR DELETE ON outbox.attempts
    FOR EACH ROW EXECUTE FUNCTION outbox.refuse_change();
CREATE TRIGGER intents_kept BEFORE DELETE ON outbox.intents
    FOR EACH ROW EXECUTE FUNCTION outbox.refuse_change();
"""

ROLES = """
DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['outbox_agent', 'outbox_worker'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', name);
            EXCEPTION
                WHEN duplicate_object OR unique_violation THEN NULL;
                WHEN insufficient_privilege THEN
                    RAISE NOTICE 'role % is missing and may not be created here', name;
            END;
        END IF;
        IF EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
            EXECUTE format('GRANT USAGE ON SCHEMA outbox TO %I', name);
            EXECUTE format('GRANT EXECUTE ON FUNCTION outbox.clock() TO %I', name);
        END IF;
    END LOOP;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'outbox_agent') THEN
        GRANT SELECT, INSERT ON outbox.intents TO outbox_agent;
        GRANT UPDATE (told_at, status, settled_at, settled_by, escalate_at, version)
            ON outbox.intents TO outbox_agent;
        GRANT SELECT, INSERT, UPDATE ON outbox.epochs, outbox.deliveries TO outbox_agent;
        GRANT UPDATE (filled_to) ON outbox.consumers TO outbox_agent;
        GRANT SELECT, INSERT ON outbox.consumers, outbox.settlements, outbox.events
            TO outbox_agent;
        GRANT SELECT ON outbox.attempts, outbox.escalations TO outbox_agent;
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'outbox_worker') THEN
        GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA outbox TO outbox_worker;
        GRANT DELETE ON outbox.switches, outbox.heartbeats TO outbox_worker;
        REVOKE UPDATE ON outbox.events, outbox.attempts FROM outbox_worker;
    END IF;
END $$;
"""


def upgrade() -> None:
    for block in (CLOCK, INTENTS, BESIDE, APPEND_ONLY, ROLES):
        op.execute(block)


def downgrade() -> None:
    # Only what this migration made; the roles may own grants elsewhere and stay.
    for table in (
        "heartbeats",
        "accounts",
        "switches",
        "pages",
        "escalations",
        "webhook_inbox",
        "deliveries",
        "settlements",
        "consumers",
        "epochs",
        "events",
        "attempts",
        "intents",
    ):
        op.execute(f"DROP TABLE outbox.{table}")
    op.execute("DROP FUNCTION outbox.refuse_change()")
    op.execute("DROP FUNCTION outbox.clock()")
