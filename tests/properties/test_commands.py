"""Whatever is typed, a command ends with a documented exit code, and never as a bug."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from uuid import UUID

import pytest
from click.testing import CliRunner
from hypothesis import event, given, note
from hypothesis import strategies as st

from tests.cli.desk import Desk, open_desk
from tests.properties.command_lines import ODD, PROCESSES, Known, command_line, leaves
from tests.properties.picks import Picks
from tests.properties.profiles import bounded
from tests.properties.scene import open_scene
from vendors.sandbox.client import Sandbox
from workers.cli import root

TREE = list(leaves(root))
DOCUMENTED = {0, 2, 3, 4, 5, 6, 7}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")


class Terminal:
    """Where commands are typed: in this process, at a ledger with something of each kind in it."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        code, out, _ = self.run(["config", "show", "--json"])
        assert code == 0
        self.settings = sorted(item["name"] for item in json.loads(out)["items"])

    def run(self, words: list[str], **env: str) -> tuple[int, str, str]:
        """One command; what it would leave behind in its process is taken back."""
        path = list(sys.path)
        result = CliRunner(env={**self.desk.env, **env}).invoke(root, words)
        sys.path[:] = path
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def terminal(module_database: str, outbox_sandbox: Sandbox) -> Iterator[Terminal]:
    with open_desk(module_database, outbox_sandbox) as opened:
        yield Terminal(opened)


@pytest.fixture(scope="module")
def known(terminal: Terminal) -> Known:
    """Its ids and names, whole and in part."""
    desk = terminal.desk
    lost, receipt = desk.lost(landed=True)
    intents = [
        desk.enqueue(),
        lost,
        desk.lost()[0],
        desk.succeeded()[0],
        desk.enqueue(tenant="globex"),
    ]
    questions = [desk.escalate(lost), desk.escalate(intents[3], "contradiction", objects=["pi_2"])]
    desk.keep("evt_1", "new")

    def short(ids: list[UUID]) -> list[str]:
        return [str(each)[:size] for each in ids for size in (36, 8, 4)]

    by_name = {
        "intent_id": short(intents),
        "escalation_id": short(questions + intents),
        "account": ["stripe/default", "stripe", "default", "stripe/other"],
        "webhook_id": ["1", "2", "x"],
        "handler": ["json:dumps", "json:nothing", "tests.properties.test_commands:TREE"],
        "receipt_id": [receipt, "pi_0", f" {receipt} "],
        "receipt": [receipt, "pi_0"],
        "reason": ["because", "x"],
        "topic": ["exit-codes", "intent", "show", "escalation"],
        "limit": ["1", "50", "10000", "0"],
        "consumer": ["billing"],
    }
    return Known(
        by_name, ["acme", "run-1", "stripe", "stripe/default", "1d", "10m", "2s", "1", "x"]
    )


def check(words: list[str], code: int, out: str, err: str) -> None:
    """What every ending has in common."""
    note(f"{words!r} -> {code}\n{err[:1500]}")
    assert code in DOCUMENTED
    assert "Traceback" not in err
    assert "a bug in" not in err
    assert not _CONTROL.search(err), "a word that somebody typed steers no terminal"
    out.encode()
    if code not in (0, 3):
        assert out == ""
        assert err
    if code not in (0, 3) and "--json" in words:
        error = json.loads(err.splitlines()[-1])["error"]
        assert set(error) >= {"code", "message", "field", "candidates"}


def test_the_tree_is_walked_to_its_leaves() -> None:
    assert len(TREE) > 30
    assert {path[0] for path, _ in TREE} >= PROCESSES | {"intent", "escalation", "doctor"}


@given(st.binary(min_size=60, max_size=60))
@bounded(170)
def test_whatever_is_typed_ends_with_a_documented_exit_code(
    terminal: Terminal, known: Known, raw: bytes
) -> None:
    words = command_line(Picks(raw), TREE, known)
    code, out, err = terminal.run(words)
    event(f"exit code {code}")
    check(words, code, out, err)


@given(st.lists(st.sampled_from([*ODD, "intent", "escalation", "--json", "--version"]), max_size=4))
@bounded(40)
def test_words_that_are_no_command_are_usage_or_help(terminal: Terminal, words: list[str]) -> None:
    code, out, err = terminal.run(words)
    check(words, code, out, err)
    assert code in (0, 2)


@given(st.binary(min_size=12, max_size=12))
@bounded(60)
def test_whatever_a_setting_says_it_is_taken_or_named(terminal: Terminal, raw: bytes) -> None:
    picks = Picks(raw)
    name = picks.of(terminal.settings)
    value = picks.of([text for text in ODD if _fits(text)])
    command = picks.of([["config", "show"], ["config", "show", "--json"], ["intent", "list"]])
    code, out, err = terminal.run(command, **{name: value})
    note(f"{name}={value!r}")
    check(command, code, out, err)
    if code == 2:
        # By its own name; or two that are in the wrong order, by the one that must be larger.
        assert name in err or (
            name.startswith("OUTBOX_")
            and re.search(r"_S: must be (above|below)|must be below the lease", err)
        )


def _fits(text: str) -> bool:
    """Whether an environment can hold it."""
    try:
        return b"\x00" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def test_after_all_that_the_ledger_holds_what_it_must(
    terminal: Terminal, module_database: str
) -> None:
    """Runs behind the others of its module, on what they left."""
    with ExitStack() as stack:
        scene = stack.enter_context(open_scene(module_database))
        assert scene.broken() == []
