"""What each role may do to each table, and that an agent's login is kept to its own tenants."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import errors
from psycopg.rows import dict_row

from outbox import Full, Scope
from outbox.errors import NotFound
from outbox.outcomes import Refused
from outbox.store import claims_sql, escalations, intents, records, settlements
from outbox.store.records import Ended
from outbox.testing import Clock
from tests.privacy.logins import Login, Logins, open_logins
from tests.store.book import CHARGE, ONCE, TURN, Book, charge, plain, receipt

ACME, BOLT = Scope(tenant="acme", run_id="run-1"), Scope(tenant="bolt", run_id="run-1")

# Table by table: what a role may do to all of it, and to which columns. All else is refused.
AGENT = {
    "intents": "INSERT(account,amount_minor,api_version,args,args_codec,carries,created_at,"
    "currency,due_at,epoch,escalate_at,fingerprint,fingerprint_version,gate,guard,id,identity,key,lane,note,"
    "occurrence,on_doubt,once_per,operation,request,request_codec,request_path,request_sha256,"
    "resend_when_absent,run_id,side_effect,supersedes,tenant,tool,tool_call_id,traceparent,ttl_at,"
    "ttl_s,vendor) SELECT "
    "UPDATE(escalate_at,retracted_at,settled_at,settled_by,status,told_at,version)",
    "epochs": "INSERT SELECT UPDATE(ended_at)",
    "consumers": "INSERT(name,registered_at) SELECT",
    "deliveries": "INSERT SELECT UPDATE(consumed_at,due_at,tries)",
    "registrations": "SELECT UPDATE(one)",
    "settlements": "INSERT SELECT",
    "events": "INSERT SELECT",
    "attempts": "SELECT",
    "escalations": "SELECT",
}
WORKER = {
    "accounts": "INSERT SELECT UPDATE",
    "agent_tenants": "SELECT",
    "alembic_version": "SELECT",
    "attempts": "INSERT SELECT",
    "consumers": "INSERT SELECT UPDATE",
    "deliveries": "INSERT SELECT UPDATE",
    "epochs": "INSERT SELECT UPDATE",
    "escalations": "INSERT SELECT UPDATE",
    "events": "INSERT SELECT",
    "heartbeats": "DELETE INSERT SELECT UPDATE",
    "intents": "INSERT SELECT UPDATE",
    "pages": "INSERT SELECT UPDATE",
    "rates": "INSERT SELECT UPDATE",
    "registrations": "INSERT SELECT UPDATE",
    "settlements": "INSERT SELECT UPDATE",
    "switches": "DELETE INSERT SELECT UPDATE",
    "webhook_inbox": "DELETE INSERT SELECT UPDATE",
}
FUNCTIONS = {
    "outbox_agent": ["broken_rule", "clock", "fill_deliveries", "is_own", "tenants_allowed"],
    "outbox_worker": ["broken_rule", "clock", "fill_deliveries"],
}
_GRANTS = """
    SELECT c.relname AS name, a.privilege_type AS may, '' AS of_column
      FROM pg_class c, aclexplode(c.relacl) a
     WHERE c.relnamespace = 'outbox'::regnamespace AND a.grantee IN (%(role)s::regrole, 0)
    UNION ALL
    SELECT c.relname, a.privilege_type, t.attname
      FROM pg_class c JOIN pg_attribute t ON t.attrelid = c.oid, aclexplode(t.attacl) a
     WHERE c.relnamespace = 'outbox'::regnamespace AND a.grantee IN (%(role)s::regrole, 0)
    ORDER BY 1, 2, 3
