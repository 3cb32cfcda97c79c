"""``outbox prune``: what it says, what it refuses, and how it ends."""

from __future__ import annotations

import pytest

from tests.retention.attic import TURN, Attic


def test_it_tells_what_it_did_and_why_it_kept_the_rest(attic: Attic) -> None:
    attic.landed()
    attic.landed(TURN)
    attic.desk.keep("evt_foreign", "foreign", None)
    attic.days(401)
    ran = attic.desk.run("prune", "--json")
    assert ran.code == 0
    assert ran.json["dry_run"] is False
    told = {(i["what"], i["act"], i["why"]): i["rows"] for i in ran.json["items"]}
    assert told == {
        ("intents", "empty", None): 1,
        ("intents", "keep", "not told"): 1,
        ("matched_events", "empty", None): 0,
        ("unmatched_events", "empty", None): 0,
        ("foreign_events", "delete", None): 1,
        ("heartbeats", "delete", None): 0,
    }
    ages = {i["what"]: i["older_than_s"] / 86400 for i in ran.json["items"]}
    assert list(ages.values()) == [400, 90, 35, 35, 35]
    piped = attic.desk.run("prune")
    assert piped.out.splitlines()[0].split("\t") == ["what", "act", "rows", "why", "older_than_s"]


def test_a_dry_run_tells_the_same_and_changes_nothing(attic: Attic) -> None:
    intent_id = attic.landed()
    attic.days(401)
    tried = attic.desk.invoke("prune", "--dry-run", "--json")
    assert (tried.code, tried.json["dry_run"]) == (0, True)
    assert not attic.is_empty(intent_id)
    assert attic.desk.invoke("prune", "--json").json["items"] == tried.json["items"]
    assert attic.is_empty(intent_id)


def test_a_dry_run_counts_no_event_that_goes_along_with_its_intent(attic: Attic) -> None:
    for days in (320, 81):
        intent_id = attic.landed()
        attic.event(intent_id)
        attic.days(days)
    tried = attic.desk.invoke("prune", "--dry-run", "--json").json["items"]
    told = {(i["what"], i["why"]): i["rows"] for i in tried}
    # The one is 401 days old; of the other, which is 81, its event is to stay too.
    assert (told["intents", None], told["matched_events", None]) == (1, 0)
    attic.days(10)
    tried = attic.desk.invoke("prune", "--dry-run", "--json").json["items"]
    assert {(i["what"], i["why"]): i["rows"] for i in tried}["matched_events", None] == 1
    assert attic.desk.invoke("prune", "--json").json["items"] == tried


@pytest.mark.parametrize("span", ["34d", "34d23h59m", "0s", "1h", "x", "", "-40d", "99999d"])
def test_too_short_or_no_duration_is_a_usage_error_that_names_the_option(
    attic: Attic, span: str
) -> None:
    intent_id = attic.landed()
    attic.days(5000)
    ran = attic.desk.invoke("prune", "--older-than", span, "--json")
    assert (ran.code, ran.error["field"]) == (2, "--older-than")
    if span == "34d":
        assert "must be at least 35d" in ran.error["message"]
    assert not attic.is_empty(intent_id)


def test_a_limit_stops_it_and_the_oldest_go_first(attic: Attic) -> None:
    first, second = attic.landed(), attic.landed()
    attic.desk.keep("evt_foreign", "foreign", None)
    attic.days(401)
    items = attic.desk.invoke("prune", "--limit", "1", "--json").json["items"]
    assert [i["rows"] for i in items] == [1, 0, 0, 0, 0]
    assert (attic.is_empty(first), attic.is_empty(second)) == (True, False)
    items = attic.desk.invoke("prune", "--limit", "2", "--json").json["items"]
    assert [i["rows"] for i in items] == [1, 0, 0, 1, 0]
    assert attic.desk.invoke("prune", "--limit", "0").code == 2


def test_without_an_age_it_takes_the_settings_and_a_shorter_one_may_be_said(attic: Attic) -> None:
    attic.landed()
    attic.days(50)

    def age(*more: str, **env: str) -> float:
        items = attic.desk.invoke("prune", "--dry-run", "--json", *more, **env).json["items"]
        return float(items[0]["older_than_s"]) / 86400

    assert age() == 400
    assert age(OUTBOX_RETENTION="60d") == 60
    assert age("--older-than", "840h", OUTBOX_RETENTION="60d") == 35


def test_by_a_clock_in_doubt_it_is_refused_and_says_what_to_do(attic: Attic) -> None:
    attic.doubt_clock()
    ran = attic.desk.invoke("prune", "--json")
    assert (ran.code, ran.error["code"]) == (4, "clock")
    assert "doctor --accept" in ran.error["message"]
    assert "the database's clock is in doubt" in attic.desk.invoke("prune", "--help").out


def test_a_database_that_is_away_is_code_6(attic: Attic) -> None:
    url = "postgresql://nobody@127.0.0.1:1/nothing"
    assert attic.desk.invoke("prune", DATABASE_URL=url).code == 6


@pytest.mark.parametrize("value", ["34d", "", "400", "soon", "1d40"])
def test_a_setting_that_is_too_short_or_no_duration_is_refused_by_its_name(
    attic: Attic, value: str
) -> None:
    ran = attic.desk.invoke("prune", "--json", OUTBOX_RETENTION=value)
    assert (ran.code, ran.error["field"]) == (2, "OUTBOX_RETENTION")


def test_what_was_pruned_is_shown_listed_and_told_as_before(attic: Attic) -> None:
    intent_id = attic.landed()
    attic.days(401)
    attic.prune()
    shown = attic.desk.invoke("intent", "show", str(intent_id), "--with-request", "--json").json
    assert (shown["args"], shown["request"], shown["receipt"]) == (None, None, None)
    assert shown["receipt_id"] == f"pi_{intent_id.hex[:12]}"
    told = attic.desk.invoke("intent", "history", str(intent_id)).out
    assert "settled more than 400 d ago" in told
    assert attic.desk.invoke("intent", "redact", str(intent_id), "--reason", "x", "--yes").code == 0
    assert attic.desk.events(intent_id, "redacted") == []
