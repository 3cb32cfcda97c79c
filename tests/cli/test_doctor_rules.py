"""Each rule that a database can show: one row is corrupted, as only a superuser can, and `doctor`
exits with 3 and names it."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from outbox.store.invariants import NEWEST, OF_INTENTS
from outbox.store.invariants_beside import BESIDE, GUARDS
from tests.cli.corruptions import CORRUPTIONS, ONE_HOUR, UNGUARDED, Corruption
from tests.cli.desk import Desk
from tests.cli.test_doctor import found, make_healthy
from tests.statements import copied


@pytest.fixture
def ids(desk: Desk) -> dict[str, Any]:
    """A healthy ledger without its guards: one intent that landed, one in doubt, one never sent."""
    ids = make_healthy(desk)
    desk.sql(UNGUARDED)
    return ids


def _names(corruption: Corruption) -> str:
    return f"{corruption.check}-{corruption.rule}"


@pytest.mark.parametrize("corruption", CORRUPTIONS, ids=_names)
def test_one_corrupted_row_is_named_with_the_rule_that_it_breaks(
    desk: Desk, ids: dict[str, Any], corruption: Corruption
) -> None:
    desk.sql(corruption.sql, ids)
    (shown, *_) = desk.sql(corruption.shows, ids)
    ran = desk.invoke("doctor", "--json")
    assert ran.code == 3
    assert ran.json["ok"] is False
    (finding,) = [f for f in ran.json["items"] if f["check"] == corruption.check]
    assert (finding["ok"], finding["rule"]) == (False, corruption.rule)
    assert str(shown["id"]) in finding["sample"]
    assert finding["count"] >= len(finding["sample"]) > 0
    assert finding["detail"]
    assert not [f for f in ran.json["items"] if f["detail"].startswith("not checked")]


def test_every_rule_has_a_corruption() -> None:
    """What the design lists is asked, and what is asked is shown to find something."""
    by_test = {c.check for c in CORRUPTIONS} | {
        "transaction_held_open",
        "page_not_going_out",
        "doubt_closed_and_still_asked",
        "contradiction_closed_by_settlement",
    }
    assert {i.check for i in (*OF_INTENTS, *BESIDE)} <= by_test
    assert {c.rule for c in CORRUPTIONS} - {None} == set(range(1, 15))


def test_every_guard_of_the_schema_that_is_gone_is_counted(desk: Desk) -> None:
    make_healthy(desk)
    desk.sql("ALTER TABLE outbox.events DISABLE TRIGGER events_append_only")
    assert found(desk) == {"guard_missing": (1, ["events_append_only"])}
    desk.sql(UNGUARDED)
    desk.sql("ALTER TABLE outbox.deliveries DROP CONSTRAINT deliveries_pkey")
    desk.sql("ALTER TABLE outbox.intents DROP CONSTRAINT intents_pkey CASCADE")
    count, named = found(desk)["guard_missing"]
    assert (count, len(named)) == (len(GUARDS), 10)


def test_a_sealed_request_that_was_changed_is_found(desk: Desk, ids: dict[str, Any]) -> None:
    """Rule 2: its key is here, and what is kept is not what was sealed."""
    desk.sql("UPDATE outbox.intents SET request_codec = 'aesgcm:k1' WHERE id = %(doubtful)s", ids)
    key = base64.b64encode(bytes(32)).decode()
    wrong = found(desk, OUTBOX_CODEC_KEYS=f"k1:{key}")
    assert wrong["sealed_request_not_as_hashed"] == (1, [str(ids["doubtful"])])
    assert "values_sealed" not in wrong


def test_emptied_evidence_is_found_behind_a_backlog_of_more_than_is_looked_at(
    desk: Desk, ids: dict[str, Any]
) -> None:
    """Of the row in doubt behind all of it, and of the one that was never sent before all of it."""
    for of in ("doubtful", "fresh"):
        event = desk.keep(f"evt_{of}", "joined", body=None)
        joins = "UPDATE outbox.webhook_inbox SET intent_id = %(of)s WHERE id = %(event)s"
        desk.sql(joins, {"of": ids[of], "event": event})
    assert found(desk)["evidence_of_undecided_gone"][0] == 2
    made = {
        "key": "sha256(n::text::bytea)",
        "fingerprint": "sha256(n::text::bytea)",
        "created_at": f"i.created_at + {ONE_HOUR}",
    }
    desk.sql(
        f"UPDATE outbox.intents SET created_at = created_at - 2 * {ONE_HOUR} WHERE id = %(fresh)s",
        ids,
    )
    copied(desk.sql, NEWEST, made, of=ids["fresh"])
    named = sorted((str(ids["doubtful"]), str(ids["fresh"])))
    assert found(desk)["evidence_of_undecided_gone"] == (2, named)


def test_each_of_three_twins_is_counted_and_named(desk: Desk, ids: dict[str, Any]) -> None:
    for n in range(2):
        copied(desk.sql, 1, {"key": f"sha256('{n}')"}, of=ids["fresh"])
    twins = desk.sql(
        "SELECT i.id FROM outbox.intents i JOIN outbox.intents f USING (fingerprint) "
        "WHERE f.id = %(fresh)s",
        ids,
    )
    assert found(desk)["two_untold_twins"] == (3, sorted(str(row["id"]) for row in twins))


def test_doubt_that_is_settled_and_still_asked_is_found(desk: Desk, ids: dict[str, Any]) -> None:
    question = desk.escalate(ids["landed"], "ttl")
    desk.sql(
        f"UPDATE outbox.intents SET settled_at = settled_at - {ONE_HOUR} WHERE id = %(landed)s",
        ids,
    )
    assert found(desk)["doubt_closed_and_still_asked"] == (1, [str(question)])


def test_a_contradiction_that_no_person_closed_is_found(desk: Desk, ids: dict[str, Any]) -> None:
    question = desk.escalate(ids["landed"], "duplicate")
    close = "UPDATE outbox.escalations SET closed_at = outbox.clock(), verdict = "
    desk.sql(close + "'landed'")
    assert "contradiction_closed_by_settlement" not in found(desk)
    desk.sql(close + "'settled:succeeded'")
    assert found(desk)["contradiction_closed_by_settlement"] == (1, [str(question)])


def test_a_session_of_ours_that_rests_inside_a_transaction_is_found(desk: Desk) -> None:
    make_healthy(desk)
    with desk.connect(autocommit=False) as connection:
        connection.execute("SET application_name = 'outbox'")
        connection.commit()
        pid = connection.info.backend_pid
        connection.execute("SELECT 1")
        count, named = found(desk, OUTBOX_IDLE_TIMEOUT_S="0.01")["transaction_held_open"]
        assert (count, named) == (1, [f"process {pid}"])
        connection.rollback()
