"""What scripts rely on: exit codes, data on stdout, one error on stderr."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys
import time

import pytest

from outbox import schema
from tests.cli.desk import SCRIPT, Desk


def test_done_is_zero_with_data_on_stdout_and_nothing_on_stderr(desk: Desk) -> None:
    ran = desk.run("intent", "list")
    assert (ran.code, ran.err) == (0, "")


def test_usage_is_two(desk: Desk) -> None:
    for args in (
        ["intent", "lisst"],
        ["intent", "list", "--status", "lost"],
        ["intent", "show"],
        ["intent", "list", "--limit", "0"],
        ["intent", "list", "--after", "x"],
        ["intent", "list", "--after", "99999999999999999999"],
        ["webhook", "list", "--after", "9" * 5000],
        ["escalation", "list", "--after", "100001"],
        ["intent", "list", "--older-than", "soon"],
        ["intent", "list", "--older-than", "99999999d"],
        ["intent", "list", "--older-than", "9" * 400 + "s"],
        ["intent", "list", "--tenant", "\udcff"],
        ["vendor", "pause", "stripe/default", "--reason", "\udcff"],
        ["vendor", "pause", "stripe/default", "--reason", "calm\x1b[31m"],
        ["vendor", "pause", "stripe/default", "--reason", "calm\nbob: resume it"],
        ["doctor", "--accept", "--reason", "calm\rbob"],
        ["escalation", "mute", "abcdef", "--reason", "x"],
        ["vendor", "check", "stripe"],
    ):
        ran = desk.invoke(*args)
        assert (ran.code, ran.out) == (2, ""), args
        assert ran.err.startswith("outbox: "), args


def test_a_check_that_finds_something_is_three_and_its_findings_are_data(desk: Desk) -> None:
    ran = desk.run("doctor", "--json")
    assert ran.code == 3
    wrong = {f["check"] for f in ran.json["items"] if not f["ok"]}
    assert wrong == {"settable_clock", "heartbeat_stale"}
    assert ran.err == ""


def test_refused_by_policy_is_four(desk: Desk) -> None:
    intent_id, _ = desk.lost()
    ran = desk.run("intent", "cancel", str(intent_id), "--reason", "x", "--yes", "--json")
    assert (ran.code, ran.out) == (4, "")
    assert ran.error["code"] == "may_have_left"


def test_not_found_is_five(desk: Desk) -> None:
    for args in (["intent", "show", "abcdef12"], ["escalation", "show", "abcdef12"]):
        ran = desk.run(*args, "--json")
        assert (ran.code, ran.out) == (5, "")
        assert ran.error["code"] == "not_found"
    paused = desk.invoke("vendor", "pause", "strpe/default", "--reason", "x", "--json")
    assert paused.code == 5
    assert paused.error["candidates"] == ["stripe/default"]


def test_an_unreachable_database_is_six_and_quickly(desk: Desk) -> None:
    with socket.socket() as nobody:  # bound and not listening: refused
        nobody.bind(("127.0.0.1", 0))
        url = f"postgresql://u:secret@127.0.0.1:{nobody.getsockname()[1]}/x"
        started = time.monotonic()
        ran = desk.run("intent", "list", "--json", DATABASE_URL=url)
        took_s = time.monotonic() - started
        for verb in (["worker"], ["health"], ["doctor"], ["schema", "check"]):
            assert desk.invoke(*verb, DATABASE_URL=url).code == 6, verb
    assert (ran.code, ran.out) == (6, "")
    assert ran.error["code"] == "unreachable"
    assert "secret" not in ran.err
    assert took_s < float(desk.env["OUTBOX_STATEMENT_TIMEOUT_S"])


def test_an_unreachable_vendor_is_six(desk: Desk) -> None:
    ran = desk.run("vendor", "check", STRIPE_API_BASE="http://127.0.0.1:9")
    assert (ran.code, ran.out) == (6, "")


def test_declined_at_the_prompt_is_seven_and_changes_nothing(desk: Desk) -> None:
    intent_id = desk.enqueue()
    verb = ("intent", "cancel", str(intent_id), "--reason", "x")
    for answer in ("n\n", "\n", "\x04"):
        ran = desk.terminal(*verb, answer=answer)
        assert ran.code == 7
        assert "declined" in ran.err
    assert desk.row(intent_id).status == "pending"


def test_every_wrong_setting_is_shown_at_once(desk: Desk) -> None:
    wrong = {
        "DATABASE_URL": "mysql://x",
        "OUTBOX_LEASE_S": "soon",
        "OUTBOX_PROFLIE": "demo",
        "OUTBOX_PAGERS": "carrier-pigeon",
    }
    ran = desk.run("intent", "list", **wrong)
    assert (ran.code, ran.out) == (2, "")
    assert all(name in ran.err for name in wrong)
    told = desk.run("intent", "list", "--json", **wrong).error
    assert {p["field"] for p in told["problems"]} == set(wrong)
    assert told["code"] == "settings"


def test_a_database_without_the_schema_is_said_with_what_to_type(desk: Desk) -> None:
    schema.downgrade(desk.settings.database_url)
    for args in (["intent", "list"], ["escalation", "list"], ["vendor", "list"]):
        ran = desk.invoke(*args)
        assert ran.code == 2
        assert "outbox schema upgrade" in ran.err
    assert desk.invoke("schema", "check").code == 3
    assert [f["check"] for f in desk.invoke("doctor", "--json").json["items"]] == [
        "schema_revision"
    ]
    assert desk.run("schema", "upgrade", "--json").json["changed"] is True
    assert desk.invoke("schema", "upgrade", "--json").json["changed"] is False
    assert desk.invoke("schema", "check").code == 0


def test_the_errors_object_has_always_the_same_fields(desk: Desk) -> None:
    for args in (["intent", "show", "zz"], ["intent", "show", "abcdef"], ["intent", "nothing"]):
        ran = desk.invoke(*args, "--json")
        (line,) = ran.err.splitlines()
        assert set(json.loads(line)) == {"schema", "error"}
        assert set(ran.error) == {"code", "message", "field", "candidates"}


def test_a_reader_that_has_had_enough_is_no_error(desk: Desk) -> None:
    process = desk.start("schema", "sql")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(30) == 0
    assert process.stderr.read() == ""
    process.stderr.close()
    at_once = desk.start("config", "show")
    assert at_once.stdout is not None
    at_once.stdout.close()
    assert at_once.wait(30) == 0
    for pipe in (at_once.stdin, at_once.stderr):
        assert pipe is not None
        pipe.close()
    assert process.stdin is not None
    process.stdin.close()


@pytest.mark.parametrize("verb", ["worker", "beat", "web"])
def test_no_process_starts_on_a_schema_of_another_release(desk: Desk, verb: str) -> None:
    schema.downgrade(desk.settings.database_url)
    ran = desk.run(verb)
    assert (ran.code, ran.out) == (2, "")
    assert "outbox schema upgrade" in ran.err


def test_a_database_that_is_ahead_is_said_to_be_and_never_to_be_upgraded(desk: Desk) -> None:
    desk.sql("UPDATE outbox.alembic_version SET version_num = '2_0001'")
    for args, code in (
        (("schema", "upgrade"), 4),
        (("schema", "check"), 3),
        (("doctor",), 3),
        (("health",), 3),
        (("worker",), 2),
    ):
        ran = desk.run(*args)
        assert ran.code == code, args
        assert "a newer release has upgraded it" in ran.out + ran.err, args
        assert "schema upgrade" not in ran.out + ran.err, args
    assert desk.sql("SELECT version_num FROM outbox.alembic_version")[0]["version_num"] == "2_0001"


def test_what_a_newer_release_has_only_added_to_is_good_enough_for_this_one(desk: Desk) -> None:
    """Migrations come first in a roll-out, and old processes may have to start again beside it."""
    desk.sql("UPDATE outbox.alembic_version SET version_num = '1_9999'")
    for args in (("schema", "upgrade"), ("schema", "check"), ("intent", "list")):
        assert desk.run(*args).code == 0, args
    assert desk.sql("SELECT version_num FROM outbox.alembic_version")[0]["version_num"] == "1_9999"


@pytest.mark.parametrize(
    "url",
    ["postgres://u:hunter2%zz@h/d", "postgres://u:hunter2@h:notaport/d", "postgres://h/d?foo=bar"],
)
def test_an_address_that_cannot_be_read_is_named_and_not_quoted(desk: Desk, url: str) -> None:
    ran = desk.run("intent", "list", DATABASE_URL=url)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("outbox: DATABASE_URL: ")
    assert "hunter2" not in ran.err


def test_a_role_that_may_not_is_refused_by_the_database_in_its_words(desk: Desk) -> None:
    role = f"weak_{desk.vendor_account}"
    desk.sql(f"CREATE ROLE {role} LOGIN")
    url = desk.settings.database_url.replace("postgres@", f"{role}@")
    try:
        for args in (
            ("intent", "list"),
            ("worker",),
            ("doctor",),
            ("schema", "check"),
            ("schema", "upgrade"),
            ("consume", "json:dumps", "--consumer", "c", "--once"),
        ):
            ran = desk.run(*args, DATABASE_URL=url)
            assert (ran.code, ran.out) == (4, ""), (args, ran)
            assert "the database refuses this to the role of DATABASE_URL" in ran.err
            assert len(ran.err.splitlines()) == 1
    finally:
        desk.sql(f"DROP ROLE {role}")


@pytest.mark.parametrize("stdout", ["/dev/full", None])
def test_a_stdout_that_takes_nothing_is_no_bug(desk: Desk, stdout: str | None) -> None:
    words = shlex.join([sys.executable, str(SCRIPT), "config", "show"])
    where = f">{stdout}" if stdout else ">&-"
    ran = subprocess.run(
        ["/bin/sh", "-c", f"{words} {where}"],
        env=desk.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 74
    assert ran.stderr.startswith("outbox: cannot write")
    assert len(ran.stderr.splitlines()) == 1


def test_a_schema_of_that_name_which_is_somebody_elses_is_left_alone_and_said(desk: Desk) -> None:
    schema.downgrade(desk.settings.database_url)
    desk.sql("DROP SCHEMA outbox CASCADE")
    desk.sql("CREATE SCHEMA outbox CREATE TABLE intents (theirs int)")
    ran = desk.run("schema", "upgrade")
    assert (ran.code, ran.out) == (4, "")
    assert "not of this product" in ran.err
    assert len(ran.err.splitlines()) == 1
    tables = desk.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'outbox'")
    assert tables == [{"tablename": "intents"}]


def test_a_name_that_the_terminals_encoding_lacks_is_shown_escaped(desk: Desk) -> None:
    desk.enqueue(tenant="\u65e5\u672c")
    ran = desk.run("intent", "list", PYTHONIOENCODING="latin-1:strict")
    assert (ran.code, ran.err) == (0, "")
    assert "\\u65e5\\u672c" in ran.out
