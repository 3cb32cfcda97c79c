"""Pagers as they are set, and what each says on the wire beyond the contract of all."""

from __future__ import annotations

import hashlib
import hmac
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from outbox.errors import SettingsError
from outbox.settings import Settings
from resolvers import page_post
from resolvers.page import Failed, Page, Pager, Sent
from resolvers.pagers import TARGETS, parse
from tests.resolvers.page_target import Answer, Target, page_target

KEY = "R0123456789abcdefghijklmnopqrstu"
SECRET = "signs the pages"
PAGE = Page(
    action="trigger",
    dedup_key="outbox:7:ttl",
    severity="error",
    summary="not settled within its time limit",
    source="outbox/test",
    at_epoch_s=1_780_000_000,
    details={"tenant": "acme", "amount_minor": 1200},
)


@pytest.fixture
def target() -> Iterator[Target]:
    with page_target() as found:
        yield found


def pager_of(spec: str) -> Pager:
    (found,) = parse(Settings(pagers=(spec,), pager_secret=SECRET))
    return found


def pagerduty(target: Target) -> Pager:
    return pager_of(f"pagerduty:{KEY}@{target.url}")


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (400, {}, Failed("http 400", None, final=True)),
        (307, {"Location": "/elsewhere"}, Failed("http 307", None, final=True)),
        (429, {"Retry-After": "999999"}, Failed("http 429", page_post.RETRY_AFTER_MAX_S)),
        (429, {"Retry-After": "Sun, 29 Nov 2099 00:00:00 GMT"}, Failed("http 429", 900.0)),
        (429, {"Retry-After": "Sun, 29 Nov 2009 00:00:00 GMT"}, Failed("http 429", 0.0)),
        (429, {"Retry-After": "Sun, 29 Nov 2099 00:00:00"}, Failed("http 429")),
        (429, {"Retry-After": "soon"}, Failed("http 429")),
        (500, {}, Failed("http 500", maybe=True)),
        # A proxy's welcome page is not PagerDuty's 202.
        (200, {}, Failed("http 200", maybe=True)),
    ],
)
def test_only_a_202_counts_as_accepted_by_pagerduty(
    target: Target, status: int, headers: dict[str, str], expected: Failed
) -> None:
    target.last = Answer(status, headers)
    assert pagerduty(target).send(PAGE) == expected
    assert len(target.requests) == 1, "an adapter never retries"


def test_a_redirect_is_not_followed_because_the_key_would_follow(target: Target) -> None:
    with page_target() as elsewhere:
        target.last = Answer(308, {"Location": elsewhere.url})
        assert isinstance(pagerduty(target).send(PAGE), Failed)
        assert elsewhere.requests == []


def test_a_lost_answer_may_have_been_shown(target: Target) -> None:
    target.last = Answer(202, drop=True)
    lost = pagerduty(target).send(PAGE)
    assert isinstance(lost, Failed)
    assert lost.maybe
    assert not lost.final


def test_a_trigger_carries_key_severity_and_details_and_a_resolve_only_the_key(
    target: Target,
) -> None:
    pager = pagerduty(target)
    assert pager.send(PAGE) == Sent("http 202")
    assert pager.send(replace(PAGE, action="resolve")) == Sent("http 202")
    trigger, resolve = target.bodies
    assert trigger == {
        "routing_key": KEY,
        "event_action": "trigger",
        "dedup_key": "outbox:7:ttl",
        "payload": {
            "summary": PAGE.summary,
            "source": "outbox/test",
            "severity": "error",
            "custom_details": {"tenant": "acme", "amount_minor": 1200},
        },
    }
    assert resolve == {
        "routing_key": KEY,
        "event_action": "resolve",
        "dedup_key": "outbox:7:ttl",
    }


@pytest.mark.parametrize(
    ("severity", "priority"), [("critical", "P1"), ("error", "P2"), ("warning", "P3")]
)
def test_opsgenie_reads_the_severity_as_a_priority(
    target: Target, severity: str, priority: str
) -> None:
    pager_of(f"opsgenie:{KEY}@{target.url}").send(replace(PAGE, severity=severity))
    assert target.bodies[0]["priority"] == priority


def test_alertmanager_is_told_to_hold_the_alert_for_hours_and_its_end_is_the_resolves_time(
    target: Target,
) -> None:
    target.last = Answer(200)
    pager = pager_of(f"alertmanager:{target.url}")
    details = {**PAGE.details, "vendor": "stripe", "reason": "ttl"}
    pager.send(replace(PAGE, details=details))
    later = PAGE.at_epoch_s + 60
    pager.send(replace(PAGE, action="resolve", at_epoch_s=later, details=details))
    (held,), (ended,) = target.bodies
    assert (held["startsAt"], held["endsAt"]) == (
        "2026-05-28T20:26:40+00:00",
        "2026-05-29T00:26:40+00:00",
    )
    assert ended["startsAt"] == ended["endsAt"] == "2026-05-28T20:27:40+00:00"
    assert held["labels"] == ended["labels"]
    assert held["labels"]["vendor"] == "stripe"
    # What may change between the two is no label: it would make them two alerts.
    assert held["annotations"]["amount_minor"] == "1200"


