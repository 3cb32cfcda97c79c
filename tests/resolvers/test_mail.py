"""Mail from enqueue to the page: no key, nothing to read back, and nobody is mailed twice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from outbox import Answer, Scope, WriteTool
from outbox.states import Status
from vendors.sandbox.client import Sandbox
from workers.cli import root
from workers.testing import OutboxBox, new_account

SEND = WriteTool(
    "send_receipt",
    vendor="smtp",
    operation="messages.send",
    identity=("order", "to"),
    resend_when_absent=True,  # absence can never be confirmed, so it allows nothing
)
MAIL: Mapping[str, Any] = {
    "from": "shop@example.com",
    "subject": "Your order",
    "text": "It is on its way.",
}
TTL_S = 15 * 60


@pytest.fixture
def mailer(tmp_path: Path) -> str:
    return new_account()


@pytest.fixture
def outbox_env(mailer: str, outbox_sandbox: Sandbox, tmp_path: Path) -> Mapping[str, str]:
    accounts = tmp_path / "accounts.toml"
    accounts.write_text(
        f'[smtp.default]\nmode = "test"\ncredential = "{mailer}:any"\n'
        f'base_url = "{outbox_sandbox.smtp_url}"\n'
    )
    return {"OUTBOX_ACCOUNTS": str(accounts)}


def enqueue(box: OutboxBox, to: str = "ann@example.org", run: str = "run") -> Answer:
    with psycopg.connect(box.database_url.replace("+psycopg", "")) as connection:
        args = {**MAIL, "order": "7", "to": to}
        return box.outbox.enqueue(connection, SEND, Scope(tenant="acme", run_id=run), args)


def told(box: OutboxBox, answer: Answer) -> str:
    return box.outbox.wait(answer, timeout_s=0.0).told


def test_a_lost_last_word_is_never_sent_again_and_asks_a_person_at_its_ttl(
    outbox_box: OutboxBox, mailer: str
) -> None:
    """B27: it may have been delivered, and mail cannot be read back."""
    outbox_box.sandbox.fault("lost_ack", account=mailer)
    answer = enqueue(outbox_box)
    outbox_box.drain()
    assert told(outbox_box, answer) == "unknown"
    outbox_box.settle(within_s=TTL_S - 60)
    assert outbox_box.pages() == []
    outbox_box.settle(within_s=24 * 3600)
    assert told(outbox_box, answer) == "unknown"
    assert len(outbox_box.sandbox.requests(mailer)) == 1
    (question,) = outbox_box.escalations()
    assert question["intent_id"] == answer.intent_id
    page, *again = [p for p in outbox_box.pages() if p["action"] == "trigger"]
    assert {p["dedup_key"] for p in again} == {page["dedup_key"]}
    assert "ann@" not in str(page)
    assert "unknown" in page["summary"]
    assert outbox_box.sandbox.oracle(mailer)["violations"] == []


def test_a_page_about_mail_in_doubt_says_that_it_may_have_landed_and_was_not_sent_again(
    outbox_box: OutboxBox, mailer: str
) -> None:
    outbox_box.sandbox.fault("lost_ack", account=mailer)
    enqueue(outbox_box)
    outbox_box.settle(within_s=2 * TTL_S)
    known = "it may have landed, it cannot be read back, it was not sent again"
    page = outbox_box.pages()[0]
    assert page["details"]["known"] == known
    assert f"outcome unknown: {known};" in page["summary"]
    env = {"DATABASE_URL": outbox_box.database_url, "OUTBOX_ACTOR": "ann"}
    what = ["escalation", "show", str(outbox_box.escalations()[0]["id"]), "--json"]
    shown = CliRunner(env=env).invoke(root, what)
    assert json.loads(shown.stdout)["known"] == known
    assert len(outbox_box.sandbox.requests(mailer)) == 1


@pytest.mark.parametrize("fault", ["reply:mail:451", "reply:rcpt:450", "reply:content:452"])
def test_what_the_server_did_not_take_is_tried_again_under_the_same_message_id(
    outbox_box: OutboxBox, mailer: str, fault: str
) -> None:
    outbox_box.sandbox.fault(fault, account=mailer, attempts=[1, 2])
    answer = enqueue(outbox_box)
    assert outbox_box.settle(within_s=600)
    assert told(outbox_box, answer) == "settled"
    (effect,) = outbox_box.sandbox.effects(mailer)
    assert effect["object_id"] == f"<{answer.intent_id}@example.com>"
    assert len(outbox_box.sandbox.requests(mailer)) == 3
    assert outbox_box.pages() == []


def test_a_recipient_that_is_refused_is_told_as_failed_and_never_tried_again(
    outbox_box: OutboxBox, mailer: str
) -> None:
    outbox_box.sandbox.fault("reply:rcpt:550", account=mailer)
    answer = enqueue(outbox_box)
    assert outbox_box.settle(within_s=600)
    assert told(outbox_box, answer) == "failed"
    assert len(outbox_box.sandbox.requests(mailer)) == 1
    assert outbox_box.sandbox.effects(mailer) == []


def test_each_recipient_is_an_intent_of_its_own(outbox_box: OutboxBox, mailer: str) -> None:
    outbox_box.sandbox.fault("reply:rcpt:550", account=mailer, attempts=[1])
    answers = [enqueue(outbox_box, to=f"{name}@example.org") for name in ("ann", "bob", "cy")]
    again = enqueue(outbox_box, to="bob@example.org")
    assert again.deduplicated
    assert outbox_box.settle(within_s=600)
    assert sorted(told(outbox_box, a) for a in answers) == ["failed", "settled", "settled"]
    assert len(outbox_box.sandbox.effects(mailer)) == 2


def test_a_refused_sign_on_pauses_the_account_and_loses_nothing(
    outbox_box: OutboxBox, mailer: str
) -> None:
    outbox_box.sandbox.fault("unauthorized_401", account=mailer)
    answers = [enqueue(outbox_box, run=f"run-{n}") for n in range(3)]
    outbox_box.drain()
    outbox_box.resolve()
    assert [told(outbox_box, a) for a in answers] == ["accepted"] * 3
    assert Status.PENDING in {a.status for a in answers}
    (page,) = outbox_box.pages()
    assert "smtp/default" in page["summary"]
