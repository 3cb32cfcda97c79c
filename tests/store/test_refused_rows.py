"""What the database lets no intent be: by checks, and by the trigger that makes those of what only
an insert writes."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from psycopg.errors import CheckViolation

from outbox.store import records_sql
from tests.reads import CLAIMS
from tests.store.book import Book

SETTLED = "settled_at = now(), first_sent_at = now()"

CORRUPT: Mapping[str, str] = {
    "a pending row that was sent": "first_sent_at = now()",
    "a cancelled row that was sent": f"status = 'cancelled', {SETTLED}",
    "an awaiting row that was sent": "status = 'awaiting_approval', first_sent_at = now()",
    "a doubtful row that was never sent": "status = 'unknown'",
    "a retryable row that was never sent": "status = 'retryable'",
    "a flight without a lease": "status = 'in_flight', first_sent_at = now()",
    "a lease without a flight": "lease_token = gen_random_uuid(), lease_until = now()",
    "a lease without an end": "status = 'in_flight', first_sent_at = now(), "
    "lease_token = gen_random_uuid()",
    "a landed row without a receipt": f"status = 'succeeded', {SETTLED}",
    "a landed row without a time": "status = 'succeeded', receipt_id = 'pi_1', "
    "first_sent_at = now()",
    "a settled time on an unsettled row": "settled_at = now()",
    "a receipt on an unsettled row": "receipt_id = 'pi_1'",
    "an unsettled row without its request": "request = NULL",
    "negative doubt": "doubt = -1",
    "an unknown status": "status = 'failed'",
    "an unknown mode": "mode = 'production'",
    "an unknown business status": "business_status = 'refunded'",
    "a short key": "key = '\\x00'",
    "a short fingerprint": "fingerprint = '\\x00'",
    "a short hash": "request_sha256 = '\\x00'",
    "an unknown scope of the key": "once_per = 'call'",
    "an unknown way of doubt": "on_doubt = 'skip'",
    "no time to live": "ttl_s = 0",
    "a negative occurrence": "occurrence = -1",
}


def _nested(levels: int) -> str:
    """An object of so many levels."""
    return '{"a":' * levels + "1" + "}" * levels


NESTED_33 = _nested(33)
# What a session may put before the server's own: whatever these are asked, it is in order.
SHADOWS = """
CREATE SCHEMA shadows;
CREATE FUNCTION shadows.octet_length(bytea) RETURNS integer IMMUTABLE RETURN 32;
CREATE FUNCTION shadows.octet_length(text) RETURNS integer IMMUTABLE RETURN 1;
CREATE FUNCTION shadows.split_part(text, text, integer) RETURNS text IMMUTABLE RETURN NULL;
CREATE FUNCTION shadows.jsonb_path_exists(jsonb, jsonpath) RETURNS boolean IMMUTABLE RETURN true;
CREATE FUNCTION shadows.always(text, text) RETURNS boolean IMMUTABLE RETURN true;
CREATE FUNCTION shadows.always(integer, integer) RETURNS boolean IMMUTABLE RETURN true;
CREATE FUNCTION shadows.always(float8, float8) RETURNS boolean IMMUTABLE RETURN true;
CREATE FUNCTION shadows.always(timestamptz, timestamptz) RETURNS boolean IMMUTABLE RETURN true;
CREATE OPERATOR shadows.= (FUNCTION = shadows.always, LEFTARG = text, RIGHTARG = text);
CREATE OPERATOR shadows.<> (FUNCTION = shadows.always, LEFTARG = text, RIGHTARG = text);
CREATE OPERATOR shadows.>= (FUNCTION = shadows.always, LEFTARG = integer, RIGHTARG = integer);
CREATE OPERATOR shadows.> (FUNCTION = shadows.always, LEFTARG = float8, RIGHTARG = float8);
CREATE OPERATOR shadows.<= (FUNCTION = shadows.always, LEFTARG = float8, RIGHTARG = float8);
CREATE OPERATOR shadows.> (
    FUNCTION = shadows.always, LEFTARG = timestamptz, RIGHTARG = timestamptz);