def test_a_webhook_page_is_signed_over_its_raw_body(target: Target) -> None:
    target.last = Answer(204)
    assert pager_of(f"webhook:{target.url}/pages").send(PAGE) == Sent("http 204")
    path, headers, body = target.requests[0]
    assert path == "/pages"
    stamp, signature = (part.split("=")[1] for part in headers["x-outbox-signature"].split(","))
    expected = hmac.new(SECRET.encode(), f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
    assert signature == expected
    assert stamp == str(PAGE.at_epoch_s)
    assert json.loads(body)["dedup_key"] == "outbox:7:ttl"


# -- the setting ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "base"),
    [
        (f"pagerduty:{KEY}", "https://events.pagerduty.com"),
        (f"pagerduty:{KEY}@eu", "https://events.eu.pagerduty.com"),
        (f"opsgenie:{KEY}", "https://api.opsgenie.com"),
        (f"opsgenie:{KEY}@eu", "https://api.eu.opsgenie.com"),
        (f"jsm:{KEY}", "https://api.atlassian.com/jsm/ops/integration"),
        (f"jsm:{KEY}@https://relay.example.org/jsm/", "https://relay.example.org/jsm"),
        (f"incidentio:01GW2G3V0S59R238FAHPDS1R66:{KEY}", "https://api.incident.io"),
        ("alertmanager:http://am:9093/", "http://am:9093"),
    ],
)
def test_each_vendor_has_its_own_address_and_the_eu_another(spec: str, base: str) -> None:
    assert vars_of(pager_of(spec))["base_url"] == base


def vars_of(pager: Pager) -> dict[str, object]:
    return {name: getattr(pager, name) for name in type(pager).__slots__}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("spec", "setting"),
    [
        ("pagerduty:short", "OUTBOX_PAGERS"),
        (f"pagerduty:{KEY}@http://events.example.org", "OUTBOX_PAGERS"),
        (f"pagerduty:{KEY}@ftp://127.0.0.1", "OUTBOX_PAGERS"),
        (f"pagerduty:{KEY}@moon", "OUTBOX_PAGERS"),
        (f"opsgenie:{KEY}@https://user:{KEY}@example.org", "OUTBOX_PAGERS"),
        (f"opsgenie:{KEY}@https://example.org/?key={KEY}", "OUTBOX_PAGERS"),
        ("opsgenie:too short", "OUTBOX_PAGERS"),
        (f"jsm:{KEY}@eu", "OUTBOX_PAGERS"),
        (f"jsm:{KEY}/{KEY}", "OUTBOX_PAGERS"),
        (f"incidentio:{KEY}", "OUTBOX_PAGERS"),
        (f"incidentio:https://api.incident.io/v2/{KEY}", "OUTBOX_PAGERS"),
        (f"incidentio::{KEY}", "OUTBOX_PAGERS"),
        ("alertmanager:am:9093", "OUTBOX_PAGERS"),
        ("alertmanager:http://am:9093/api/v2/alerts", "OUTBOX_PAGERS"),
        (f"alertmanager:http://user:{KEY}@am.example.org", "OUTBOX_PAGERS"),
        (f"apprise:{KEY}", "OUTBOX_PAGERS"),
        ("webhook:not-an-address", "OUTBOX_PAGERS"),
        ("webhook:http://[::1", "OUTBOX_PAGERS"),
        ("webhook:https://example.org/pages", "OUTBOX_PAGER_SECRET"),
        ("file:/", "OUTBOX_PAGERS"),
        ("file:/no/such/folder/pages.jsonl", "OUTBOX_PAGERS"),
        ("carrier:pigeon", "OUTBOX_PAGERS"),
    ],
)
def test_a_pager_that_cannot_work_is_refused_at_start_up_without_telling_its_key(
    spec: str, setting: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        parse(Settings(pagers=(spec, f"pagerduty:{KEY}")))
    assert [name for name, _ in refused.value.problems] == [setting]
    assert KEY not in str(refused.value)
    assert KEY not in repr(refused.value)


def test_a_form_that_the_settings_take_is_a_form_that_is_built() -> None:
    for scheme in TARGETS:
        Settings.from_env({"OUTBOX_PAGERS": f"{scheme}:x"})
    with pytest.raises(SettingsError, match="alertmanager:, webhook:, file:, apprise:"):
        Settings.from_env({"OUTBOX_PAGERS": "carrier:pigeon"})


def test_all_faults_of_the_pagers_are_told_at_once_and_one_target_twice_is_one() -> None:
    with pytest.raises(SettingsError) as refused:
        parse(Settings(pagers=("pagerduty:x", "file:/", f"pagerduty:{KEY}", f"pagerduty:{KEY}")))
    assert len(refused.value.problems) == 3


def test_no_pager_is_none_at_all_and_the_order_is_kept(tmp_path: Path) -> None:
    assert parse(Settings(pagers=None)) == ()
    assert parse(Settings(pagers=())) == ()
    found = parse(Settings(pagers=(f"file:{tmp_path / 'p'}", f"pagerduty:{KEY}")))
    assert [pager.name.split(":")[0] for pager in found] == ["file", "pagerduty"]


def test_apprise_without_its_extra_is_refused_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(SettingsError, match=r"pip install 'outbox-resolve\[apprise\]'") as refused:
        parse(Settings(pagers=(f"apprise:slack://{KEY}",)))
    assert [name for name, _ in refused.value.problems] == ["OUTBOX_PAGERS"]
    assert KEY not in str(refused.value)