"""


@pytest.fixture
def logins(book: Book) -> Iterator[Logins]:
    with open_logins(book) as opened:
        yield opened


@pytest.mark.parametrize(("role", "expected"), [("outbox_agent", AGENT), ("outbox_worker", WORKER)])
def test_a_role_may_do_this_and_nothing_else(
    database: str, role: str, expected: dict[str, str]
) -> None:
    Clock(database).remove()
    found: dict[str, dict[str, list[str]]] = {}
    with psycopg.connect(plain(database), row_factory=dict_row) as connection:
        grants = connection.execute(_GRANTS, {"role": role}).fetchall()
    for grant in grants:
        columns = found.setdefault(grant["name"], {}).setdefault(grant["may"], [])
        if grant["of_column"]:
            columns.append(grant["of_column"])
    said = {
        table: " ".join(may + (f"({','.join(cols)})" if cols else "") for may, cols in may_.items())
        for table, may_ in found.items()
    }
    assert said == expected


@pytest.mark.parametrize("role", FUNCTIONS)
def test_a_role_may_call_these_functions_and_no_other(book: Book, role: str) -> None:
    found = book.sql(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace "
        "AND prorettype <> 'trigger'::regtype "
        "AND has_function_privilege(%(role)s, oid, 'EXECUTE') ORDER BY proname",
        {"role": role},
    )
    assert [row["proname"] for row in found] == FUNCTIONS[role]


def test_an_agent_enqueues_where_nobody_may_call_a_function_by_default(
    book: Book, logins: Logins
) -> None:
    book.sql("REVOKE EXECUTE ON FUNCTION outbox.broken_rule FROM PUBLIC")
    agent = logins.make("outbox_agent")
    with agent.connect() as connection:
        agent.outbox.enqueue(connection, CHARGE, ACME, charge())
    assert book.count() == 1


def test_what_runs_as_the_owner_looks_its_names_up_in_no_schema_of_a_user(book: Book) -> None:
    rows = book.sql(
        "SELECT proname, proconfig FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace "
        "AND prosecdef"
    )
    assert len(rows) == 4
    assert {tuple(row["proconfig"]) for row in rows} == {("search_path=pg_catalog, pg_temp",)}


# -- two teams over one ledger -------------------------------------------------------------------


class Teams:
    """Two agents' logins, each of its own tenant, and a settled write of each with all that can
    hang on one: attempts, events, a question, a turn, settlements and deliveries."""

    def __init__(self, book: Book, logins: Logins) -> None:
        self.book = book
        self.acme = logins.make("outbox_agent", tenant="acme")
        self.bolt = logins.make("outbox_agent", tenant="bolt")
        settlements.register(book.store, "billing")
        self.ids = {scope.tenant: self.furnish(scope) for scope in (ACME, BOLT)}

    def furnish(self, scope: Scope) -> UUID:
        book = self.book
        args = charge(f"in_{scope.tenant}")
        answer = book.enqueue(scope=scope, args=args)
        book.enqueue(scope=scope, args={**args, "memo": "another"})
        (row,) = [r for r in book.claimer().claim(64) if r.id == answer.intent_id]
        with book.store.transaction() as tx:
            records.record(tx, [Ended(row, receipt(row, f"pi_{scope.tenant}"))])
            landed = intents.lock(tx, row.id)
            assert landed is not None
            escalations.open_for_intent(tx, landed, ["duplicate"], {})
        with psycopg.connect(book.url) as connection:
            book.outbox.advance_epoch(connection, scope.tenant, scope.run_id, "turn-1")
        return row.id


@pytest.fixture
def teams(book: Book, logins: Logins) -> Teams:
    return Teams(book, logins)


TABLES = ("intents", "attempts", "events", "settlements", "deliveries", "escalations", "epochs")
_OWNERS = {
    "intents": "SELECT tenant FROM outbox.intents",
    "epochs": "SELECT tenant FROM outbox.epochs",
    "deliveries": "SELECT i.tenant FROM outbox.deliveries d "
    "JOIN outbox.settlements s ON s.id = d.settlement_id "
    "JOIN outbox.intents i ON i.id = s.intent_id",
}


def seen(login: Login | Book, table: str) -> list[str]:
    """The tenants of the rows that are seen; those whose owner is not are '?'."""
    count = login.sql(f"SELECT count(*) AS n FROM outbox.{table}")[0]["n"]
    owners = login.sql(
        _OWNERS.get(
            table,
            f"SELECT i.tenant FROM outbox.{table} t JOIN outbox.intents i ON i.id = t.intent_id",
        )
    )
    found = sorted(row["tenant"] for row in owners)
    return found + ["?"] * (count - len(found))


@pytest.mark.parametrize("table", TABLES)
def test_an_agent_sees_the_rows_of_its_tenant_and_no_other(teams: Teams, table: str) -> None:
    assert set(seen(teams.book, table)) == {"acme", "bolt"}
    assert set(seen(teams.acme, table)) == {"acme"}
    assert set(seen(teams.bolt, table)) == {"bolt"}
    assert len(seen(teams.acme, table)) == len(seen(teams.bolt, table)) > 0


def test_a_question_about_an_account_is_no_tenants(teams: Teams) -> None:
    with teams.book.store.transaction() as tx:
        escalations.open_for_holder(tx, "pause:stripe/default", ["paused"], {})
    assert set(seen(teams.acme, "escalations")) == {"acme"}


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE outbox.intents SET told_at = now(), version = version + 1",
        "UPDATE outbox.epochs SET ended_at = now()",
        "UPDATE outbox.deliveries SET consumed_at = now()",
    ],
)
def test_an_update_of_everything_reaches_its_own_rows_only(teams: Teams, statement: str) -> None:
    table, column = statement.split()[1], statement.split()[3]
    teams.acme.sql(statement)
    changed = teams.book.sql(f"SELECT count({column}) AS n FROM {table}")[0]["n"]
    assert changed == len(seen(teams.acme, table.split(".")[1])) > 0
    assert changed < len(seen(teams.book, table.split(".")[1]))


def test_a_write_in_another_tenants_name_is_refused(teams: Teams) -> None:
    with teams.acme.connect() as connection, pytest.raises(errors.InsufficientPrivilege):
        teams.acme.outbox.enqueue(connection, CHARGE, BOLT, charge())
    with teams.acme.connect() as connection, pytest.raises(errors.InsufficientPrivilege):
        teams.acme.outbox.advance_epoch(connection, "bolt", "run-1", "turn-2")
    assert seen(teams.book, "epochs").count("bolt") == 1


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO outbox.events (intent_id, at, actor, kind) VALUES (%s, now(), 'a', 'k')",
        "INSERT INTO outbox.settlements (intent_id, version, kind, status, told, at) "
        "VALUES (%s, 99, 'ruled', 'failed_poison', 'failed', now())",
    ],
)
def test_nothing_can_be_hung_on_another_tenants_intent(teams: Teams, statement: str) -> None:
    with pytest.raises(errors.InsufficientPrivilege):
        teams.acme.sql(statement, teams.ids["bolt"])
    teams.acme.sql(statement, teams.ids["acme"])


def test_no_result_of_another_tenant_can_be_taken_or_marked_as_taken(teams: Teams) -> None:
    (theirs,) = teams.book.sql(
        "SELECT s.id FROM outbox.settlements s WHERE s.intent_id = %(id)s AND s.kind = 'settled'",
        {"id": teams.ids["bolt"]},
    )
    teams.book.sql("INSERT INTO outbox.consumers (name, registered_at) VALUES ('later', now())")
    with pytest.raises(errors.InsufficientPrivilege):
        teams.acme.sql("INSERT INTO outbox.deliveries VALUES ('later', %s, now())", theirs["id"])


def taken(login: Login, consumer: str = "billing") -> list[str]:
    with login.connect() as connection:
        return [s.tenant for s in login.outbox.settlements(connection, consumer)]


def test_each_team_takes_its_own_results_of_one_consumer(teams: Teams) -> None:
    assert set(taken(teams.acme)) == {"acme"}
    assert taken(teams.acme) == []
    assert set(taken(teams.bolt)) == {"bolt"}
    assert taken(teams.bolt) == []


def test_a_consumer_that_one_team_makes_known_has_the_others_past_too(teams: Teams) -> None:
    assert set(taken(teams.acme, "audit")) == {"acme"}
    assert set(taken(teams.bolt, "audit")) == {"bolt"}


def test_a_consumer_cannot_be_made_known_without_its_past(teams: Teams) -> None:
    with pytest.raises(errors.InsufficientPrivilege):
        teams.acme.sql(
            "INSERT INTO outbox.consumers (name, registered_at, filled_to) "
            "VALUES ('mine', now(), NULL)"
        )


def test_an_agent_cannot_call_a_consumers_past_handed_over(teams: Teams) -> None:
    """An empty piece would say that nothing is left."""
    teams.acme.sql("INSERT INTO outbox.consumers (name, registered_at) VALUES ('late', now())")
    teams.acme.sql("SELECT outbox.fill_deliveries('late', 0)")
    late = teams.book.sql(
        "SELECT (SELECT count(*) FROM outbox.settlements) AS settled, "
        "(SELECT count(*) FROM outbox.deliveries WHERE consumer = 'late') AS given, "
        "filled_to FROM outbox.consumers WHERE name = 'late'"
    )
    assert late[0]["filled_to"] is not None or late[0]["given"] == late[0]["settled"]
    assert late[0]["settled"] > 0


def test_another_tenants_id_is_not_seen(teams: Teams) -> None:
    assert teams.acme.outbox.wait(teams.ids["bolt"]).status == "not_seen"
    assert teams.acme.outbox.wait(teams.ids["acme"]).status == "succeeded"
    assert teams.book.row(teams.ids["bolt"]).told_at is None


def test_another_tenants_refused_write_cannot_be_superseded(teams: Teams) -> None:
    answer = teams.book.enqueue(scope=BOLT)
    (row,) = [r for r in teams.book.claimer().claim(64) if r.id == answer.intent_id]
    with teams.book.store.transaction() as tx:
        records.record(tx, [Ended(row, Refused("declined", covers_key=True))])
    with teams.acme.connect() as connection, pytest.raises(NotFound):
        teams.acme.outbox.enqueue(connection, CHARGE, ACME, charge(), supersedes=row.id)
    # Nor by SQL of its own, which would take the one successor away from its owner.
    with teams.acme.connect() as connection:
        teams.acme.outbox.enqueue(connection, CHARGE, ACME, charge("in_mine"))
        with pytest.raises(errors.InsufficientPrivilege):
            connection.execute(_copy_superseding(row.id))
    with teams.bolt.connect() as connection:
        again = teams.bolt.outbox.enqueue(connection, CHARGE, BOLT, charge(), supersedes=row.id)
    assert not again.deduplicated


def _copy_superseding(intent_id: UUID) -> bytes:
    """A row like the newest own one, in place of another's."""
    columns = (
        "tenant, vendor, account, tool, operation, side_effect, run_id, once_per, fingerprint, "
        "fingerprint_version, identity, guard, request, request_sha256, api_version, gate, ttl_s, "
        "due_at, ttl_at, created_at"
    )
    return (
        f"INSERT INTO outbox.intents (id, key, supersedes, {columns}) SELECT gen_random_uuid(), "
        f"sha256('x'), '{intent_id}', {columns} FROM outbox.intents ORDER BY seq DESC LIMIT 1"
    ).encode()


