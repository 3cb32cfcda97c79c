"""Which row, and whether somebody really meant it."""

from __future__ import annotations

import os

import pytest

from tests.cli.desk import Desk
from tests.cli.ran import ended


def crowd(desk: Desk, prefix: str) -> list[str]:
    """Two intents in doubt whose ids begin alike."""
    found = []
    for digit in "12":
        intent_id, _ = desk.lost()
        changed = f"{prefix}{digit}{str(intent_id)[len(prefix) + 1 :]}"
        with desk.connect(autocommit=False) as connection:
            connection.execute("SET LOCAL session_replication_role = replica")
            connection.execute(
                "UPDATE outbox.intents SET id = %s WHERE id = %s", [changed, intent_id]
            )
            connection.execute(
                "UPDATE outbox.attempts SET intent_id = %s WHERE intent_id = %s",
                [changed, intent_id],
            )
        found.append(changed)
    return found


VERDICTS = (
    ("landed", "--receipt", "pi_1"),
    ("not-landed",),
    ("resend",),
    ("ack",),
    ("mute", "--for", "1h"),
)


@pytest.mark.parametrize("verdict", VERDICTS, ids=lambda v: v[0])
def test_an_ambiguous_id_touches_no_row_and_lists_the_candidates(
    desk: Desk, verdict: tuple[str, ...]
) -> None:
    """B16: an ambiguous prefix or an empty selector is exit 2; nothing changed, candidates told."""
    ids = crowd(desk, "abab12c")
    before = desk.sql("SELECT * FROM outbox.intents ORDER BY id")
    yes = () if verdict[0] in ("ack", "mute") else ("--yes",)
    name, *options = verdict
    shared = ("escalation", name)
    ran = desk.invoke(*shared, "abab12c", *options, "--reason", "x", *yes, "--json")
    assert ran.code == 2
    assert ran.error["code"] == "ambiguous"
    assert ran.error["candidates"] == sorted(ids)
    for selector in ("", "ab1", "all", "%", "*", "abab12c'; --"):
        said = desk.invoke(*shared, selector, *options, "--reason", "x", *yes)
        assert said.code == 2, selector
    assert desk.invoke(*shared, *options, "--reason", "x", *yes).code == 2
    assert desk.sql("SELECT * FROM outbox.intents ORDER BY id") == before


def test_a_unique_prefix_with_or_without_dashes_is_enough(desk: Desk) -> None:
    intent_id, _ = desk.lost()
    for prefix in (str(intent_id)[:6], str(intent_id)[:13], str(intent_id).replace("-", "")[:20]):
        assert desk.invoke("intent", "show", prefix, "--json").json["id"] == str(intent_id)


def test_off_a_terminal_nothing_that_moves_money_is_done_without_yes(desk: Desk) -> None:
    """B16: piped stdin without --yes is exit 2 and changes nothing, whatever is piped."""
    intent_id, object_id = desk.lost(landed=True)
    desk.quiet()
    before = desk.row(intent_id)
    for args in (
        ("escalation", "landed", str(intent_id), "--receipt", object_id),
        ("escalation", "not-landed", str(intent_id)),
        ("escalation", "resend", str(intent_id)),
        ("intent", "cancel", str(intent_id)),
        ("vendor", "resume", "stripe/default"),
    ):
        ran = desk.run(*args, "--reason", "x", stdin="y\ny\n")
        assert (ran.code, ran.out) == (2, ""), args
        assert "--yes" in ran.err, args
    assert desk.row(intent_id) == before


def test_the_question_shows_whose_money_how_much_how_old_and_how_long_is_left(desk: Desk) -> None:
    """B16: the prompt says which row: tenant, account and mode, tool, amount, age, window left."""
    intent_id, object_id = desk.lost(landed=True, tenant="globex", amount=4200)
    verb = ("escalation", "landed", str(intent_id), "--receipt", object_id, "--reason", "seen")
    ran = desk.terminal(*verb, answer="y\n")
    assert ran.code == 0
    for shown in ("globex", "stripe/default, test", "charge_invoice", "4200 usd", object_id):
        assert shown in ran.err, shown
    for line in ("age ", "window left "):
        assert line in ran.err
    assert desk.row(intent_id).status == "succeeded"


