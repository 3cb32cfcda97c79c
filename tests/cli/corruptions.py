"""What no session of ours can write and a superuser can: each breaks one rule of the ledger."""

from __future__ import annotations

from typing import NamedTuple

UNGUARDED = """
ALTER TABLE outbox.intents DROP CONSTRAINT never_sent, DROP CONSTRAINT sent_has_a_time,
    DROP CONSTRAINT lease_while_in_flight, DROP CONSTRAINT landed_has_a_receipt,
    DROP CONSTRAINT settled_has_a_time, DROP CONSTRAINT unsettled_has_no_receipt,
    DROP CONSTRAINT unsettled_keeps_its_request, DROP CONSTRAINT intents_doubt_check,
    DROP CONSTRAINT intents_times_bounded;
ALTER TABLE outbox.settlements DROP CONSTRAINT settlements_intent_id_version_kind_key;
DROP INDEX outbox.intents_key, outbox.intents_twin, outbox.intents_lane_head,
    outbox.intents_supersedes, outbox.epochs_current, outbox.escalations_open_intent,
    outbox.escalations_open_holder;
ALTER TABLE outbox.attempts DISABLE TRIGGER attempts_append_only;
ALTER TABLE outbox.events DISABLE TRIGGER events_append_only;
DROP TRIGGER intents_kept ON outbox.intents;
DROP TRIGGER intents_version ON outbox.intents;
DROP TRIGGER intents_readable ON outbox.intents;
DROP TRIGGER inbox_kept ON outbox.webhook_inbox;
"""
ONE_HOUR = "INTERVAL '1 hour'"


class Corruption(NamedTuple):
    """``sql`` breaks it, with the ids of three intents as parameters; ``shows`` selects (as ``id``)
    what must be named."""

    check: str
    rule: int | None
    sql: str
    shows: str = "SELECT %(doubtful)s AS id"


LANDED = "SELECT %(landed)s AS id"
FRESH = "SELECT %(fresh)s AS id"
_NOBODY = "SELECT '00000000-0000-4000-8000-000000000000' AS id"


def _set(columns: str, of: str = "doubtful") -> str:
    return f"UPDATE outbox.intents SET {columns} WHERE id = %({of})s"


def _attempt(lease_no: int, outcome: str, **more: str) -> str:
    columns = {
        "intent_id": "%(doubtful)s",
        "lease_no": str(lease_no),
        "started_at": "outbox.clock()",
        "ended_at": "outbox.clock()",
        "outcome": f"'{outcome}'",
        **more,
    }
    return (
        f"INSERT INTO outbox.attempts ({', '.join(columns)}) VALUES ({', '.join(columns.values())})"
    )


_SETTLED = "settled_at = outbox.clock(), settled_by = 'reply'"
_OF_LANDED = "SELECT id::text AS id FROM outbox.settlements WHERE intent_id = %(landed)s"
_QUESTION = "SELECT id::text AS id FROM outbox.escalations"
_AGAIN = "attempts = 2, lease_no = 2, version = 6, doubt = 2"