def test_the_twin_guard_of_one_tenant_knows_nothing_of_another(teams: Teams) -> None:
    for login, scope in ((teams.acme, ACME), (teams.bolt, BOLT)):
        for tool in (CHARGE, ONCE):
            with login.connect() as connection:
                first = login.outbox.enqueue(connection, tool, scope, charge("in_twin"))
                again = login.outbox.enqueue(connection, tool, scope, charge("in_twin"))
            assert not first.deduplicated
            assert (again.intent_id, again.deduplicated) == (first.intent_id, True)


def test_a_mapped_agent_may_do_all_that_its_api_does(teams: Teams) -> None:
    acme = teams.acme
    turn = Scope(tenant="acme", run_id="run-1", epoch="turn-1")
    with acme.connect() as connection:
        acme.outbox.enqueue(connection, TURN, turn, charge())
        assert acme.outbox.advance_epoch(connection, "acme", "run-1", "turn-2") == 1
        answer = acme.outbox.enqueue(connection, CHARGE, ACME, charge("in_again"))
        acme.outbox.enqueue(connection, CHARGE, ACME, {**charge("in_again"), "memo": "x"})
        (cancelled,) = [
            s for s in acme.outbox.settlements(connection, "billing") if s.told == "cancelled"
        ]
        assert cancelled.tenant == "acme"
    assert acme.outbox.wait(answer).told == "accepted"


