"""Lists: each filter, pages that go on where they stopped, and statements that find an index."""

from __future__ import annotations

import itertools
import json
from typing import Any

import psycopg
import pytest

from outbox.store import listing
from outbox.store.connection import Transaction
from tests.cli.desk import CHARGE, Desk

WIDE = ("--limit", "10000")


def items(desk: Desk, noun: str, *filters: str) -> list[dict[str, Any]]:
    ran = desk.invoke(noun, "list", "--json", *filters)
    assert ran.code == 0, ran.err
    found: list[dict[str, Any]] = ran.json["items"]
    return found


@pytest.fixture
def crowd(desk: Desk) -> Desk:
    """Rows of two tenants, tools, runs, vendors and accounts, in every status, of many ages."""
    desk.enqueue()
    desk.sql(
        """
        INSERT INTO outbox.intents (id, tenant, vendor, account, tool, operation, side_effect,
            run_id, once_per, key, fingerprint, fingerprint_version, identity, guard, args, request,
            request_sha256, api_version, gate, status, ttl_s, due_at, ttl_at, created_at,
            settled_at, first_sent_at, receipt_id, told_at)
        SELECT gen_random_uuid(), 'tenant-' || n % 2, 'vendor-' || n % 3, 'account-' || n % 2,
            'tool_' || n % 3, operation, side_effect, 'run-' || n % 5, once_per,
            sha256(('k' || n)::bytea), sha256(('f' || n)::bytea), fingerprint_version, identity,
            guard, args, request, request_sha256, api_version, gate,
            (ARRAY['pending', 'unknown', 'succeeded', 'failed_poison', 'cancelled'])[1 + n % 5],
            ttl_s, due_at, ttl_at, outbox.clock() - n * INTERVAL '1 minute',
            CASE WHEN n % 5 > 1 THEN outbox.clock() END,
            CASE WHEN n % 5 = 1 THEN outbox.clock() END,
            CASE WHEN n % 5 = 2 THEN 'pi_' || n END, outbox.clock()
        FROM outbox.intents, generate_series(1, 60) n;
        INSERT INTO outbox.escalations (id, intent_id, reasons, opened_at, changed_at, closed_at)
        SELECT gen_random_uuid(), id, CASE WHEN seq % 2 = 0 THEN ARRAY['ttl', 'window']
            ELSE ARRAY['contradiction'] END, created_at, created_at,
            CASE WHEN tool = 'tool_2' THEN outbox.clock() END
        FROM outbox.intents WHERE status IN ('unknown', 'pending');
        UPDATE outbox.escalations SET acked_by = 'bob',
            acked_until = outbox.clock() + CASE WHEN id::text < '8' THEN 1 ELSE -1 END
                * INTERVAL '1 hour';
        UPDATE outbox.escalations SET muted_until = outbox.clock() + INTERVAL '1 hour'
            WHERE right(id::text, 1) < '8';
        """
    )
    return desk


def test_every_filter_and_every_two_of_them_leave_what_they_name(crowd: Desk) -> None:
    every = items(crowd, "intent", *WIDE)
    assert len(every) == 61
    asked = {
        str(r["intent_id"])
        for r in crowd.sql("SELECT * FROM outbox.escalations")
        if not r["closed_at"]
    }
    open_ = ("pending", "unknown")
    filters: list[tuple[tuple[str, ...], Any]] = [
        (
            ("--status", "unknown", "--status", "succeeded"),
            lambda i: i["status"] in ("unknown", "succeeded"),
        ),
        (("--unsettled",), lambda i: i["status"] in open_),
        (("--vendor", "vendor-1"), lambda i: i["account"].startswith("vendor-1/")),
        (("--account", "account-1"), lambda i: i["account"].endswith("/account-1")),
        (("--account", "vendor-2/account-0"), lambda i: i["account"] == "vendor-2/account-0"),
        (("--tool", "tool_2"), lambda i: i["tool"] == "tool_2"),
        (("--tenant", "tenant-1"), lambda i: i["tenant"] == "tenant-1"),
        (("--run", "run-3"), lambda i: i["run_id"] == "run-3"),
        (("--older-than", "30m30s"), lambda i: i["age_s"] > 1830),
        (("--newer-than", "30m30s"), lambda i: i["age_s"] < 1830),
        (("--escalated",), lambda i: i["id"] in asked),
        (("--not-escalated",), lambda i: i["id"] not in asked),
    ]
    for (one, holds), (other, also) in itertools.combinations_with_replacement(filters, 2):
        if {one[0], other[0]} == {"--vendor", "--account"} and "/" in (one[1] + other[1]):
            continue
        found = items(crowd, "intent", *one, *(other if other != one else ()), *WIDE)
        if one[0] == other[0] and one != other:
            continue  # the last one counts
        wanted = [i["id"] for i in every if holds(i) and also(i)]
        if {one[0], other[0]} == {"--escalated", "--not-escalated"}:
            continue
        assert [i["id"] for i in found] == wanted, (one, other)


