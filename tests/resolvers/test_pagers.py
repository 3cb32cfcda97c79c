"""Pagers over real HTTP and real files: what they send, and what they make of each answer."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from outbox.errors import SettingsError
from outbox.settings import Settings
from resolvers import pagers
from resolvers.pagers import Failed, Page, PageFile, Sent, parse
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


def pager_of(spec: str) -> pagers.Pager:
    (found,) = parse(Settings(pagers=(spec,), pager_secret=SECRET))
    return found


def pagerduty(target: Target) -> pagers.Pager:
    return pager_of(f"pagerduty:{KEY}@{target.url}")


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (400, {}, Failed("http 400", None, final=True)),
        (403, {}, Failed("http 403", None, final=True)),
        (307, {"Location": "/elsewhere"}, Failed("http 307", None, final=True)),
        (429, {"Retry-After": "7"}, Failed("http 429", 7.0)),
        (429, {"Retry-After": "999999"}, Failed("http 429", pagers.RETRY_AFTER_MAX_S)),
        (429, {"Retry-After": "Sun, 29 Nov 2026 00:00:00 GMT"}, Failed("http 429")),
        (500, {}, Failed("http 500", maybe=True)),
        (503, {"Retry-After": "3"}, Failed("http 503", 3.0, maybe=True)),
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


def test_a_refused_connection_was_surely_not_shown_and_a_lost_answer_may_have_been(
    target: Target,
) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unheard.getsockname()[1]}"
        refused = pager_of(f"pagerduty:{KEY}@{address}").send(PAGE)
    assert isinstance(refused, Failed)
    assert not refused.maybe
    assert not refused.final
    target.last = Answer(202, drop=True)
    lost = pagerduty(target).send(PAGE)
    assert isinstance(lost, Failed)
    assert lost.maybe
    assert not lost.final


def test_one_deadline_ends_an_answer_that_drips(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pagers, "SEND_TIMEOUT_S", 0.5)
    target.last = Answer(202, drip_s=0.05)
    answer = pagerduty(target).send(PAGE)
    assert isinstance(answer, Failed)
    assert answer.maybe
    assert not answer.final
    assert len(target.requests) == 1


def test_a_trigger_carries_key_severity_and_details_and_a_resolve_only_the_key(
    target: Target,
) -> None:
    pager = pagerduty(target)
    assert pager.send(PAGE) == Sent("http 202")
    assert pager.send(replace(PAGE, action="resolve")) == Sent("http 202")
    assert [path for path, _, _ in target.requests] == ["/v2/enqueue"] * 2
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


def test_a_page_is_cut_to_what_the_target_takes_and_odd_characters_do_not_fail_it(
    target: Target,
) -> None:
    details: dict[str, pagers.Detail] = {f"name{n}": "x\ud800\x00" * 10_000 for n in range(500)}
    big = replace(PAGE, summary="s" * 3000, dedup_key="k" * 400, details=details)
    assert pagerduty(target).send(big) == Sent("http 202")
    (body,) = target.bodies
    assert len(body["payload"]["summary"]) == 1024
    assert len(body["dedup_key"]) == 255
    assert len(target.requests[0][2]) < 512 * 1024


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


def test_a_file_gets_one_readable_line_a_page_when_many_processes_write(tmp_path: Path) -> None:
    path = tmp_path / "pages.jsonl"
    program = (
        "import sys; from pathlib import Path; from resolvers.pagers import Page, PageFile\n"
        "pager = PageFile(Path(sys.argv[1]))\n"
        "for n in range(100):\n"
        "    pager.send(Page('trigger', f'{sys.argv[2]}-{n}', 'error', 's' * 900, 'o', 1))\n"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", program, str(path), name]) for name in ("a", "b")
    ]
    assert [writer.wait() for writer in writers] == [0, 0]
    keys = [json.loads(line)["dedup_key"] for line in path.read_text().splitlines()]
    assert sorted(keys) == sorted(f"{name}-{n}" for name in ("a", "b") for n in range(100))
    assert path.stat().st_mode & 0o077 == 0


def test_a_file_that_cannot_be_written_is_a_failure_and_not_a_crash(tmp_path: Path) -> None:
    answer = PageFile(tmp_path / "gone" / "pages.jsonl").send(PAGE)
    assert isinstance(answer, Failed)
    assert not answer.final
    full = PageFile(Path("/dev/full")).send(PAGE)
    assert isinstance(full, Failed)


def test_a_pipe_can_be_a_page_file(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert isinstance(PageFile(path).send(PAGE), Sent)
        assert json.loads(os.read(reader, 65536))["dedup_key"] == "outbox:7:ttl"
    finally:
        os.close(reader)


@pytest.mark.parametrize(
    ("spec", "setting"),
    [
        ("pagerduty:short", "OUTBOX_PAGERS"),
        (f"pagerduty:{KEY}@http://events.example.org", "OUTBOX_PAGERS"),
        (f"pagerduty:{KEY}@ftp://127.0.0.1", "OUTBOX_PAGERS"),
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


def test_all_faults_of_the_pagers_are_told_at_once_and_one_target_twice_is_one() -> None:
    with pytest.raises(SettingsError) as refused:
        parse(Settings(pagers=("pagerduty:x", "file:/", f"pagerduty:{KEY}", f"pagerduty:{KEY}")))
    assert len(refused.value.problems) == 3


def test_no_pager_is_none_at_all_and_the_order_is_kept(tmp_path: Path) -> None:
    assert parse(Settings(pagers=None)) == ()
    assert parse(Settings(pagers=())) == ()
    found = parse(Settings(pagers=(f"file:{tmp_path / 'p'}", f"pagerduty:{KEY}")))
    assert [pager.name.split(":")[0] for pager in found] == ["file", "pagerduty"]


def test_what_is_stored_and_shown_of_a_pager_holds_no_secret() -> None:
    for pager in parse(
        Settings(
            pagers=(f"pagerduty:{KEY}", "webhook:https://hooks.example.org/T0KEN"),
            pager_secret=SECRET,
        )
    ):
        for shown in (pager.name, repr(pager)):
            assert KEY not in shown
            assert "T0KEN" not in shown
            assert SECRET not in shown
