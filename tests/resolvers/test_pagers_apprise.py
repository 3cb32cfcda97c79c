"""Apprise, in a process of its own that ends when it is told to."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from outbox.errors import SettingsError
from outbox.settings import Settings
from resolvers.page import Page, Sent
from resolvers.pagers import parse
from tests.resolvers.page_target import Answer, Target, page_target

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("apprise") is None, reason="the extra [apprise] is not installed"
)
PAGE = Page("trigger", "outbox:7:ttl", "critical", "not settled", "outbox/test", 1_780_000_000)


@pytest.fixture
def target() -> Iterator[Target]:
    with page_target() as found:
        found.last = Answer(200)
        yield found


@pytest.mark.parametrize(
    "url",
    ["nosuchservice://host/TOKENtoken", "slack://TOKENtoken", "json://", "discord://TOKENtoken"],
)
def test_an_address_that_apprise_does_not_understand_is_refused_at_start_up(url: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse(Settings(pagers=(f"apprise:{url}",)))
    assert [name for name, _ in refused.value.problems] == ["OUTBOX_PAGERS"]
    assert "TOKENtoken" not in str(refused.value)


def test_a_page_is_a_message_with_its_severity_and_a_resolve_one_of_success(
    target: Target,
) -> None:
    url = target.url.replace("http:", "json:")
    (pager,) = parse(Settings(pagers=(f"apprise:{url}",)))
    assert pager.name.startswith("apprise:json#")
    assert pager.send(PAGE) == Sent("apprise says yes")
    assert pager.send(replace(PAGE, action="resolve")) == Sent("apprise says yes")
    trigger, resolve = target.bodies
    assert (trigger["title"], trigger["type"]) == ("critical outbox/test", "failure")
    assert (resolve["title"], resolve["type"]) == ("resolved outbox/test", "success")
    assert trigger["message"].startswith("not settled")


def test_its_process_ends_at_the_deadline_by_itself_where_nobody_ends_it(target: Target) -> None:
    target.last = Answer(200, hang=True)
    order = {
        "url": target.url.replace("http:", "json:"),
        "deadline_s": 3.0,
        "title": "t",
        "body": "b",
        "type": "info",
        "key": "k",
    }
    child = subprocess.Popen(
        [sys.executable, "-m", "resolvers.pager_apprise_child"], stdin=subprocess.PIPE
    )
    child.communicate(json.dumps(order).encode())
    assert child.returncode == -signal.SIGALRM