CORRUPTIONS = (
    Corruption(
        "two_intents_with_one_key",
        1,
        _set("key = (SELECT key FROM outbox.intents WHERE id = %(landed)s)"),
    ),
    Corruption("key_not_of_its_intent", 1, _set("run_id = 'run-2'")),
    Corruption("key_not_of_its_intent", 1, _set("key = sha256('x')", "landed"), LANDED),
    Corruption("key_not_of_its_intent", 1, _set("identity = '{}'")),
    Corruption("key_not_of_its_intent", 1, _set("identity = '{'")),
    Corruption("carried_otherwise", None, _set("carries = 'header hex64 x-key|'")),
    Corruption("beyond_all_bounds", 14, _set("due_at = '-infinity'", "fresh"), FRESH),
    Corruption("beyond_all_bounds", 14, _set("created_at = '4700-01-01 BC'", "fresh"), FRESH),
    Corruption("beyond_all_bounds", 14, _set("ttl_s = 'NaN'", "fresh"), FRESH),
    Corruption("beyond_all_bounds", 14, _set("ttl_s = 1e300", "fresh"), FRESH),
    Corruption("request_not_as_hashed", 2, _set("request = request || ' '")),
    Corruption("values_sealed", None, _set("request_codec = 'aesgcm:lost'")),
    Corruption("status_against_sent", 3, _set("status = 'pending'")),
    Corruption("status_against_sent", 3, _set("lease_no = 0")),
    Corruption("sent_without_a_claim", 3, _attempt(99, "lost")),
    Corruption(
        "sent_without_a_claim",
        3,
        _attempt(1, "receipt", started_at="outbox.clock() - " + ONE_HOUR),
    ),
    Corruption("lease_against_status", 4, _set("lease_token = id")),
    Corruption("lease_against_status", 4, _set("resolver_token = id")),
    Corruption(
        "two_sent_in_a_lane",
        4,
        "UPDATE outbox.intents SET lane = 'one', status = 'unknown', first_sent_at = created_at "
        "WHERE id IN (%(doubtful)s, %(fresh)s)",
    ),
    Corruption(
        "lease_long_expired",
        4,
        _set(
            "status = 'in_flight', lease_token = id, "
            "lease_until = outbox.clock() - INTERVAL '1 min'"
        ),
    ),
    Corruption("version_went_back", 5, _set("version = 2")),
    Corruption(
        "ended_epoch_still_waits",
        5,
        "WITH next AS (INSERT INTO outbox.epochs VALUES "
        f"('acme', 'run-1', 'turn-2', outbox.clock() - {ONE_HOUR})) "
        "UPDATE outbox.intents SET once_per = 'epoch', epoch = 'turn-1', "
        f"created_at = created_at - {ONE_HOUR} WHERE id = %(fresh)s",
        FRESH,
    ),
    Corruption(
        "settlement_ahead_of_its_intent",
        5,
        "UPDATE outbox.settlements SET version = 99 WHERE intent_id = %(landed)s",
        _OF_LANDED,
    ),
    Corruption(
        "two_current_epochs",
        5,
        "INSERT INTO outbox.epochs VALUES ('acme', 'run-9', 'a', outbox.clock()), "
        "('acme', 'run-9', 'b', outbox.clock())",
        "SELECT 'acme/run-9' AS id",
    ),
    Corruption("doubt_without_send", 6, _set("first_sent_at = NULL")),
    Corruption("doubt_without_send", 6, _set("doubt = -1", "landed"), LANDED),
    Corruption("doubt_below_lost_attempts", 6, _set("doubt = 0")),
    Corruption("settled_without_evidence", 6, _set("settled_by = NULL", "landed"), LANDED),
    Corruption("failed_without_a_refusal", 7, _set(f"status = 'failed_poison', {_SETTLED}")),
    Corruption(
        "told_against_status",
        7,
        "UPDATE outbox.settlements SET told = 'failed' WHERE intent_id = %(landed)s",
        _OF_LANDED,
    ),
    Corruption(
        "told_against_status",
        7,
        "UPDATE outbox.settlements SET kind = 'contradiction' WHERE intent_id = %(landed)s",
        _OF_LANDED,
    ),
    Corruption("sent_after_its_window", 8, _set("window_ends_at = first_sent_at - INTERVAL '1 s'")),
    Corruption("sent_after_a_veto", 8, _set("contradicted_at = created_at, version = version + 1")),
    Corruption(
        "sent_after_a_veto",
        8,
        "WITH refused AS ("
        + _attempt(1, "refused", should_retry="false")
        + ") "
        + _attempt(2, "lost", started_at="outbox.clock() + INTERVAL '1 s'"),
    ),
    Corruption(
        "sent_again_without_approval", 8, f"WITH a AS ({_attempt(2, 'lost')}) {_set(_AGAIN)}"
    ),
    Corruption("overdue_without_escalation", 9, _set("ttl_at = outbox.clock() - INTERVAL '5 min'")),
    Corruption("contradiction_without_escalation", 9, _set("contradicted_at = outbox.clock()")),
    Corruption("landed_without_receipt", 10, _set("receipt_id = NULL", "landed"), LANDED),
    Corruption("receipt_before_settlement", 10, _set("receipt_id = 'pi_early'")),
    Corruption("settled_without_time", 10, _set("status = 'succeeded', receipt_id = 'pi_x'")),
    Corruption("settled_without_time", 10, _set("settled_at = outbox.clock()")),
    Corruption(
        "two_intents_with_one_receipt",
        10,
        _set(
            f"status = 'succeeded', {_SETTLED}, "
            "receipt_id = (SELECT receipt_id FROM outbox.intents WHERE id = %(landed)s)"
        ),
    ),
    Corruption(
        "left_a_terminal_status",
        10,
        "INSERT INTO outbox.events (intent_id, at, actor, kind, from_status, to_status) VALUES "
        "(%(landed)s, outbox.clock(), 'sender', 'refused', 'succeeded', 'failed_poison')",
        LANDED,
    ),
    Corruption(
        "unsettled_after_its_settlement",
        10,
        _set("status = 'unknown', settled_at = NULL, receipt_id = NULL", "landed"),
        LANDED,
    ),
    Corruption("unsettled_without_request", 11, _set("request = NULL")),
    Corruption("emptied_without_a_record", 11, _set("request = NULL", "landed"), LANDED),
    Corruption(
        "pruned_too_early",
        11,
        "INSERT INTO outbox.events (intent_id, at, actor, kind) VALUES "
        "(%(landed)s, outbox.clock(), 'retention', 'pruned')",
        LANDED,
    ),
    Corruption(
        "evidence_of_undecided_gone",
        11,
        "INSERT INTO outbox.webhook_inbox (vendor, account, mode, event_id, state, intent_id, "
        "received_at) VALUES "
        "('stripe', 'default', 'test', 'evt_1', 'joined', %(doubtful)s, outbox.clock())",
    ),
    Corruption(
        "attempt_without_a_record",
        11,
        "DELETE FROM outbox.attempts WHERE intent_id = %(doubtful)s",
    ),
    Corruption("settled_without_settlement", 11, _set(f"status = 'failed_poison', {_SETTLED}")),
    Corruption(
        "settlement_without_delivery",
        11,
        "INSERT INTO outbox.consumers VALUES ('billing', outbox.clock(), NULL)",
        "SELECT 'billing:' || id AS id FROM outbox.settlements",
    ),
    Corruption(
        "attempt_of_no_intent",
        None,
        _attempt(1, "lost", intent_id="'00000000-0000-4000-8000-000000000000'"),
        _NOBODY,
    ),
    Corruption(
        "settlement_of_no_intent",
        None,
        "INSERT INTO outbox.settlements (intent_id, version, kind, status, told, at) VALUES "
        "('00000000-0000-4000-8000-000000000000', 1, 'settled', 'cancelled', 'cancelled', "
        "outbox.clock())",
        _NOBODY,
    ),
    Corruption("time_ahead_of_the_clock", 12, _set(f"last_sent_at = outbox.clock() + {ONE_HOUR}")),
    Corruption(
        "two_untold_twins",
        13,
        _set("fingerprint = (SELECT fingerprint FROM outbox.intents WHERE id = %(fresh)s)"),
    ),
    Corruption(
        "due_and_not_sent", 14, _set(f"due_at = outbox.clock() - {ONE_HOUR}", "fresh"), FRESH
    ),
    Corruption(
        "settlement_not_taken",
        None,
        "WITH made AS (INSERT INTO outbox.consumers VALUES ('billing', outbox.clock(), NULL) "
        "RETURNING name), old AS (UPDATE outbox.settlements "
        "SET at = at - INTERVAL '25 hours' RETURNING id) "
        "INSERT INTO outbox.deliveries SELECT name, id FROM made, old",
        "SELECT 'billing:' || id AS id FROM outbox.settlements",
    ),
    Corruption(
        "webhook_waits",
        None,
        "INSERT INTO outbox.webhook_inbox (vendor, account, mode, event_id, state, due_at, "
        "received_at) SELECT 'stripe', 'default', 'test', 'evt_1', 'new', at, at "
        f"FROM (SELECT outbox.clock() - {ONE_HOUR} AS at) t",
        "SELECT id::text AS id FROM outbox.webhook_inbox",
    ),
    Corruption(
        "webhook_ours_and_not_joined",
        None,
        "INSERT INTO outbox.webhook_inbox (vendor, account, mode, event_id, state, received_at) "
        "VALUES ('stripe', 'default', 'test', 'evt_1', 'parked', outbox.clock())",
        "SELECT id::text AS id FROM outbox.webhook_inbox",
    ),
    Corruption("unknown_vendor", None, _set("vendor = 'strpe'")),
    Corruption("unknown_operation", None, _set("operation = 'payment.make'")),
    Corruption("unknown_fingerprint_version", None, _set("fingerprint_version = 99")),
    Corruption("account_without_credentials", None, _set("account = 'backup'")),
    Corruption("mode_or_owner_changed", None, _set("mode = 'live'")),
    Corruption(
        "account_changed",
        None,
        "INSERT INTO outbox.accounts VALUES "
        "('stripe', 'default', 'live', 'acct_x', outbox.clock())",
        "SELECT 'stripe/default' AS id",
    ),
    Corruption(
        "clock_doubted",
        12,
        "INSERT INTO outbox.switches (holder, kind, gate_prefix, reason, set_by, set_at) "
        "VALUES ('clock', 'clock', '', 'stepped by 60 s', 'heartbeat', outbox.clock())",
        "SELECT 'clock' AS id",
    ),
    Corruption(
        "timeline_changed",
        12,
        "INSERT INTO outbox.heartbeats VALUES "
        """('timeline', 'database', outbox.clock(), '{"timeline": 99}')""",
        "SELECT (pg_control_checkpoint()).timeline_id::text AS id",
    ),
    Corruption(
        "heartbeat_ahead",
        12,
        f"UPDATE outbox.heartbeats SET at = at + {ONE_HOUR} WHERE role = 'page'",
        "SELECT 'page worker-1' AS id",
    ),
    Corruption(
        "heartbeat_stale",
        14,
        f"UPDATE outbox.heartbeats SET at = at - {ONE_HOUR} WHERE role = 'escalate'",
        "SELECT 'escalate' AS id",
    ),
    Corruption(
        "releases_differ",
        None,
        """UPDATE outbox.heartbeats SET detail = '{"release": "0.0.1"}' WHERE role = 'page'""",
        "SELECT '0.0.1' AS id",
    ),
)