def test_a_mapped_agent_is_refused_by_the_depth_of_its_own_tenant(teams: Teams) -> None:
    tool = replace(CHARGE, name="charge_small", max_depth=2)
    for login, scope in ((teams.acme, ACME), (teams.bolt, BOLT)):
        with login.connect() as connection:
            for _ in range(2):
                login.outbox.enqueue(connection, tool, scope, charge())
            with pytest.raises(Full):
                login.outbox.enqueue(connection, tool, scope, charge())


# -- who is which tenant -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        "SET ROLE outbox_agent",
        "SET outbox.tenant = 'bolt'",
        "SET LOCAL outbox.tenant = 'bolt'",
        "SET application_name = 'bolt'",
        "SET search_path = pg_temp, outbox",
        "CREATE TEMP TABLE agent_tenants (login name, tenant text)",
        "CREATE FUNCTION pg_temp.tenants_allowed() RETURNS text[] LANGUAGE sql "
        "AS 'SELECT NULL::text[]'",
    ],
)
def test_no_word_in_the_session_makes_it_another_tenant(teams: Teams, said: str) -> None:
    with teams.acme.connect() as connection:
        connection.execute(said.encode())
        rows = connection.execute("SELECT DISTINCT tenant FROM outbox.intents").fetchall()
    assert rows == [{"tenant": "acme"}]