def test_questions_are_narrowed_by_reason_place_and_who_looks(crowd: Desk) -> None:
    rows = {
        str(r["id"]): r
        for r in crowd.sql(
            "SELECT e.id, e.reasons, i.vendor, i.account, i.tool, i.tenant, "
            "acked_until > outbox.clock() AS acked, "
            "COALESCE(muted_until > outbox.clock(), false) AS muted "
            "FROM outbox.escalations e JOIN outbox.intents i ON i.id = e.intent_id "
            "WHERE closed_at IS NULL"
        )
    }
    filters: list[tuple[tuple[str, ...], Any]] = [
        (("--reason", "window"), lambda r: "window" in r["reasons"]),
        (("--reason", "window", "--reason", "contradiction"), lambda r: True),
        (("--vendor", "vendor-1"), lambda r: r["vendor"] == "vendor-1"),
        (
            ("--account", "vendor-1/account-1"),
            lambda r: (r["vendor"], r["account"]) == ("vendor-1", "account-1"),
        ),
        (("--tenant", "tenant-0"), lambda r: r["tenant"] == "tenant-0"),
        (("--tool", "tool_0"), lambda r: r["tool"] == "tool_0"),
        (("--acked",), lambda r: r["acked"]),
        (("--not-acked",), lambda r: not r["acked"]),
        (("--muted", "--not-acked"), lambda r: r["muted"] and not r["acked"]),
        (("--not-muted",), lambda r: not r["muted"]),
    ]
    for given, holds in filters:
        found = {i["id"] for i in items(crowd, "escalation", *given, *WIDE)}
        assert found == {name for name, row in rows.items() if holds(row)}, given
    assert {i["id"] for i in items(crowd, "escalation", *WIDE)} == set(rows)
    assert len(items(crowd, "escalation", "--all", *WIDE)) == 25


def test_a_question_about_an_account_is_found_by_its_place(desk: Desk) -> None:
    assert desk.invoke("vendor", "pause", "stripe/default", "--reason", "x").code == 0
    for filters in (
        ("--vendor", "stripe"),
        ("--account", "stripe/default"),
        ("--reason", "paused"),
    ):
        assert len(items(desk, "escalation", *filters)) == 1
    assert items(desk, "escalation", "--vendor", "other") == []


@pytest.mark.parametrize("more", [(), ("--all",)], ids=["open", "all"])
def test_pages_of_questions_go_on_though_some_are_closed_in_between(
    crowd: Desk, more: tuple[str, ...]
) -> None:
    every = [i["id"] for i in items(crowd, "escalation", *WIDE, *more)]
    seen: list[str] = []
    after: tuple[str, ...] = ()
    while True:
        part = crowd.invoke("escalation", "list", "--limit", "3", *after, *more, "--json").json
        seen += [i["id"] for i in part["items"]]
        if part["next"] is None:
            break
        after = ("--after", part["next"])
        # The last one of this page: the next page must not begin somewhere else for it.
        if seen[-1] in every[:6]:
            crowd.sql(
                "UPDATE outbox.escalations SET closed_at = outbox.clock() WHERE id = %(id)s",
                {"id": seen[-1]},
            )
    assert [i for i in dict.fromkeys(seen) if i in every] == every


def test_who_looked_once_and_a_mute_that_has_ended_are_no_longer_listed(desk: Desk) -> None:
    question = str(desk.escalate(desk.lost()[0]))
    for verb in ("ack", "mute"):
        given = ("escalation", verb, question, "--for", "10m", "--reason", "x")
        assert desk.invoke(*given).code == 0
    (now,) = items(desk, "escalation", "--acked", "--muted")
    assert now["acked_by"] == "alice"
    assert now["muted_until"]
    desk.forward(601)
    (later,) = items(desk, "escalation", "--not-acked", "--not-muted")
    assert (later["acked_by"], later["muted_until"]) == (None, None)