def test_nobody_is_asked_about_what_would_be_refused_anyway(desk: Desk) -> None:
    intent_id, _ = desk.lost()
    ran = desk.terminal("escalation", "not-landed", str(intent_id), "--reason", "x", answer="y\n")
    assert ran.code == 4
    assert "[y/N]" not in ran.err


def test_the_same_verdict_twice_is_done_once_and_exits_with_zero(desk: Desk) -> None:
    """B16: the second time is a no-op with exit code 0, and says so; the trail has who and why."""
    intent_id, object_id = desk.lost(landed=True)
    verb = ("escalation", "landed", str(intent_id), "--receipt", object_id, "--yes")
    first = desk.run(*verb, "--reason", "seen", "--json")
    second = desk.run(*verb, "--reason", "seen", "--json", OUTBOX_ACTOR="bob")
    assert (first.code, second.code) == (0, 0)
    assert (first.json["changed"], second.json["changed"]) == (True, False)
    assert "ruled_landed by alice at" in second.json["said"]
    trail = desk.invoke("intent", "history", str(intent_id), "--json").json["items"]
    (ruled,) = [e for e in trail if e["kind"] == "ruled_landed"]
    assert ruled["actor"] == "alice"
    assert "seen" in ruled["detail"]
    assert ruled["at"]


def test_a_verdict_of_success_without_a_receipt_is_a_usage_error(desk: Desk) -> None:
    """B16: succeeded with no receipt."""
    intent_id, _ = desk.lost(landed=True)
    ran = desk.invoke("escalation", "landed", str(intent_id), "--reason", "x", "--yes", "--json")
    assert ran.code == 2
    assert ran.error["field"] == "receipt"
    assert desk.row(intent_id).status == "unknown"


def test_a_foreign_receipt_is_refused_on_the_command_line(desk: Desk) -> None:
    _, foreign = desk.lost(landed=True)
    intent_id, _ = desk.lost()
    ran = desk.run(
        "escalation", "landed", str(intent_id), "--receipt", foreign, "--reason", "x", "--yes"
    )
    assert (ran.code, ran.out) == (4, "")
    assert foreign in ran.err
    assert desk.row(intent_id).status == "unknown"


def test_without_a_name_in_the_environment_the_systems_user_is_the_actor(desk: Desk) -> None:
    import pwd

    intent_id = desk.enqueue()
    env = {k: v for k, v in desk.env.items() if k != "OUTBOX_ACTOR"} | {"USER": "somebody"}
    desk.env = env
    assert desk.run("intent", "cancel", str(intent_id), "--reason", "x", "--yes").code == 0
    (event,) = desk.events(intent_id, "cancelled")
    assert event["actor"] == pwd.getpwuid(os.getuid()).pw_name


def test_of_two_processes_with_one_row_one_rules_and_the_other_is_told_who_and_when(
    desk: Desk,
) -> None:
    """B12(a, b): two processes at a barrier; both have read the row, one transition wins."""
    intent_id, _ = desk.lost()
    desk.quiet()
    with desk.held("intents", intent_id) as until_waiting:
        processes = [
            desk.start(
                "escalation", verb, str(intent_id), "--reason", "x", "--yes", OUTBOX_ACTOR=actor
            )
            for verb, actor in (("resend", "bob"), ("not-landed", "alice"))
        ]
        until_waiting(2)
    ran = [ended(process) for process in processes]
    assert sorted(r.code for r in ran) == [0, 4]
    loser = next(r for r in ran if r.code == 4)
    won_by_alice = ran[1].code == 0
    assert f"by {'alice' if won_by_alice else 'bob'} at 20" in loser.err
    wanted = "failed_poison" if won_by_alice else "retryable"
    assert desk.row(intent_id).status == wanted


def test_two_people_who_acknowledge_at_once_are_one_who_looks(desk: Desk) -> None:
    """B12: the loser is told who looks at it and until when."""
    question = desk.escalate(desk.lost()[0])
    with desk.held("escalations", question) as until_waiting:
        processes = [
            desk.start("escalation", "ack", str(question), "--reason", "x", OUTBOX_ACTOR=actor)
            for actor in ("alice", "bob")
        ]
        until_waiting(2)
    ran = [ended(process) for process in processes]
    assert sorted(r.code for r in ran) == [0, 4]
    winner = desk.escalation(question)["acked_by"]
    assert f"{winner} looks at it until 20" in next(r for r in ran if r.code == 4).err
