"""One question: its evidence side by side, and for each verdict what it would do, by trying it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from resolvers import holding
from tests.cli.desk import Desk
from tests.cli.ran import Ran

TABLES = ("intents", "attempts", "events", "escalations", "pages", "settlements", "switches")


def everything(desk: Desk) -> list[Any]:
    """Every row that a verdict could write, and the locks that a read would leave in it."""
    return [
        desk.sql(f"SELECT xmax::text AS locked, t.* FROM outbox.{table} t ORDER BY ctid")
        for table in TABLES
    ]


def shown(desk: Desk, question: UUID, *more: str) -> dict[str, Any]:
    ran = desk.invoke("escalation", "show", str(question), "--json", *more)
    assert ran.code == 0, ran.err
    return ran.json


def options(body: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {o["verb"]: o for o in body["options"]}


def typed(desk: Desk, option: dict[str, Any]) -> Ran:
    """Runs the very command that was shown, as a script does."""
    program, *words = shlex.split(option["command"].replace("...", "as shown"))
    assert program == "outbox"
    sure = ["--yes"] if option["verb"] in ("landed", "not-landed", "resend", "cancel") else []
    return desk.invoke(*words, *sure, "--json")


# -- what is shown -------------------------------------------------------------------------------


def test_a_doubt_is_laid_side_by_side_and_nothing_is_changed_or_locked(desk: Desk) -> None:
    intent_id, object_id = desk.lost(landed=True)
    question = desk.escalate(intent_id)
    before = everything(desk)
    posts = len([r for r in desk.sandbox.requests(desk.vendor_account) if r["method"] == "POST"])
    body = shown(desk, question)
    assert body["request"]["method"] == "POST"
    assert body["request"]["path"] == "/v1/payment_intents"
    assert (body["request"]["amount_minor"], body["request"]["currency"]) == (1200, "usd")
    assert "params" not in body["request"]
    assert [a["outcome"] for a in body["attempts"]] == ["lost"]
    assert body["looks"]["count"] == 0
    assert body["webhooks"] == []
    (seen,) = body["vendor_now"]["objects"]
    assert (seen["object"], seen["standing"], seen["amount_minor"]) == (object_id, "landed", 1200)
    assert body["ttl_left"]
    assert body["window_left"]
    assert body["receipts"] == [object_id]
    assert {v: (o["now"], o["becomes"], o["code"]) for v, o in options(body).items()} == {
        "landed": ("allowed", "succeeded", None),
        "not-landed": ("refused", None, "not_quiet"),
        "resend": ("allowed", "retryable", None),
        "cancel": ("refused", None, "may_have_left"),
        "ack": ("allowed", "unknown", None),
        "mute": ("allowed", "unknown", None),
    }
    assert everything(desk) == before
    after = [r for r in desk.sandbox.requests(desk.vendor_account) if r["method"] == "POST"]
    assert len(after) == posts


def test_parameters_are_shown_only_when_they_are_asked_for(desk: Desk) -> None:
    intent_id, _ = desk.lost(payment_method="pm_card_of_jane")
    question = desk.escalate(intent_id)
    for more in ((), ("--json",)):
        said = desk.invoke("escalation", "show", str(question), *more).out
        assert "pm_card_of_jane" not in said
        asked = desk.invoke("escalation", "show", str(question), "--with-request", *more).out
        assert "pm_card_of_jane" in asked


def test_offline_the_vendor_is_not_asked_and_what_it_decides_is_not_known(desk: Desk) -> None:
    intent_id, object_id = desk.lost(landed=True)
    question = desk.escalate(intent_id, "contradiction", objects=[object_id])
    desk.quiet()
    before = len(desk.sandbox.requests(desk.vendor_account))
    body = shown(desk, question, "--offline")
    assert len(desk.sandbox.requests(desk.vendor_account)) == before
    assert body["vendor_now"]["answer"] == "not_asked"
    told = options(body)
    assert (told["landed"]["now"], told["not-landed"]["now"]) == ("not_known", "not_known")
    assert told["landed"]["receipt_id"] == object_id
    assert told["resend"]["now"] == "allowed"


def test_a_vendor_that_is_away_costs_only_what_it_decides(desk: Desk) -> None:
    intent_id, _ = desk.lost(landed=True)
    question = desk.escalate(intent_id)
    desk.quiet()
    desk.env["STRIPE_API_BASE"] = "http://127.0.0.1:9"
    body = shown(desk, question)
    assert body["vendor_now"]["answer"] == "unreadable"
    told = {verb: option["now"] for verb, option in options(body).items()}
    assert (told["landed"], told["not-landed"]) == ("needs_receipt", "not_known")
    assert (told["resend"], told["ack"]) == ("allowed", "allowed")


def test_without_the_vendors_credential_one_can_look_and_is_told_why_not_to_rule(
    desk: Desk,
) -> None:
    intent_id, _ = desk.lost()
    question = desk.escalate(intent_id)
    desk.quiet()
    desk.env = {n: v for n, v in desk.env.items() if not n.startswith("STRIPE")}
    told = options(shown(desk, question))
    assert told["not-landed"]["code"] == "no_credentials"


def test_a_question_about_an_account_offers_what_lets_it_go(desk: Desk) -> None:
    holding.pause(desk.store, desk.directory, "stripe", "default", by="bob", reason="incident")
    (question,) = desk.sql("SELECT id FROM outbox.escalations WHERE holder IS NOT NULL")
    told = options(shown(desk, question["id"]))
    assert {verb: o["now"] for verb, o in told.items()} == {
        "resume": "allowed",
        "close": "refused",
        "ack": "allowed",
        "mute": "allowed",
    }
    resumed = desk.invoke(*shlex.split(told["resume"]["command"])[1:], "--yes")
    assert resumed.code == 0, resumed.err
    assert desk.sql("SELECT FROM outbox.switches") == []


def test_two_objects_are_offered_one_by_one(desk: Desk) -> None:
    intent_id, first = desk.lost(landed=True)
    marks = {"outbox_id": str(intent_id), "outbox_key": bytes(desk.row(intent_id).key).hex()}
    second = desk.sandbox.plant(
        desk.vendor_account,
        "payment_intents.create",
        {
            "amount": "1200",
            "currency": "usd",
            "confirm": "true",
            "payment_method": "pm_card_visa",
            "metadata": marks,
        },
    )["id"]
    assert desk.run("resolve", "--once").code == 0
    body = shown(desk, intent_id)
    landed = [o for o in body["options"] if o["verb"] == "landed"]
    assert {o["receipt_id"] for o in landed} == {first, second}
    assert set(body["receipts"]) == {first, second}
    chosen = next(o for o in landed if o["receipt_id"] == second)
    assert typed(desk, chosen).code == 0
    assert desk.row(intent_id).receipt_id == second


# -- what is shown is what happens ---------------------------------------------------------------


def fresh(desk: Desk) -> UUID:
    return desk.lost()[0]


def landed(desk: Desk) -> UUID:
    return desk.lost(landed=True)[0]


def quiet(desk: Desk) -> UUID:
    intent_id, _ = desk.lost()
    desk.quiet()
    return intent_id


def late(desk: Desk) -> UUID:
    intent_id, _ = desk.lost()
    desk.sql("UPDATE outbox.intents SET window_ends_at = outbox.clock()")
    return intent_id


def vetoed(desk: Desk) -> UUID:
    intent_id, _ = desk.lost()
    desk.sql("UPDATE outbox.intents SET veto = 'do_not_retry'")
    return intent_id


def paused(desk: Desk) -> UUID:
    intent_id, _ = desk.lost()
    holding.pause(desk.store, desk.directory, "stripe", "default", by="bob", reason="incident")
    return intent_id


def approved(desk: Desk) -> UUID:
    intent_id, _ = desk.lost()
    assert desk.invoke("escalation", "resend", str(intent_id), "--reason", "x", "--yes").code == 0
    return intent_id


def never_sent(desk: Desk) -> UUID:
    return desk.enqueue()


def settled(desk: Desk) -> UUID:
    return desk.succeeded()[0]


def being_sent(desk: Desk) -> UUID:
    intent_id = desk.enqueue()
    desk.claim()
    return intent_id


CASES = (fresh, landed, quiet, late, vetoed, paused, approved, never_sent, settled, being_sent)
VERBS = ("landed", "not-landed", "resend", "cancel", "ack", "mute")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("verb", VERBS)
def test_each_command_does_what_show_said_it_would(
    desk: Desk, case: Callable[[Desk], UUID], verb: str
) -> None:
    intent_id = case(desk)
    question = desk.escalate(intent_id)
    option = options(shown(desk, question))[verb]
    before = everything(desk)
    ran = typed(desk, option)
    if option["now"] == "allowed":
        assert (ran.code, ran.json["changed"]) == (0, True), ran.err
        assert desk.row(intent_id).status == option["becomes"]
    elif option["now"] == "nothing_to_do":
        assert (ran.code, ran.json["changed"]) == (0, False)
        assert everything(desk) == before
    else:
        assert option["now"] in ("refused", "needs_receipt"), option
        assert ran.code == 4, ran
        code = "no_such_receipt" if option["now"] == "needs_receipt" else option["code"]
        assert ran.error["code"] == code
        strip = [[{**row, "locked": ""} for row in table] for table in everything(desk)]
        assert strip == [[{**row, "locked": ""} for row in table] for table in before]


def test_who_looks_already_is_told_before_anybody_types(desk: Desk) -> None:
    question = desk.escalate(desk.lost()[0])
    assert desk.invoke("escalation", "ack", str(question), "--reason", "x").code == 0
    desk.env["OUTBOX_ACTOR"] = "bob"
    told = options(shown(desk, question))["ack"]
    assert (told["now"], told["code"]) == ("refused", "acknowledged")
    assert "alice looks at it until" in told["said"]
