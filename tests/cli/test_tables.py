"""What people see on a terminal, kept as golden files: `UPDATE_GOLDEN=1 pytest tests/cli`."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from outbox.outcomes import Business, Lost, Reading, Receipt, Refused, Standing
from outbox.store import escalations, moves
from resolvers import holding, triage
from tests.cli.desk import Desk

GOLDEN = Path(__file__).with_name("golden")
TABLES = {
    "intent-list": ("intent", "list"),
    "intent-show": ("intent", "show", "{settled}"),
    "intent-history": ("intent", "history", "{doubtful}"),
    "escalation-list": ("escalation", "list", "--all"),
    "escalation-show": ("escalation", "show", "{question}"),
    "vendor-list": ("vendor", "list"),
    "webhook-list": ("webhook", "list"),
    "config-show": ("config", "show"),
    "doctor": ("doctor",),
    "health": ("health",),
    "resolve": ("resolve", "--once", "--dry-run"),
    "schema-check": ("schema", "check"),
}
LISTS = ("intent-list", "intent-history", "escalation-list", "webhook-list", "doctor", "resolve")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def names(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A ledger in which every id, amount and time is the same in every run."""
    desk.env["STRIPE_API_BASE"] = "http://127.0.0.1:12111"
    account = desk.directory.accounts["stripe", "default"]
    desk.directory.learn("stripe", replace(account, vendor_account="acct_golden"))
    numbers = iter(range(1, 100))
    monkeypatch.setattr(
        escalations, "uuid4", lambda: UUID(int=0xE5CA << 112 | next(numbers), version=4)
    )
    desk.sql(
        "CREATE OR REPLACE FUNCTION outbox.clock() RETURNS timestamptz LANGUAGE sql STABLE AS "
        "$$ SELECT '2026-11-30T09:00:00Z'::timestamptz "
        "+ (SELECT offset_s FROM outbox.test_clock) * INTERVAL '1 second' $$"
    )
    settled = desk.enqueue(invoice_id="in_1001", amount=129900, tenant="globex-international")
    (row,) = desk.claim()
    paid = Reading("pi_golden_1001", Standing.LANDED, Business.PAID, "succeeded")
    desk.record(row, Receipt(paid))
    desk.forward(90)
    refused = desk.enqueue(invoice_id="in_1002", amount=50)
    (row,) = desk.claim()
    desk.record(row, Refused("card_declined", covers_key=True))
    doubtful = desk.enqueue(invoice_id="in_1003", currency="eur")
    (row,) = desk.claim()
    desk.record(row, Lost("no reply within 20 s"))
    question = desk.escalate(doubtful, "ttl", "worker_lost")
    desk.forward(3600)
    held = desk.escalate(refused, "contradiction", objects=["pi_golden_1002"], why="webhook")
    holding.ack(desk.store, desk.directory, str(held), by="bob", reason="asking the vendor")
    holding.pause(
        desk.store, desk.directory, "stripe", "default", by="alice", reason="incident at the vendor"
    )
    cancelled = desk.enqueue(invoice_id="in_1004", amount=7)
    triage.cancel(desk.store, str(cancelled), by="alice", reason="customer withdrew")
    desk.enqueue(invoice_id="in_1005", amount=990)
    for number, state in enumerate(("joined", "parked", "mismatch")):
        detail = "another account names this intent" * (state == "mismatch")
        desk.keep(f"evt_golden_{number}", state, detail=detail)
    desk.sql("UPDATE outbox.webhook_inbox SET intent_id = %(id)s WHERE id = 1", {"id": settled})
    return {"settled": str(settled), "doubtful": str(doubtful), "question": str(question)}


def shown(desk: Desk, names: dict[str, str], table: str, columns: int) -> str:
    args = [part.format(**names) for part in TABLES[table]]
    ran = desk.terminal(*args, columns=columns)
    assert ran.code in (0, 3), ran.err
    lines = [_COLOUR.sub("", line).rstrip() for line in (ran.out + ran.err).splitlines()]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("columns", [80, 120])
