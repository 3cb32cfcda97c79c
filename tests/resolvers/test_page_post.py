"""One page, one deadline: whatever hangs on its way to the target, and what that proves."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from resolvers import apart, page_post
from resolvers.page import Failed
from tests.resolvers.page_target import Answer, Target

# A host's resolver that takes its own time, as one whose name servers are away does.
_SLOW_NAMES = """
import socket, sys, threading, time
from resolvers import page_post
asked = socket.getaddrinfo
def slow(host, *rest):
    return threading.Event().wait() if host == "away.test" else asked(host, *rest)
socket.getaddrinfo = slow
page_post.SEND_TIMEOUT_S = 0.5
for _ in range(3):
    began = time.monotonic()
    answer = page_post.post("http://away.test/x", {}, accepts=range(200, 300))
    print(answer.maybe, time.monotonic() - began < 10, threading.active_count() <= 3)
page_post.SEND_TIMEOUT_S = 30.0
print(page_post.post(sys.argv[1], {}, accepts=range(200, 300)))
"""


def test_a_name_that_does_not_resolve_is_given_up_at_the_deadline_and_nothing_was_shown(
    first: Target,
) -> None:
    """Neither the next page nor the end of the process waits for the resolver."""
    at = first.url.replace("127.0.0.1", "localhost")
    ran = subprocess.run(
        [sys.executable, "-c", _SLOW_NAMES, at],
        capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "NO_PROXY": "*", "no_proxy": "*"},
    )  # fmt: skip
    assert ran.stdout.splitlines() == ["False True True"] * 3 + ["Sent(detail='http 202')"]


def test_a_name_that_is_not_known_was_shown_nothing() -> None:
    answer = page_post.post("http://no-such-host.invalid/x", {}, accepts=range(200, 300))
    assert isinstance(answer, Failed)
    assert not answer.maybe


def test_what_left_and_was_not_answered_may_be_shown(
    first: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_post, "SEND_TIMEOUT_S", 2.0)
    first.last = Answer(202, hang=True)
    answer = page_post.post(first.url, {}, accepts=range(200, 300))
    assert answer == Failed("no answer within 2 s", maybe=True)
    assert len(first.requests) == 1


def test_a_tunnel_that_a_proxy_refuses_shows_nothing(
    first: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, first.url)
    answer = page_post.post("https://pager.example.org/x", {}, accepts=range(200, 300))
    assert isinstance(answer, Failed)
    assert not answer.maybe


def test_what_hangs_is_begun_once_and_what_comes_after_it_has_its_turn() -> None:
    go, begun = threading.Event(), []

    def work() -> int:
        begun.append(1)
        go.wait()
        return len(begun)

    one = apart.begin("disk", work, 60.0)
    with pytest.raises(apart.Hangs):
        apart.begin("disk", work, 0.05).result(60)
    assert apart.begin("another disk", lambda: 7, 60.0).result(60) == 7
    given_up = apart.begin("disk", work, 60.0)
    assert given_up.cancel()
    last = apart.begin("disk", work, 60.0)
    go.set()
    assert (one.result(60), last.result(60)) == (1, 2)
    assert begun == [1, 1], "what was given up before its turn is not done later"
