"""What an agent's login writes by SQL of its own: it can break nothing that others read, and takes
no place that is another tenant's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg import errors

from outbox import KeyTaken, Scope
from outbox.intent import draft
from outbox.outcomes import Refused
from outbox.store import records, settlements
from outbox.store.enqueueing_sql import _COLUMNS
from outbox.store.records import Ended
from resolvers.directory import Directory
from resolvers.doctoring import findings
from tests.cli.corruptions import UNGUARDED
from tests.privacy.logins import Login, Logins, open_logins
from tests.store.book import CHARGE, LANED, ONCE, TURN, Book, charge

ACME, BOLT = Scope(tenant="acme", run_id="run-1"), Scope(tenant="bolt", run_id="run-1")
REFUSED = (errors.CheckViolation, errors.InsufficientPrivilege, errors.DataError)
_TIMES = ("due_at", "ttl_at", "escalate_at", "created_at")


@pytest.fixture
def logins(book: Book) -> Iterator[Logins]:
    with open_logins(book) as opened:
        yield opened


def write(
    by: Login | Book, scope: Scope = ACME, raw: Mapping[str, str] | None = None, **columns: Any
) -> None:
    """A row as enqueue would write it, but for ``columns`` and, in SQL, ``raw``."""
    values = {**draft(CHARGE, scope, charge()).columns, **columns}
    said = {name: f"CAST(%({name})s AS {_COLUMNS.get(name, 'text')})" for name in values}
    said |= dict.fromkeys(_TIMES, "now()") | dict(raw or {})
    statement = (
        f"INSERT INTO outbox.intents ({', '.join(said)}) VALUES ({', '.join(said.values())})"
    )
    with psycopg.connect(by.url) as connection:
        connection.execute(statement.encode(), values)


BAD: Mapping[str, Mapping[str, str]] = {
    "a ttl without end": {"ttl_s": "1e300"},
    "a ttl of ten years": {"ttl_s": "3.2e8"},
    "a ttl that is no number": {"ttl_s": "'NaN'"},
    "an infinite ttl": {"ttl_s": "'infinity'"},
    "due before all time": {"due_at": "'-infinity'"},
    "due after all time": {"due_at": "'infinity'"},
    "made in another age": {"created_at": "'4700-01-01 BC'"},
    "made at no time": {"created_at": "'infinity'"},
    "asked of nobody ever": {"escalate_at": "'infinity'"},
    "late in the year 200000": {"ttl_at": "'200000-01-01'"},
    "an identity that is no JSON": {"identity": "'{'"},
    "an identity that is a list": {"identity": "'[]'"},
    "a guard that is no JSON": {"guard": "'nope'"},
    "arguments that are a number": {"args": "'1'"},
    "an identity without a bottom": {
        "identity": "'{\"a\":' || repeat('[', 40) || repeat(']', 40) || '}'"
    },
    "a state of its own": {"status": "'unknown'", "doubt": "1", "first_sent_at": "now()"},
    "a version at the end of its type": {"version": "2147483647"},
    "a counter at the end of its type": {"lease_no": "2147483647"},
    "a receipt of its own": {"receipt_id": "'pi_1'"},
}  # fmt: skip


@pytest.mark.parametrize("raw", BAD.values(), ids=BAD)
def test_a_row_that_others_could_not_read_is_refused(
    book: Book, logins: Logins, raw: Mapping[str, str]
) -> None:
    agent = logins.make("outbox_agent")
    with pytest.raises(REFUSED):
        write(agent, raw=raw)
    write(agent)
    assert book.count() == 1


@pytest.mark.parametrize(
    ("statement", "refused"),
    [
        ("UPDATE outbox.intents SET version = 2147483647", errors.CheckViolation),
        ("UPDATE outbox.intents SET version = 0", errors.CheckViolation),
        ("UPDATE outbox.intents SET told_at = 'infinity'", errors.CheckViolation),
        ("UPDATE outbox.intents SET retracted_at = '-infinity'", errors.CheckViolation),
        ("UPDATE outbox.intents SET escalate_at = '-infinity'", errors.CheckViolation),
        ("UPDATE outbox.deliveries SET tries = 2147483647", errors.CheckViolation),
        ("UPDATE outbox.deliveries SET tries = -2000000000", errors.CheckViolation),
        ("UPDATE outbox.deliveries SET due_at = 'infinity'", errors.CheckViolation),
        ("UPDATE outbox.epochs SET ended_at = '-infinity'", errors.CheckViolation),
        ("INSERT INTO outbox.epochs VALUES ('acme', 'r', 'e', 'infinity')", errors.CheckViolation),
        ("UPDATE outbox.registrations SET made = 9223372036854775807",
         errors.InsufficientPrivilege),
        ("INSERT INTO outbox.consumers (name, registered_at) VALUES ('x', 'infinity')",
         errors.CheckViolation),
        ("INSERT INTO outbox.settlements (intent_id, version, kind, status, told, at) "
         "SELECT id, 9, 'ruled', 'succeeded', 'settled', 'infinity' FROM outbox.intents",
         errors.CheckViolation),
        ("INSERT INTO outbox.events (intent_id, at, actor, kind) "
         "SELECT id, 'infinity', 'a', 'k' FROM outbox.intents", errors.CheckViolation),
    ],
)  # fmt: skip
def test_no_own_row_is_brought_to_where_it_breaks_others(
    book: Book, logins: Logins, statement: str, refused: type[Exception]
) -> None:
    agent = logins.make("outbox_agent", tenant="acme")
    settlements.register(book.store, "billing")
    row = book.in_flight(scope=ACME)
    with book.store.transaction() as tx:
        records.record(tx, [Ended(row, Refused("declined", covers_key=True))])
    with agent.connect() as connection:
        agent.outbox.advance_epoch(connection, "acme", "run-1", "turn-1")
    with pytest.raises(refused):
        agent.sql(statement)
    # Whoever comes next is served.
    other = logins.make("outbox_agent", tenant="bolt")
    with other.connect() as connection:
        other.outbox.settlements(connection, "later")
        other.outbox.enqueue(connection, CHARGE, BOLT, charge())
    assert len(book.claimer().claim(64)) == 1


def test_should_the_guards_be_gone_one_bad_row_keeps_no_other_from_being_claimed(
    book: Book,
) -> None:
    book.sql(UNGUARDED)
    bad = [raw for raw in BAD.values() if set(raw) <= {*_TIMES, "ttl_s", "identity", "guard"}]
    for raw in bad:
        write(book, BOLT, raw)
        write(book, BOLT, raw, lane="stripe/default/x")
    good = book.enqueue()
    laned = book.enqueue(LANED)
    assert {good.intent_id, laned.intent_id} <= {row.id for row in book.claimer().claim(64)}
    told = {found.check: found for found in findings(book.store, Directory(book.settings, {}))}
    assert not told["guard_missing"].ok
    assert not told["beyond_all_bounds"].ok
    assert not told["key_not_of_its_intent"].ok
    assert not [one.check for one in told.values() if one.detail.startswith("not checked")]


# -- keys, ids and lanes -------------------------------------------------------------------------

ODD = Scope(tenant='te"am \\ Ä/é', run_id="run 'ü' \"1\"", epoch="turn-1")


@pytest.mark.parametrize("tool", [CHARGE, ONCE, TURN], ids=["run", "tenant", "epoch"])
@pytest.mark.parametrize("scope", [replace(ACME, epoch="t"), ODD], ids=["plain", "odd"])
def test_the_schema_makes_the_key_and_the_id_that_enqueue_makes(
    book: Book, logins: Logins, tool: Any, scope: Scope
) -> None:
    agent = logins.make("outbox_agent", tenant=scope.tenant)
    with agent.connect() as connection:
        first = agent.outbox.enqueue(connection, tool, scope, charge("in_1"))
        second = agent.outbox.enqueue(connection, tool, scope, charge("in_1"), occurrence=1)
    (row,) = [r for r in book.claimer().claim(64) if r.id == first.intent_id]
    with book.store.transaction() as tx:
        records.record(tx, [Ended(row, Refused("declined", covers_key=True))])
    with agent.connect() as connection:
        third = agent.outbox.enqueue(
            connection, tool, scope, charge("in_1"), supersedes=first.intent_id
        )
    assert len({first.intent_id, second.intent_id, third.intent_id}) == 3


def test_no_team_writes_a_row_under_the_key_or_the_id_of_another(
    book: Book, logins: Logins
) -> None:
    acme = logins.make("outbox_agent", tenant="acme")
    bolt = logins.make("outbox_agent", tenant="bolt")
    theirs = draft(CHARGE, BOLT, charge("in_theirs"))
    for columns in (
        {"key": theirs.key},
        {"id": str(theirs.id)},
        {"key": theirs.key, "id": str(theirs.id)},
    ):
        with pytest.raises(errors.InsufficientPrivilege):
            write(acme, ACME, **columns)
    with bolt.connect() as connection:
        made = bolt.outbox.enqueue(connection, CHARGE, BOLT, charge("in_theirs"))
    assert (made.intent_id, made.deduplicated) == (theirs.id, False)


@pytest.mark.parametrize("squatted", [("key",), ("id",), ("key", "id")], ids="+".join)
@pytest.mark.parametrize("mapped", [True, False], ids=["not seen", "seen"])
def test_what_stands_under_a_key_and_is_of_somebody_else_is_never_the_answer(
    book: Book, logins: Logins, squatted: tuple[str, ...], mapped: bool
) -> None:
    """Whoever may write anything wrote it: the caller is told so, and not to repeat for ever."""
    ours = draft(CHARGE, BOLT, charge("in_ours"))
    places: dict[str, Any] = {"key": ours.key, "id": str(ours.id)}
    write(book, ACME, **{name: places[name] for name in squatted})
    agent = logins.make("outbox_agent", **({"tenant": "bolt"} if mapped else {}))
    with agent.connect() as connection, pytest.raises(KeyTaken) as told:
        agent.outbox.enqueue(connection, CHARGE, BOLT, charge("in_ours"))
    assert told.value.intent_id == str(ours.id)
    assert "acme" not in str(told.value)
    assert book.count() == 1


def test_no_row_stands_in_a_lane_of_another_tenant(book: Book, logins: Logins) -> None:
    acme = logins.make("outbox_agent", tenant="acme")
    first = book.enqueue(LANED, scope=BOLT)
    lane = book.row(first.intent_id).lane
    with pytest.raises(errors.CheckViolation):
        write(acme, ACME, lane=lane)
    with pytest.raises(errors.CheckViolation):
        write(acme, ACME, lane="stripe/default/one")
    # The release before writes no more than the last part of it.
    assert lane is not None
    write(acme, ACME, lane=lane.rpartition("/")[2])
    assert book.value("SELECT count(DISTINCT lane) FROM outbox.intents") == 2
    assert {row.tenant for row in book.claimer().claim(64)} == {"acme", "bolt"}


def test_two_rows_of_one_lane_are_in_one_lane_whichever_release_wrote_them(book: Book) -> None:
    first = book.enqueue(LANED, scope=BOLT)
    lane = book.row(first.intent_id).lane
    assert lane is not None
    write(book, BOLT, lane=lane.rpartition("/")[2])
    assert book.value("SELECT count(DISTINCT lane) FROM outbox.intents") == 1