@pytest.mark.parametrize(
    "said",
    [
        "SET ROLE {bolt}",
        "SET SESSION AUTHORIZATION {bolt}",
        "INSERT INTO outbox.agent_tenants VALUES ('{acme}', 'bolt')",
        "UPDATE outbox.agent_tenants SET tenant = 'bolt'",
        "SELECT * FROM outbox.agent_tenants",
        "ALTER TABLE outbox.intents DISABLE ROW LEVEL SECURITY",
        "DROP POLICY own_tenants ON outbox.intents",
        "SET row_security = off; SELECT * FROM outbox.intents",
        "CREATE OR REPLACE FUNCTION outbox.tenants_allowed() RETURNS text[] LANGUAGE sql "
        "AS 'SELECT NULL::text[]'",
    ],
)
def test_what_would_make_it_another_tenant_is_refused(teams: Teams, said: str) -> None:
    words = said.format(acme=teams.acme.name, bolt=teams.bolt.name)
    with pytest.raises(errors.InsufficientPrivilege):
        teams.acme.sql(words)


def test_a_function_of_the_owner_tells_nothing_of_another_tenant(teams: Teams) -> None:
    def is_own(intent: UUID, tenant: str) -> Any:
        return teams.acme.sql("SELECT outbox.is_own(%s, %s) AS y", intent, tenant)[0]["y"]

    assert is_own(teams.ids["acme"], "acme")
    assert not is_own(teams.ids["acme"], "bolt")
    assert not is_own(teams.ids["bolt"], "bolt")
    assert not is_own(teams.ids["bolt"], "acme")


def test_without_any_mapping_one_team_sees_everything(book: Book, logins: Logins) -> None:
    login = logins.make("outbox_agent")
    book.enqueue(scope=BOLT)
    with login.connect() as connection:
        login.outbox.enqueue(connection, CHARGE, ACME, charge())
    assert set(seen(login, "intents")) == {"acme", "bolt"}


def test_once_a_login_is_mapped_one_that_is_not_sees_nothing(teams: Teams, logins: Logins) -> None:
    other = logins.make("outbox_agent")
    for table in TABLES:
        assert seen(other, table) == []
    with other.connect() as connection, pytest.raises(errors.InsufficientPrivilege):
        other.outbox.enqueue(connection, CHARGE, ACME, charge())


def test_a_login_may_be_mapped_to_several_tenants_or_to_all(teams: Teams, logins: Logins) -> None:
    every = logins.make("outbox_agent", tenant=None)
    both = logins.make("outbox_agent", tenant="acme")
    teams.book.enqueue(scope=Scope(tenant="crux", run_id="r"))
    assert set(seen(every, "intents")) == {"acme", "bolt", "crux"}
    teams.book.sql(
        "INSERT INTO outbox.agent_tenants VALUES (%(login)s, 'bolt')", {"login": both.name}
    )
    assert set(seen(both, "intents")) == {"acme", "bolt"}


@pytest.mark.parametrize("role", ["outbox_worker", "pg_monitor"])
def test_a_mapping_is_nothing_to_any_other_role(teams: Teams, logins: Logins, role: str) -> None:
    login = logins.make(role)
    teams.book.sql(f"GRANT USAGE ON SCHEMA outbox TO {login.name}")
    teams.book.sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA outbox TO {login.name}")
    for table in TABLES:
        assert set(seen(login, table)) == {"acme", "bolt"}


def test_the_workers_claim_is_planned_as_without_any_policy(teams: Teams, logins: Logins) -> None:
    worker = logins.make("outbox_worker")
    (part,) = teams.book.claimer()._parts
    values = {**part.params, "limit": 64, "cursor": ""}

    def plan() -> list[list[str]]:
        found: list[list[str]] = []
        for pair in (claims_sql.BATCH, claims_sql.LANE_BATCH, claims_sql.SOLO):
            for sql in pair.values():
                with worker.store.transaction() as tx:
                    rows = tx.all(f"EXPLAIN (COSTS OFF, VERBOSE) {sql}", values)
                found += [_terms(row["QUERY PLAN"]) for row in rows]
        return found

    with_policies = plan()
    assert len(with_policies) > 20
    for table in TABLES:
        teams.book.sql(f"ALTER TABLE outbox.{table} DISABLE ROW LEVEL SECURITY")
    assert plan() == with_policies


def _terms(line: str) -> list[str]:
    """A line of a plan; the terms of a filter in one order, for theirs may change places."""
    named, _, terms = line.rpartition(": ")
    return [named, *sorted(re.sub("[()]", "", terms).split(" AND "))]