def test_the_tables_look_as_they_were_agreed(
    desk: Desk, names: dict[str, str], columns: int
) -> None:
    wrong = {}
    for table in TABLES:
        now = shown(desk, names, table, columns)
        file = GOLDEN / f"{table}-{columns}.txt"
        if os.environ.get("UPDATE_GOLDEN"):
            file.write_text(now)
        if not file.exists() or file.read_text() != now:
            wrong[file.name] = now
    assert wrong == {}


def test_no_line_is_wider_than_the_terminal_and_no_id_is_cut(
    desk: Desk, names: dict[str, str]
) -> None:
    for table in LISTS:
        args = [part.format(**names) for part in TABLES[table]]
        items = desk.invoke(*args, "--json").json["items"]
        assert items, table
        for columns in (80, 120):
            # What the golden files hold is what is shown: the test above says so.
            lines = (GOLDEN / f"{table}-{columns}.txt").read_text().splitlines()
            table_lines = [line for line in lines if not line.startswith("(too narrow")]
            assert max(len(line) for line in table_lines) <= columns, table
            words = {word for line in table_lines for word in line.split()}
            for item in items:
                whole = {str(v) for k, v in item.items() if k in ("id", "check", "job")}
                assert whole <= words, table


def test_a_pipe_gets_tabs_whole_ids_and_no_colour_even_if_colour_is_forced(
    desk: Desk, names: dict[str, str]
) -> None:
    for table in LISTS:
        args = [part.format(**names) for part in TABLES[table]]
        items = desk.invoke(*args, "--json").json["items"]
        ran = desk.run(*args, COLUMNS="20", FORCE_COLOR="1")
        header, *lines = ran.out.splitlines()
        assert header.split("\t") == list(items[0])
        assert [line.split("\t")[0] for line in lines] == [
            str(next(iter(item.values()))) if table != "intent-history" else item["at"]
            for item in items
        ]
        assert "\x1b" not in ran.out


def test_a_history_has_no_blank_where_nothing_was_said(desk: Desk, names: dict[str, str]) -> None:
    with desk.store.transaction() as tx:
        moves.log(
            tx,
            kind="webhook_joined",
            actor="webhook",
            intent_id=names["settled"],
            detail={"event": "evt_golden_0"},
        )
    _, *lines = desk.run("intent", "history", names["settled"]).out.splitlines()
    cells = [cell for line in lines for cell in line.split("\t")]
    assert '{"event": "evt_golden_0"}' in cells
    assert [cell for cell in cells if cell != cell.strip()] == []


def test_colour_is_for_terminals_that_want_it(desk: Desk, names: dict[str, str]) -> None:
    yellow = "\x1b[33m"
    assert yellow in desk.terminal("intent", "list").out
    assert yellow not in desk.terminal("intent", "list", NO_COLOR="1").out
    assert yellow not in desk.terminal("intent", "list", TERM="dumb").out
    assert "\x1b" not in desk.terminal("intent", "list", TERM="dumb").out


def test_what_a_vendor_named_does_not_drive_the_terminal(desk: Desk, names: dict[str, str]) -> None:
    desk.sql(
        "UPDATE outbox.webhook_inbox SET detail = E'\\x1b]0;pwned\\x07 [red]\\ttab' WHERE id = 2"
    )
    on_terminal = desk.terminal("webhook", "list", columns=200, NO_COLOR="1", TERM="dumb").out
    piped = desk.run("webhook", "list").out
    for text in (on_terminal, piped):
        assert "\x1b" not in text
        assert "\x07" not in text
        assert "[red]" in text
    assert {line.count("\t") for line in piped.splitlines()} == {11}


