"""``outbox intent redact``: what it empties, what it leaves, when it is refused; and whatever reads
such a row afterwards copes."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import psycopg
import pytest

from outbox import Outbox, Scope
from outbox.codec import codec_of
from outbox.outcomes import Found, Refused
from outbox.store import doubt, inbox, redaction
from resolvers.evidence import look_up
from resolvers.joining import join_once
from resolvers.looking import Looker
from tests.cli.desk import CAPTURE, CHARGE, Desk
from tests.privacy.rings import OLD
from tests.resolvers.deliveries import event

PERSON = "Jane-Doe-of-1-Elm-Street"
KEPT = (
    "key, fingerprint, identity, guard, request_sha256, receipt_id, amount_minor, currency, "
    "status, version, settled_at, told_at, business_status"
)
REASON = ("--reason", "erasure request 118")


def redact(desk: Desk, intent_id: UUID, *more: str) -> Any:
    return desk.invoke("intent", "redact", str(intent_id), *REASON, "--json", *more)


def row(desk: Desk, intent_id: UUID, columns: str = "*") -> dict[str, Any]:
    (found,) = desk.sql(
        f"SELECT {columns} FROM outbox.intents WHERE id = %(id)s", {"id": intent_id}
    )
    return found


def joined(desk: Desk, intent_id: UUID, object_id: str, **changes: Any) -> int:
    """An event about the intent, stored and joined; its number in the inbox."""
    held = row(desk, intent_id)
    made = event({"outbox_id": str(intent_id), "outbox_key": bytes(held["key"]).hex()}, **changes)
    made["data"]["object"] |= {"id": object_id, "description": PERSON}
    return keep(desk, made)


def keep(desk: Desk, made: dict[str, Any]) -> int:
    with desk.store.transaction() as tx:
        assert inbox.keep(
            tx,
            vendor="stripe",
            account="default",
            mode="test",
            event_id=made["id"],
            kind=made["type"],
            body=json.dumps(made).encode(),
            state="new",
        )
    assert join_once(desk.store, desk.directory) == 1
    (stored,) = desk.sql(
        "SELECT id, state, intent_id FROM outbox.webhook_inbox WHERE event_id = %(id)s",
        {"id": made["id"]},
    )
    return int(stored["id"])


def settled(desk: Desk) -> tuple[UUID, str]:
    intent_id, object_id = desk.succeeded(payment_method="pm_card_visa", memo=PERSON)
    joined(desk, intent_id, object_id)
    return intent_id, object_id


def personal(desk: Desk) -> bool:
    """Whether the person is anywhere in the ledger."""
    found = desk.sql(
        "SELECT (SELECT string_agg(i::text, '') FROM outbox.intents i) LIKE %(it)s "
        "OR (SELECT string_agg(convert_from(body, 'UTF8'), '') FROM outbox.webhook_inbox) "
        "LIKE %(it)s AS y",
        {"it": f"%{PERSON}%"},
    )
    return bool(found[0]["y"])


def test_a_settled_intent_is_emptied_and_keeps_what_makes_it_that_intent(desk: Desk) -> None:
    intent_id, object_id = settled(desk)
    before = row(desk, intent_id, KEPT)
    assert personal(desk)
    done = redact(desk, intent_id, "--yes")
    assert (done.code, done.json["changed"]) == (0, True)
    assert not personal(desk)
    after = row(desk, intent_id)
    assert (after["args"], after["request"], after["receipt"]) == (None, None, None)
    assert row(desk, intent_id, KEPT) == before
    assert before["receipt_id"] == object_id
    assert desk.sql("SELECT body, state FROM outbox.webhook_inbox") == [
        {"body": None, "state": "joined"}
    ]
    (audited,) = desk.events(intent_id, "redacted")
    assert (audited["actor"], audited["reason"]) == ("alice", "erasure request 118")
    assert audited["detail"] == {"columns": ["args", "request", "receipt"], "webhook_bodies": 1}


def test_a_dry_run_says_so_and_changes_nothing(desk: Desk) -> None:
    intent_id, _ = settled(desk)
    tried = redact(desk, intent_id, "--dry-run")
    assert (tried.code, tried.json["dry_run"], tried.json["changed"]) == (0, True, False)
    assert personal(desk)
    assert desk.events(intent_id, "redacted") == []


def test_a_second_time_there_is_nothing_to_do(desk: Desk) -> None:
    intent_id, _ = settled(desk)
    redact(desk, intent_id, "--yes")
    again = redact(desk, intent_id, "--yes")
    assert (again.code, again.json["changed"]) == (0, False)
    assert len(desk.events(intent_id, "redacted")) == 1


def test_it_asks_first_and_a_no_changes_nothing(desk: Desk) -> None:
    intent_id, _ = settled(desk)
    said = desk.terminal("intent", "redact", str(intent_id), *REASON, answer="n\n")
    assert said.code == 7
    assert "no way back" in said.out + said.err
    assert personal(desk)


def test_off_a_terminal_it_wants_yes(desk: Desk) -> None:
    intent_id, _ = settled(desk)
    assert desk.run("intent", "redact", str(intent_id), *REASON).code == 2
    assert personal(desk)


def test_without_a_reason_it_is_a_usage_error(desk: Desk) -> None:
    intent_id, _ = settled(desk)
    assert desk.invoke("intent", "redact", str(intent_id), "--yes").code == 2


def refused(desk: Desk, intent_id: UUID) -> str:
    for more in ("--yes", "--dry-run"):
        ran = redact(desk, intent_id, more)
        assert ran.code == 4
    assert row(desk, intent_id, "args IS NULL AS emptied") == {"emptied": False}
    assert desk.events(intent_id, "redacted") == []
    return str(ran.error["code"])


@pytest.mark.parametrize("how", ["pending", "in_flight", "unknown"])
def test_what_is_not_settled_is_refused(desk: Desk, how: str) -> None:
    intent_id = desk.enqueue()
    if how == "in_flight":
        desk.claim()
    if how == "unknown":
        intent_id, _ = desk.lost()
    assert row(desk, intent_id, "status") == {"status": how}
    assert refused(desk, intent_id) == "unsettled"


def test_what_a_person_is_asked_about_is_refused(desk: Desk) -> None:
    intent_id, _ = settled(desk)
    question = desk.escalate(intent_id, "duplicate", objects=["pi_other"])
    assert refused(desk, intent_id) == "escalated"
    desk.sql("UPDATE outbox.escalations SET closed_at = now() WHERE id = %(id)s", {"id": question})
    assert redact(desk, intent_id, "--yes").code == 0


def test_what_a_consumer_has_not_had_is_refused_and_names_it(desk: Desk) -> None:
    intent_id, _ = settled(desk)
    outbox = Outbox(desk.settings)
    with desk.connect(autocommit=False) as connection:
        assert len(outbox.settlements(connection, "billing")) > 0
        connection.rollback()
    assert refused(desk, intent_id) == "undelivered"
    assert "billing" in redact(desk, intent_id, "--yes").error["message"]
    with desk.connect(autocommit=False) as connection:
        outbox.settlements(connection, "billing")
    assert redact(desk, intent_id, "--yes").code == 0
    with desk.connect(autocommit=False) as connection:
        (late, *_) = outbox.settlements(connection, "audit")
    assert late.intent_id == intent_id
    assert late.identity["invoice_id"]
    outbox.close()


def test_a_consumer_that_is_still_being_filled_has_not_had_it(desk: Desk) -> None:
    intent_id, _ = settled(desk)
    desk.sql("INSERT INTO outbox.consumers (name, registered_at) VALUES ('new', now())")
    assert refused(desk, intent_id) == "undelivered"


def test_an_unknown_id_is_not_found(desk: Desk) -> None:
    assert redact(desk, UUID(int=7), "--yes").code == 5


# -- afterwards ----------------------------------------------------------------------------------


def emptied(desk: Desk) -> tuple[UUID, str]:
    intent_id, object_id = settled(desk)
    assert redact(desk, intent_id, "--yes").code == 0
    return intent_id, object_id


def test_it_can_be_shown_listed_and_told(desk: Desk) -> None:
    intent_id, object_id = emptied(desk)
    shown = desk.invoke("intent", "show", str(intent_id), "--with-request", "--json").json
    assert (shown["args"], shown["request"], shown["receipt"]) == (None, None, None)
    assert shown["receipt_id"] == object_id
    assert desk.invoke("intent", "show", str(intent_id), "--with-request").code == 0
    told = desk.invoke("intent", "history", str(intent_id)).out
    assert "erasure request 118" in told
    assert str(intent_id) in desk.invoke("intent", "list").out
    answer = Outbox(desk.settings).wait(intent_id, timeout_s=0)
    assert (answer.told, answer.receipt_id) == ("settled", object_id)


def test_a_repeat_of_the_write_finds_it_and_sends_nothing(desk: Desk) -> None:
    intent_id, object_id = emptied(desk)
    (held,) = desk.sql("SELECT identity FROM outbox.intents")
    args = {**json.loads(held["identity"]), "amount": 1200, "currency": "usd", "memo": "another"}
    url = desk.settings.database_url.replace("+psycopg", "")
    with psycopg.connect(url) as connection:
        scope = Scope(tenant="acme", run_id="run-1")
        answer = Outbox(desk.settings).enqueue(connection, CHARGE, scope, args)
    assert (answer.intent_id, answer.deduplicated) == (intent_id, True)
    assert (answer.told, answer.receipt_id) == ("settled", object_id)
    assert desk.claim() == []


@pytest.mark.parametrize("by", ["key", "marks", "receipt"])
def test_a_late_event_still_joins(desk: Desk, by: str) -> None:
    intent_id, object_id = emptied(desk)
    key = bytes(row(desk, intent_id)["key"]).hex()
    marks = {"outbox_id": str(intent_id), "outbox_key": key} if by == "marks" else None
    made = event(marks, key=key if by == "key" else None)
    made["data"]["object"]["id"] = object_id
    made["data"]["object"]["description"] = PERSON
    number = keep(desk, made)
    (stored,) = desk.sql(
        "SELECT state, intent_id FROM outbox.webhook_inbox WHERE id = %(id)s", {"id": number}
    )
    assert stored == {"state": "joined", "intent_id": intent_id}
    assert redact(desk, intent_id, "--yes").json["changed"]
    assert not personal(desk)


def test_an_event_that_was_to_be_joined_again_is_not_lost_as_foreign(desk: Desk) -> None:
    intent_id, object_id = desk.succeeded()
    number = joined(desk, intent_id, object_id)
    with desk.store.transaction() as tx:
        assert inbox.replay(tx, number)
    assert redact(desk, intent_id, "--yes").code == 0
    assert join_once(desk.store, desk.directory) == 0
    assert desk.sql("SELECT state, intent_id FROM outbox.webhook_inbox") == [
        {"state": "joined", "intent_id": intent_id}
    ]


def verify(desk: Desk, intent_id: UUID) -> dict[str, Any]:
    """The object is read again; the row afterwards."""
    with desk.store.transaction() as tx:
        doubt.schedule_verification(tx, [intent_id], 0.0)
    looker = Looker(desk.store, desk.directory)
    assert looker.once() == 1
    looker.close()
    return row(desk, intent_id)


def test_its_object_is_read_again_and_moves_its_business_status(desk: Desk) -> None:
    intent_id, _ = emptied(desk)
    after = verify(desk, intent_id)
    assert (after["verify_at"], after["business_status"]) == (None, "paid")
    assert after["receipt"] is None


def capture(desk: Desk) -> tuple[UUID, str]:
    """A capture of an authorised payment, landed."""
    held = desk.sandbox.plant(
        desk.vendor_account,
        "payment_intents.create",
        {
            "amount": 900,
            "currency": "usd",
            "confirm": True,
            "capture_method": "manual",
            "payment_method": "pm_card_visa",
        },
    )
    return desk.succeeded(tool=CAPTURE, payment_intent=held["id"], amount=900)


def test_an_operation_on_an_object_is_read_again_by_the_path_that_was_kept(desk: Desk) -> None:
    intent_id, object_id = capture(desk)
    assert redact(desk, intent_id, "--yes").code == 0
    kept = row(desk, intent_id)
    assert kept["request_path"] == f"/v1/payment_intents/{object_id}/capture"
    after = verify(desk, intent_id)
    assert after["verify_at"] is None
    vendor, account, _ = desk.directory.reach("stripe", "default")  # type: ignore[misc]
    intent = desk.row(intent_id)
    seen = look_up(vendor, intent, intent.call(account), desk.settings.policy, intent.created_at)
    assert isinstance(seen, Found)
    assert [r.receipt_id for r in seen.readings] == [object_id]


def test_a_refused_operation_on_an_object_still_hears_that_it_landed_after_all(desk: Desk) -> None:
    held = desk.sandbox.plant(
        desk.vendor_account, "payment_intents.create", {"amount": 900, "currency": "usd"}
    )
    intent_id = desk.enqueue(tool=CAPTURE, payment_intent=held["id"], amount=900)
    desk.record(desk.leased(intent_id), Refused("not_capturable", covers_key=True))
    assert redact(desk, intent_id, "--yes").code == 0
    made = event(key=bytes(row(desk, intent_id)["key"]).hex())
    made["data"]["object"] |= {"id": held["id"], "amount": 900, "amount_received": 900}
    keep(desk, made)
    after = row(desk, intent_id)
    assert (after["status"], after["contradicted_at"] is not None) == ("failed_poison", True)


def test_doctor_finds_nothing_wrong_with_it(desk: Desk) -> None:
    intent_id, _ = emptied(desk)
    found = desk.invoke("doctor", "--json").json["items"]
    wrong = [f for f in found if not f.get("ok", False) and str(intent_id) in str(f)]
    assert wrong == []


def test_what_nobody_can_read_any_more_can_still_be_emptied(desk: Desk) -> None:
    """A lost key must not keep a person's data for ever, nor its row from being read again."""
    intent_id, object_id = capture(desk)
    desk.sql(
        "UPDATE outbox.intents SET args_codec = 'aesgcm:gone', request_codec = 'aesgcm:gone', "
        "receipt_codec = 'aesgcm:gone'"
    )
    with desk.store.transaction() as tx:
        assert len(redaction.sealed(tx, codec_of("", OLD))) == 3
    assert desk.invoke("intent", "show", str(intent_id), "--with-request").code == 4
    assert redact(desk, intent_id, "--yes").code == 0
    assert row(desk, intent_id)["request_path"] == f"/v1/payment_intents/{object_id}/capture"
    with desk.store.transaction() as tx:
        assert redaction.sealed(tx, codec_of("", OLD)) == []
    assert verify(desk, intent_id)["verify_at"] is None