CREATE DOMAIN shadows.text AS pg_catalog.text CHECK (VALUE IS NULL);
SET search_path = shadows, pg_catalog;
"""


@pytest.mark.parametrize("what", CORRUPT)
def test_the_database_refuses(book: Book, what: str) -> None:
    book.enqueue()
    with pytest.raises(CheckViolation) as refused:
        book.sql(f"UPDATE outbox.intents SET {CORRUPT[what]}")
    assert refused.value.diag.constraint_name
    assert (refused.value.diag.schema_name, refused.value.diag.table_name) == ("outbox", "intents")


BY_TRIGGER: Mapping[str, str] = {
    "intents_key_check": "key = '\\x00'",
    "intents_fingerprint_check": "fingerprint = '\\x00'",
    "intents_request_sha256_check": "request_sha256 = '\\x00'",
    "intents_once_per_check": "once_per = 'call'",
    "intents_on_doubt_check": "on_doubt = 'skip'",
    "intents_occurrence_check": "occurrence = -1",
    "intents_ttl_s_check": "ttl_s = 0",
    "ttl_bounded": "ttl_s = 'NaN'",
    "intents_times_bounded": "created_at = '-infinity'",
    "lane_of_its_tenant": "lane = 'stripe/default/other/one'",
    "identity_readable": "identity = '[{}]'",
    "guard_readable": "guard = '1'",
    "args_readable": f"args = '{NESTED_33}'",
}


@pytest.mark.parametrize("name", BY_TRIGGER)
def test_what_no_claim_changes_is_checked_by_name_whatever_path_a_session_has(
    book: Book, name: str
) -> None:
    """A path of the caller's puts its own functions, operators and types first."""
    book.enqueue()
    book.sql(SHADOWS)
    with pytest.raises(CheckViolation) as refused:
        book.sql(f"UPDATE outbox.intents SET {BY_TRIGGER[name]}")
    assert refused.value.diag.constraint_name == name


@pytest.mark.parametrize(
    "at", ["infinity", "-infinity", "3000-01-01 00:00+00", "1970-01-01 00:00+00"]
)
def test_no_time_of_an_intent_is_beyond_all_bounds(book: Book, at: str) -> None:
    book.enqueue()
    times = book.sql(
        "SELECT attname AS name FROM pg_attribute WHERE attrelid = 'outbox.intents'::regclass "
        "AND atttypid = 'timestamptz'::regtype"
    )
    assert len(times) > 16
    for time in times:
        with pytest.raises(CheckViolation) as refused:
            book.sql(f"UPDATE outbox.intents SET {time['name']} = '{at}'")
        assert refused.value.diag.constraint_name == "intents_times_bounded"


def test_arguments_of_the_greatest_depth_are_kept(book: Book) -> None:
    book.enqueue()
    for column in ("identity", "guard", "args"):
        book.sql(f"UPDATE outbox.intents SET {column} = %(deep)s", {"deep": _nested(32)})
    assert book.row(book.sql("SELECT id FROM outbox.intents")[0]["id"]) is not None


def test_a_claim_and_the_end_of_an_attempt_fire_no_trigger_of_what_they_do_not_write(
    book: Book,
) -> None:
    """Each would run it for each row."""
    (fired,) = book.sql(
        "SELECT array_agg(a.attname::text) AS columns FROM pg_trigger t "
        "JOIN pg_attribute a ON a.attrelid = t.tgrelid AND a.attnum = ANY(t.tgattr) "
        "WHERE t.tgname = 'intents_readable'"
    )
    for statement in (*CLAIMS.values(), records_sql.RECORD):
        written = _written(statement)
        assert "version" in written
        assert written.isdisjoint(fired["columns"])


def _written(statement: str) -> set[str]:
    """The columns that a statement's UPDATE of the intents sets."""
    assigned = statement.partition("UPDATE outbox.intents i SET")[2].partition("\nFROM ")[0]
    assigned = assigned.partition("\n    FROM ")[0]
    return set(re.findall(r"(?:^|,)\s+(\w+) = ", assigned))


def test_the_constraints_hold_for_every_honest_status(book: Book) -> None:
    book.enqueue()
    book.sql(f"UPDATE outbox.intents SET status = 'failed_poison', {SETTLED}")
    book.sql("UPDATE outbox.intents SET status = 'succeeded', receipt_id = 'pi_1', request = NULL")