def test_what_an_operator_wrote_does_not_drive_the_next_ones_terminal(
    desk: Desk, names: dict[str, str]
) -> None:
    """Written by a release that took it, or by hand: what is told of it stays one line."""
    desk.sql(
        "UPDATE outbox.switches SET set_by = E'mallory\\x1b[2K', "
        "reason = E'calm\\r\\noutbox: resumed\\x1b[31m\\u009b31m\\u202e'"
    )
    pause = ("vendor", "pause", "stripe/default", "--reason", "x")
    resume = ("vendor", "resume", "stripe/default", "--reason", "x", "--dry-run")
    refused = ("escalation", "resend", names["doubtful"], "--reason", "x", "--yes")
    for args, code in ((pause, 0), (resume, 0), (refused, 4)):
        for more in ((), ("--json",)):
            ran = desk.run(*args, *more)
            told = ran.out or ran.err
            assert ran.code == code, ran
            assert "mallory" in told
            assert all(c.isprintable() for line in told.splitlines() for c in line.split("\t")), (
                told
            )
            assert len((ran.out + ran.err).splitlines()) == (2 if "dry run" in ran.err else 1)


def test_one_long_name_leaves_every_other_in_the_picture(desk: Desk, names: dict[str, str]) -> None:
    digest = f"sha256:{'0123456789abcdef' * 4}"
    desk.sql(
        "UPDATE outbox.webhook_inbox SET event_id = %(digest)s, kind = 'unreadable' WHERE id = 2",
        {"digest": digest},
    )
    desk.sql("UPDATE outbox.intents SET account = repeat('branch-', 20) WHERE status = 'pending'")
    for noun, whole in (
        ("webhook", {"sha256:01234…", "evt_golden_0", "unreadable", "joined", "parked"}),
        ("vendor", {"stripe/default", "test", "paused", "alice"}),
    ):
        shown = _COLOUR.sub("", desk.terminal(noun, "list", columns=80).out)
        assert max(len(line) for line in shown.splitlines()) <= 80, noun
        assert whole <= set(shown.split()), noun
    assert digest in desk.run("webhook", "list").out
    items = desk.invoke("webhook", "list", "--json").json["items"]
    assert digest in {item["event_id"] for item in items}


def test_show_tells_no_personal_data_unless_it_is_asked_to(
    desk: Desk, names: dict[str, str]
) -> None:
    holding.resume(desk.store, desk.directory, "stripe", "default", by="bob", reason="over")
    desk.sql(
        "UPDATE outbox.intents SET due_at = due_at + INTERVAL '1 day' WHERE status = 'pending'"
    )
    jane, _ = desk.lost(invoice_id="in_jane", note="Jane Doe, 1 Elm Street")
    for args in (
        ("intent", "show", str(jane)),
        ("intent", "show", str(jane), "--json"),
        ("intent", "history", str(jane), "--json"),
        ("intent", "list", "--json"),
    ):
        assert "Jane" not in desk.invoke(*args).out, args
    asked = desk.invoke("intent", "show", str(jane), "--with-request", "--json").json
    assert asked["args"]["note"] == "Jane Doe, 1 Elm Street"
    assert asked["request"]["method"] == "post"


def test_a_long_list_goes_on_where_it_stopped(desk: Desk, names: dict[str, str]) -> None:
    for noun in ("intent", "webhook", "escalation"):
        every = desk.invoke(noun, "list", "--json").json
        assert every["next"] is None
        seen, after = [], None
        while True:
            more = ("--after", str(after)) if after is not None else ()
            part = desk.invoke(noun, "list", "--limit", "1", *more, "--json").json
            seen += [item["id"] for item in part["items"]]
            after = part["next"]
            if after is None:
                break
        assert seen == [item["id"] for item in every["items"]], noun


def test_a_list_can_be_narrowed(desk: Desk, names: dict[str, str]) -> None:
    def count(*options: str) -> int:
        return len(desk.invoke("intent", "list", *options, "--json").json["items"])

    assert count() == 5
    assert count("--status", "unknown", "--status", "succeeded") == 2
    assert count("--tenant", "globex-international") == 1
    assert count("--tool", "charge_invoice", "--vendor", "stripe", "--run", "run-1") == 5
    assert count("--tool", "nothing") == 0
    assert count("--older-than", "1h") == 3
