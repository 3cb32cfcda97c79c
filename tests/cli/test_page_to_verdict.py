"""From a page to the correct verdict by the commands that are told, with receipts checked."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.desk import Desk
from tests.cli.test_escalation_show import everything, shown

# -- from a page to a verdict --------------------------------------------------------------------


def test_from_the_page_to_the_verdict_it_is_two_commands_as_they_were_told(
    desk: Desk, tmp_path: Path
) -> None:
    intent_id, _ = desk.lost(landed=True)
    question = desk.escalate(intent_id)
    desk.sql("UPDATE outbox.intents SET due_at = due_at + INTERVAL '1 day'")
    desk.env["OUTBOX_PAGERS"] = f"file:{tmp_path / 'pages'}"
    assert desk.run("resolve", "--once").code == 0
    (page,) = [json.loads(line) for line in (tmp_path / "pages").read_text().splitlines()]
    program, *first = shlex.split(page["details"]["first_command"])
    assert program == "outbox"
    assert first[:2] == ["escalation", "show"]
    piped = desk.run(*first)
    assert piped.code == 0
    (command,) = [
        line.split("\t")[1]
        for line in piped.out.splitlines()
        if line.startswith("landed.") and ".command\t" in line
    ]
    ran = desk.run(*shlex.split(command)[1:], "--yes")
    assert ran.code == 0, ran.err
    assert desk.row(intent_id).status == "succeeded"
    assert desk.escalation(question)["verdict"] == "landed"


def test_on_a_terminal_the_verdicts_fit_and_no_command_is_folded(desk: Desk) -> None:
    intent_id, object_id = desk.lost(landed=True)
    question = desk.escalate(intent_id)
    ran = desk.terminal("escalation", "show", str(question), columns=60, NO_COLOR="1")
    lines = ran.out.splitlines()
    command = f"$ outbox escalation landed {question} --receipt {object_id} --reason '...'"
    assert command in [line.strip() for line in lines]
    assert "\x1b" not in ran.out
    told = lines[lines.index("what each verdict would do now") :]
    assert max(len(line) for line in told if "$" not in line) <= 60


def test_from_the_page_of_a_group_the_questions_are_one_command_away(desk: Desk) -> None:
    desk.env |= {"OUTBOX_PAGE_GROUP_FROM": "2", "OUTBOX_PAGERS": "none"}
    questions = {str(desk.escalate(desk.lost()[0])) for _ in range(3)}
    desk.sql("UPDATE outbox.intents SET due_at = due_at + INTERVAL '1 day'")
    assert desk.run("resolve", "--once").code == 0
    (group,) = desk.sql("SELECT id FROM outbox.escalations WHERE starts_with(holder, 'group:')")
    body = shown(desk, group["id"])
    listed = desk.invoke(*shlex.split(body["next"])[1:], "--json").json["items"]
    assert {i["id"] for i in listed if i["intent_id"]} == questions
    piped = desk.invoke("escalation", "show", str(group["id"])).out
    assert all(question in piped for question in questions)


# -- a receipt is checked ------------------------------------------------------------------------


def of_another_intent(desk: Desk) -> str:
    return desk.lost(landed=True)[1]


def of_another_account(desk: Desk) -> str:
    made = desk.sandbox.plant(
        f"{desk.vendor_account}x", "payment_intents.create", {"amount": "1200", "currency": "usd"}
    )
    return str(made["id"])


def of_another_kind(desk: Desk) -> str:
    made = desk.sandbox.plant(desk.vendor_account, "customers.create", {})
    return str(made["id"])


def of_nobody(desk: Desk) -> str:
    return "pi_nothing"


@pytest.mark.parametrize(
    "wrong",
    [of_another_intent, of_another_account, of_another_kind, of_nobody],
    ids=lambda wrong: wrong.__name__,
)
def test_a_receipt_that_proves_nothing_is_refused_in_words_and_changes_nothing(
    desk: Desk, wrong: Callable[[Desk], str]
) -> None:
    receipt = wrong(desk)
    intent_id, _ = desk.lost(landed=True)
    question = desk.escalate(intent_id)
    before = everything(desk)
    verb = ("escalation", "landed", str(question), "--receipt", receipt, "--reason", "x")
    for more in (("--yes",), ("--dry-run",)):
        ran = desk.invoke(*verb, *more, "--json")
        assert (ran.code, ran.out) == (4, ""), ran
        assert ran.error["code"] in ("no_such_receipt", "foreign_receipt")
        assert receipt in ran.error["message"]
    assert everything(desk) == before


def test_a_receipt_is_not_believed_while_the_vendor_is_away(desk: Desk) -> None:
    intent_id, object_id = desk.lost(landed=True)
    before = everything(desk)
    verb = ("escalation", "landed", str(intent_id), "--receipt", object_id, "--reason", "x")
    ran = desk.invoke(*verb, "--yes", STRIPE_API_BASE="http://127.0.0.1:9")
    assert (ran.code, ran.out) == (6, "")
    assert "cannot be read now" in ran.err
    assert everything(desk) == before
