"""--watch: on a terminal until somebody types q, and as a line of JSON for each change."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.cli.desk import SCRIPT, Desk
from tests.cli.ran import WAIT_S

_SIZE = {"COLUMNS": "100", "LINES": "50", "TERM": "xterm-256color"}
OFTEN = ("--watch", "--every", "0.2s")


@dataclass
class Terminal:
    """A command that runs on a terminal of its own, and what it has written so far."""

    master: int
    process: subprocess.Popen[bytes]
    seen: str = ""

    def until(self, words: str) -> str:
        """Reads on until the words have come after what was read before."""
        start = len(self.seen)
        give_up = time.monotonic() + WAIT_S
        while words not in self.seen[start:]:
            assert time.monotonic() < give_up, self.seen[start:]
            ready, _, _ = select.select([self.master], [], [], 0.1)
            if ready:
                self.seen += os.read(self.master, 65536).decode()
        return self.seen[start:]

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def end(self) -> int:
        give_up = time.monotonic() + WAIT_S
        while self.process.poll() is None:
            assert time.monotonic() < give_up, "it does not end"
            ready, _, _ = select.select([self.master], [], [], 0.05)
            if ready:
                self.seen += os.read(self.master, 65536).decode()
        return self.process.returncode


@contextmanager
def on_terminal(desk: Desk, *args: str, **env: str) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    # A session leader that opens a terminal has it as its own: Ctrl-C is a signal then.
    words = ["/bin/sh", "-c", 'exec "$@" <"$TTY" >"$TTY" 2>&1', "sh"]
    process = subprocess.Popen(
        [*words, sys.executable, str(SCRIPT), *args],
        env={**desk.env, **_SIZE, "TTY": os.ttyname(slave), **env},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield Terminal(master, process)
        assert termios.tcgetattr(slave) == before, "the terminal is not as it was"
    finally:
        process.kill()
        process.wait()
        os.close(slave)
        os.close(master)


@pytest.mark.parametrize("keys", ["q", "xQ", "\x03"], ids=["q", "another key first", "Ctrl-C"])
def test_a_list_is_shown_again_until_somebody_has_seen_enough(desk: Desk, keys: str) -> None:
    question = desk.escalate(desk.lost()[0])
    with on_terminal(desk, "escalation", "list", *OFTEN) as terminal:
        terminal.until(str(question))
        assert desk.invoke("escalation", "ack", str(question), "--reason", "x").code == 0
        second = desk.escalate(desk.lost()[0])
        terminal.until(str(second))
        terminal.type(keys)
        assert terminal.end() == 0
    assert "Traceback" not in terminal.seen


def test_one_question_one_intent_and_health_can_be_watched(desk: Desk) -> None:
    intent_id, _ = desk.lost()
    question = desk.escalate(intent_id)
    asked = len(desk.sandbox.requests(desk.vendor_account))
    for args, words, then in (
        (("escalation", "show", str(question)), "what each verdict would do now", "not asked"),
        (("intent", "show", str(intent_id)), str(intent_id), "unknown"),
        (("health",), "has never run", "escalations: 1 open"),
    ):
        with on_terminal(desk, *args, *OFTEN) as terminal:
            said = terminal.until(words) + terminal.until(then if then != words else words)
            assert then in said
            terminal.type("q")
            assert terminal.end() == 0, args
    assert len(desk.sandbox.requests(desk.vendor_account)) == asked


def test_a_key_that_was_typed_before_the_watch_is_up_ends_it_too(desk: Desk) -> None:
    with on_terminal(desk, "health", *OFTEN) as terminal:
        terminal.type("q")
        assert terminal.end() == 0


def test_a_terminal_that_can_only_be_written_to_gets_each_change_below_the_last(
    desk: Desk,
) -> None:
    first = desk.escalate(desk.lost()[0])
    with on_terminal(desk, "escalation", "list", *OFTEN, TERM="dumb") as terminal:
        terminal.until(str(first))
        second = desk.escalate(desk.lost()[0])
        terminal.until(str(second))
        terminal.type("q")
        assert terminal.end() == 0
    assert "\x1b" not in terminal.seen
    with on_terminal(desk, "health", *OFTEN, TERM="dumb") as terminal:
        terminal.until("escalations: 2 open")
        terminal.type("q")
        assert terminal.end() == 0


def test_a_signal_leaves_the_terminal_as_it_was(desk: Desk) -> None:
    with on_terminal(desk, "intent", "list", *OFTEN) as terminal:
        terminal.until("q or Ctrl-C")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() == 128 + signal.SIGTERM


def test_off_a_terminal_it_is_refused_and_says_what_is_possible(desk: Desk) -> None:
    for args in (("intent", "list"), ("escalation", "list"), ("health",)):
        ran = desk.run(*args, *OFTEN)
        assert (ran.code, ran.out) == (2, "")
        assert "--json" in ran.err


def test_as_json_each_change_is_one_line_and_time_alone_is_none(desk: Desk) -> None:
    first = desk.escalate(desk.lost()[0])
    process = desk.start("escalation", "list", *OFTEN, "--json")
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")

    def next_line() -> dict[str, Any]:
        made: dict[str, Any] = json.loads(next(lines))
        return made

    added = next_line()
    assert (added["change"], added["item"]["id"]) == ("added", str(first))
    desk.forward(60)  # ages grow: no line
    assert desk.invoke("escalation", "ack", str(first), "--reason", "x").code == 0
    changed = next_line()
    assert (changed["change"], changed["item"]["acked_by"]) == ("changed", "alice")
    second = desk.escalate(desk.lost()[0])
    assert next_line()["item"]["id"] == str(second)
    desk.sql("UPDATE outbox.escalations SET closed_at = outbox.clock()")
    gone = {next_line()["item"]["id"], next_line()["item"]["id"]}
    assert gone == {str(first), str(second)}
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out, err) == (0, "", "")


def test_a_watch_outlives_a_database_that_is_away(desk: Desk) -> None:
    """Its connections are cut and nobody may connect: it says so once, and goes on afterwards."""
    question = desk.escalate(desk.lost()[0])
    process = desk.start("escalation", "show", str(question), *OFTEN, "--json")
    assert process.stdout is not None
    assert process.stderr is not None
    assert json.loads(process.stdout.readline())["acked_by"] is None
    admin = desk.settings.database_url.replace("+psycopg", "")
    name = desk.sql("SELECT current_database() AS name")[0]["name"]
    import psycopg

    with psycopg.connect(admin.replace(f"/{name}?", "/postgres?"), autocommit=True) as other:
        other.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s "
            "AND application_name = 'outbox'",
            [name],
        )
        assert "trying again" in process.stderr.readline()
        other.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    assert desk.invoke("escalation", "ack", str(question), "--reason", "x").code == 0
    assert json.loads(process.stdout.readline())["acked_by"] == "alice"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 0


def test_a_watch_ends_when_its_reader_has_had_enough(desk: Desk) -> None:
    desk.enqueue()
    process = desk.start("intent", "list", *OFTEN, "--json")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    desk.enqueue()
    assert process.wait(WAIT_S) == 0
    for pipe in (process.stdin, process.stderr):
        assert pipe is not None
        pipe.close()
