"""What every adapter keeps to, over real HTTP: one request a try, one slot for the key, one
deadline, and no secret in anything that is stored or shown."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from outbox.settings import Settings
from resolvers import page_post
from resolvers.page import Failed, Page, Pager, Sent
from resolvers.pagers import TARGETS, parse
from resolvers.paging import page_once
from tests.resolvers.ledger import Ledger, open_ledger
from tests.resolvers.page_target import Answer, Target, page_target

SECRET = "S3CRETs3cretS3CRETs3cretS3CRETs3"
PAGE = Page(
    action="trigger",
    dedup_key="outbox:7:ttl",
    severity="error",
    summary="not settled within its time limit",
    source="outbox/test",
    at_epoch_s=1_780_000_000,
    details={"environment": "test", "vendor": "stripe", "amount_minor": 1200},
)


@dataclass(frozen=True)
class Said:
    """What a request says: its action, and the slot that the target tells alerts apart by."""

    action: str
    slot: Any


def _pagerduty(path: str, _: Mapping[str, str], body: Any) -> Said:
    assert path == "/v2/enqueue"
    assert body["routing_key"] == SECRET
    return Said(body["event_action"], body["dedup_key"])


def _opsgenie(path: str, headers: Mapping[str, str], body: Any) -> Said:
    assert headers["authorization"] == f"GenieKey {SECRET}"
    parts = urlsplit(path)
    _, v2, alerts, *rest = parts.path.split("/")
    assert (v2, alerts) == ("v2", "alerts")
    if not rest:
        return Said("trigger", body["alias"])
    assert parse_qs(parts.query) == {"identifierType": ["alias"]}
    verbs = {"close": "resolve", "acknowledge": "acknowledge"}
    return Said(verbs[rest[1]], unquote(rest[0]))


def _incidentio(path: str, headers: Mapping[str, str], body: Any) -> Said:
    assert path == "/v2/alert_events/http/01GW2G3V0S59R238FAHPDS1R66"
    assert headers["authorization"] == f"Bearer {SECRET}"
    status = {"firing": "trigger", "resolved": "resolve"}
    return Said(status[body["status"]], body["deduplication_key"])


def _alertmanager(path: str, headers: Mapping[str, str], body: Any) -> Said:
    assert path == "/am/api/v2/alerts"
    assert headers["authorization"].startswith("Basic ")
    (alert,) = body
    assert all(isinstance(v, str) and v for v in alert["labels"].values())
    over = alert["endsAt"] == alert["startsAt"]
    return Said("resolve" if over else "trigger", alert["labels"])


def _webhook(path: str, headers: Mapping[str, str], body: Any) -> Said:
    assert path == f"/{SECRET}"
    assert "x-outbox-signature" in headers
    return Said(body["action"], body["dedup_key"])


def _apprise(path: str, headers: Mapping[str, str], body: Any) -> Said:
    assert path == "/pages"
    assert headers["authorization"].startswith("Basic ")
    key = body["message"].rpartition("key: ")[2]
    return Said("resolve" if body["type"] == "success" else "trigger", key)


@dataclass(frozen=True)
class Kind:
    """An adapter, how it is written, what it takes for a yes, and how to read its requests."""

    name: str
    spec: Callable[[str], str]
    yes: int
    read: Callable[[str, Mapping[str, str], Any], Said]
    acknowledges: bool = True
    tells_status: bool = True


def _with_user(url: str) -> str:
    return url.replace("http://", f"http://outbox:{SECRET}@")


KINDS = (
    Kind("pagerduty", lambda url: f"pagerduty:{SECRET}@{url}", 202, _pagerduty),
    Kind("opsgenie", lambda url: f"opsgenie:{SECRET}@{url}", 202, _opsgenie),
    Kind("jsm", lambda url: f"jsm:{SECRET}@{url}", 202, _opsgenie),
    Kind(
        "incidentio",
        lambda url: f"incidentio:01GW2G3V0S59R238FAHPDS1R66:{SECRET}@{url}",
        202,
        _incidentio,
        acknowledges=False,
    ),
    Kind(
        "alertmanager",
        lambda url: f"alertmanager:{_with_user(url)}/am",
        200,
        _alertmanager,
        acknowledges=False,
    ),
    Kind("webhook", lambda url: f"webhook:{url}/{SECRET}", 204, _webhook),
    Kind(
        "apprise",
        lambda url: f"apprise:{_with_user(url).replace('http:', 'json:')}/pages",
        200,
        _apprise,
        acknowledges=False,
        tells_status=False,
    ),
)
_NEEDS = pytest.mark.skipif(
    importlib.util.find_spec("apprise") is None, reason="the extra [apprise] is not installed"
)


@pytest.fixture(
    params=[
        pytest.param(kind, id=kind.name, marks=[_NEEDS] if kind.name == "apprise" else [])
        for kind in KINDS
    ]
)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def target(kind: Kind) -> Iterator[Target]:
    with page_target() as found:
        found.last = Answer(kind.yes)
        yield found


@pytest.fixture
def pager(kind: Kind, target: Target) -> Pager:
    (found,) = parse(Settings(pagers=(kind.spec(target.url),), pager_secret=SECRET))
    return found


def said(kind: Kind, target: Target) -> list[Said]:
    bodies = zip(target.requests, target.bodies, strict=True)
    return [kind.read(path, headers, body) for (path, headers, _), body in bodies]


def test_every_target_over_http_keeps_this_contract() -> None:
    assert {kind.name for kind in KINDS} | {"file"} == set(TARGETS)


def test_a_trigger_its_repeat_and_its_resolve_carry_one_key_in_the_targets_slot(
    kind: Kind, target: Target, pager: Pager
) -> None:
    later = {**PAGE.details, "amount_minor": 1300, "age": "5 h"}
    again = replace(PAGE, at_epoch_s=PAGE.at_epoch_s + 1800, details=later, summary="still")
    other = replace(PAGE, dedup_key="outbox:8:ttl")
    for page in (PAGE, again, replace(again, action="resolve"), other):
        assert isinstance(pager.send(page), Sent)
    trigger, repeat, resolve, another = said(kind, target)
    assert [each.action for each in (trigger, repeat, resolve)] == ["trigger", "trigger", "resolve"]
    assert trigger.slot == repeat.slot == resolve.slot
    labels = trigger.slot if isinstance(trigger.slot, dict) else {"outbox_key": trigger.slot}
    assert labels["outbox_key"] == "outbox:7:ttl"
    assert another.slot != trigger.slot


def test_an_acknowledge_carries_the_same_key_or_is_refused_without_a_request(
    kind: Kind, target: Target, pager: Pager
) -> None:
    answer = pager.send(replace(PAGE, action="acknowledge"))
    if kind.acknowledges:
        assert isinstance(answer, Sent)
        assert said(kind, target) == [Said("acknowledge", "outbox:7:ttl")]
    else:
        assert answer == Failed("takes no acknowledge", final=True)
        assert target.requests == []


def test_a_target_that_is_busy_says_when_to_come_back_and_is_asked_once(
    kind: Kind, target: Target, pager: Pager
) -> None:
    target.last = Answer(429, {"Retry-After": "7"})
    answer = pager.send(PAGE)
    if kind.tells_status:
        assert answer == Failed("http 429", 7.0)
    else:
        assert answer == Failed("apprise says no", maybe=True)
    assert len(target.requests) == 1


def test_a_server_error_may_have_been_shown_and_is_no_refusal(
    kind: Kind, target: Target, pager: Pager
) -> None:
    target.last = Answer(503, {"Retry-After": "3"})
    answer = pager.send(PAGE)
    if kind.tells_status:
        assert answer == Failed("http 503", 3.0, maybe=True)
    else:
        assert answer == Failed("apprise says no", maybe=True)
    assert len(target.requests) == 1


def test_a_refusal_is_final_where_the_status_is_told(
    kind: Kind, target: Target, pager: Pager
) -> None:
    target.last = Answer(401)
    answer = pager.send(PAGE)
    assert isinstance(answer, Failed)
    assert answer.final is kind.tells_status
    assert answer.maybe is not kind.tells_status


@pytest.mark.parametrize("answer", [Answer(202, hang=True), Answer(202, drip_s=0.05)])
def test_a_target_that_hangs_or_drips_is_given_up_at_the_deadline_and_may_have_shown_it(
    kind: Kind,
    target: Target,
    pager: Pager,
    monkeypatch: pytest.MonkeyPatch,
    answer: Answer,
) -> None:
    # Apprise's process must have started by then; it alone needs more than a moment.
    monkeypatch.setattr(page_post, "SEND_TIMEOUT_S", 1.5 if kind.tells_status else 4.0)
    target.last = answer
    given_up = pager.send(PAGE)
    assert isinstance(given_up, Failed)
    assert given_up.maybe
    assert not given_up.final
    assert len(target.requests) <= 1
    assert not kind.tells_status or len(target.requests) == 1


def test_a_target_that_nobody_hears_for_was_not_shown_the_page(kind: Kind) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        spec = kind.spec(f"http://127.0.0.1:{unheard.getsockname()[1]}")
        (pager,) = parse(Settings(pagers=(spec,), pager_secret=SECRET))
        answer = pager.send(PAGE)
    assert isinstance(answer, Failed)
    assert not answer.final
    assert answer.maybe is not kind.tells_status, "Apprise does not tell the two apart"


def test_a_page_is_cut_to_what_the_target_takes_and_odd_characters_do_not_fail_it(
    kind: Kind, target: Target, pager: Pager
) -> None:
    details = {f"name{n}": "x\ud800\x00" * 10_000 for n in range(500)}
    big = replace(PAGE, summary="s\ud800" * 3000, dedup_key="k" * 400, details=details)
    near = replace(big, dedup_key="k" * 401)
    assert isinstance(pager.send(big), Sent)
    assert isinstance(pager.send(near), Sent)
    assert all(len(raw) < 256 * 1024 for _, _, raw in target.requests)
    one, other = said(kind, target)
    assert one.slot != other.slot, "two long keys stay two"
    if isinstance(one.slot, str):
        assert len(one.slot) <= (250 if kind.read is _opsgenie else 255)
    body = target.bodies[0]
    if kind.read is _opsgenie:
        assert len(body["message"]) == 130
        assert len(body["description"]) <= 15_000
        assert sum(len(name) + len(value) for name, value in body["details"].items()) <= 8_000
    if kind.read is _pagerduty:
        assert len(body["payload"]["summary"]) == 1024
    if kind.read is _incidentio:
        assert len(body["title"]) == 250


def test_no_secret_is_in_a_page_row_an_error_or_a_repr(
    kind: Kind, target: Target, database: str
) -> None:
    settings = Settings(pagers=(kind.spec(target.url),), pager_secret=SECRET)
    pagers = parse(settings)
    target.answers = [Answer(429), Answer(503), Answer(401)]
    with open_ledger(database) as ledger:
        escalation = ledger.escalate(ledger.intent())
        for _ in range(4):
            page_once(ledger.store, pagers, ledger.settings)
            ledger.forward(120)
            assert SECRET not in _stored(ledger)
        ledger.close(escalation)
        page_once(ledger.store, pagers, ledger.settings)
        assert {page["state"] for page in ledger.pages()} == {"sent"}
        assert SECRET not in _stored(ledger)
        assert pagers[0].name in _stored(ledger)
    assert said(kind, target)[-1].action == "resolve"
    for shown in (pagers[0].name, repr(pagers[0]), repr(settings)):
        assert SECRET not in shown


def _stored(ledger: Ledger) -> str:
    return str(ledger.sql("SELECT p::text, e::text FROM outbox.pages p, outbox.escalations e"))