def test_filters_that_cannot_be_are_usage_errors(desk: Desk) -> None:
    for args in (
        ("intent", "list", "--unsettled", "--status", "succeeded"),
        ("intent", "list", "--account", "stripe/", "--json"),
        ("intent", "list", "--account", "stripe/default", "--vendor", "other"),
        ("intent", "list", "--newer-than", "yesterday"),
        ("escalation", "list", "--after", "1.never.5"),
        ("escalation", "list", "--after", "17"),
        ("intent", "list", "--every", "0s"),
    ):
        ran = desk.invoke(*args)
        assert (ran.code, ran.out) == (2, ""), args


class Explained(Transaction):
    """Shows how Postgres would run what is asked, and runs nothing."""

    plan = ""

    def all(self, sql: Any, params: Any = None) -> list[dict[str, Any]]:
        rows = self.connection.execute(f"EXPLAIN (FORMAT JSON) {sql}", params).fetchall()
        self.plan = json.dumps(rows[0]["QUERY PLAN"])
        return []

    def scans_all_of(self, table: str) -> bool:
        nodes = json.loads(self.plan)
        while nodes:
            node = nodes.pop()
            if (node.get("Node Type"), node.get("Relation Name")) == ("Seq Scan", table):
                return True
            nodes += [node[name] for name in ("Plan",) if name in node] + node.get("Plans", [])
        return False


def test_what_is_unsettled_is_listed_without_reading_what_is_settled(desk: Desk) -> None:
    """Ten thousand settled rows, forty open ones: the partial indexes are found."""
    many_settled(desk)
    unsettled = ["pending", "unknown"]
    with desk.store.transaction() as tx:
        explained = Explained(tx.connection)
        for filters, index in (
            ({"status": ["unknown"]}, "intents_doubt"),
            ({"status": unsettled, "vendor": "stripe", "account": "default"}, "intents_unsettled"),
            ({"status": unsettled, "older_s": 3600.0}, "intents_"),
            ({"status": ["unknown"], "tenant": "acme", "older_s": 3600.0}, "intents_doubt"),
            ({"escalated": True}, "escalations_open_intent"),
            # What was told of a run, and what was not.
            ({"run_id": "run-1", "tenant": "acme"}, "intents_run"),
            ({"run_id": "run-1", "tenant": "acme"}, "intents_twin"),
            ({"vendor": "stripe"}, "intents_seq"),
        ):
            listing.intents(explained, limit=50, **filters)
            assert index in explained.plan, (filters, explained.plan)
            assert not explained.scans_all_of("intents"), (filters, explained.plan)
        for asked in ({}, {"reasons": ["ttl"]}, {"vendor": "stripe"}, {"acked": False}):
            listing.escalations(explained, limit=50, **asked)
            assert "escalations_open_intent" in explained.plan, (asked, explained.plan)


def many_settled(desk: Desk) -> None:
    with psycopg.connect(desk.settings.database_url.replace("+psycopg", "")) as connection:
        desk.enqueue(CHARGE)
        connection.execute(
            """
            INSERT INTO outbox.intents (id, tenant, vendor, account, tool, operation, side_effect,
                run_id, once_per, key, fingerprint, fingerprint_version, identity, guard, args,
                request, request_sha256, api_version, gate, status, ttl_s, due_at, ttl_at,
                created_at, settled_at, first_sent_at, receipt_id, told_at)
            SELECT gen_random_uuid(), tenant, vendor, account, tool, operation, side_effect,
                'run-' || n, once_per, sha256(('k' || n)::bytea), sha256(('f' || n)::bytea),
                fingerprint_version, identity, guard, args, request, request_sha256, api_version,
                gate, CASE WHEN n <= 40 THEN 'unknown' ELSE 'succeeded' END, ttl_s, due_at, ttl_at,
                outbox.clock() - n * INTERVAL '1 minute',
                CASE WHEN n > 40 THEN outbox.clock() END, outbox.clock(),
                CASE WHEN n > 40 THEN 'pi_' || n END, outbox.clock()
            FROM outbox.intents, generate_series(1, 10000) n;
            INSERT INTO outbox.escalations
                (id, intent_id, reasons, opened_at, changed_at, closed_at)
            SELECT gen_random_uuid(), id, ARRAY['ttl'], created_at, created_at, settled_at
            FROM outbox.intents;
            """
        )
    desk.sql("ANALYZE outbox.intents, outbox.escalations")
