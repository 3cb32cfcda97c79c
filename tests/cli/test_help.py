"""Every command says what it does, with examples; and says it at once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from tests.cli.desk import SCRIPT
from workers import cli_errors
from workers.cli import root
from workers.cli_run import ARGUMENTS, Verb
from workers.cli_span import Span
from workers.cli_topics import TOPICS


def commands(
    group: click.Group = root, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


EVERY = list(commands())
CHECKS = {("doctor",), ("health",), ("vendor", "check"), ("schema", "check"), ("consume",)}
# Refused for the state of the ledger, and not for what a person may rule.
REFUSED = {("prune",), ("schema", "upgrade")}
ROWS = {"INTENT", "ESCALATION", "ACCOUNT", "WEBHOOK"}
VERBS = [(path, command) for path, command in EVERY if not isinstance(command, click.Group)]


@pytest.mark.parametrize(("path", "command"), EVERY, ids=["-".join(p) for p, _ in EVERY])
def test_every_command_and_every_option_says_what_it_does(
    path: tuple[str, ...], command: click.Command
) -> None:
    assert command.help, f"{' '.join(path)} has no help"
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{' '.join(path)} {parameter.opts[0]} has no help"
        else:
            name = parameter.make_metavar(click.Context(command)).strip("[]")
            shown = CliRunner().invoke(root, [*path, "--help"]).output
            assert ARGUMENTS[name].split()[0] in shown.split("Arguments:")[1]


@pytest.mark.parametrize(("path", "command"), VERBS, ids=["-".join(p) for p, _ in VERBS])
def test_every_verb_has_examples_and_json_where_it_tells_something(
    path: tuple[str, ...], command: click.Command
) -> None:
    assert isinstance(command, Verb)
    assert command.examples
    shown = CliRunner().invoke(root, [*path, "--help"])
    assert shown.exit_code == 0
    assert ("--json" in shown.output) == (path[0] not in ("up", "worker", "beat", "web"))
    for example in command.examples:
        assert example in shown.output
        assert f"outbox {' '.join(path)}" in example
        assert len(example) <= 78


@pytest.mark.parametrize(("path", "command"), EVERY, ids=["-".join(p) for p, _ in EVERY])
def test_help_fits_eighty_columns_with_every_default_and_unit(
    path: tuple[str, ...], command: click.Command
) -> None:
    shown = CliRunner().invoke(root, [*path, "--help"], terminal_width=80).output
    assert max(len(line) for line in shown.splitlines()) <= 80, shown
    text = " ".join(shown.split())
    for parameter in command.params:
        if not isinstance(parameter, click.Option) or parameter.is_flag:
            continue
        default = parameter.get_default(click.Context(command))
        if isinstance(default, str | int | float) and default != "":
            assert f"[default: {default}" in text, parameter.opts
        if isinstance(parameter.type, Span):
            # Its unit is typed: one example at least, or a default, shows how.
            assert re.search(r"\b\d+(\.\d+)?[smhd]\b", parameter.help or ""), parameter.opts


@pytest.mark.parametrize(("path", "command"), VERBS, ids=["-".join(p) for p, _ in VERBS])
def test_every_verb_says_its_exit_codes(path: tuple[str, ...], command: click.Command) -> None:
    shown = CliRunner().invoke(root, [*path, "--help"]).output.split("Exit codes:")[1]
    told = {int(number) for number in re.findall(r"^  (\d+) ", shown, re.MULTILINE)}
    options = {p.opts[0] for p in command.params}
    assert {0, 2} <= told
    assert (4 in told) == ("--reason" in options or path in REFUSED)
    assert (7 in told) == ("--yes" in options)
    if path in CHECKS:
        assert 3 in told
    if any(p.make_metavar(click.Context(command)).strip("[]") in ROWS for p in command.params):
        assert 5 in told


def test_topics_are_listed_fit_and_tell_every_exit_code() -> None:
    listed = CliRunner().invoke(root, ["help"]).stdout
    for name, (about, _) in TOPICS.items():
        assert f"  {name}" in listed
        assert about in listed
        told = CliRunner().invoke(root, ["help", name])
        assert told.exit_code == 0
        assert max(len(line) for line in told.stdout.splitlines()) <= 80
        asked = CliRunner().invoke(root, ["help", name, "--json"]).stdout
        assert json.loads(asked)["text"] == TOPICS[name][1]
    codes = re.findall(r"^(\d+)", TOPICS["exit-codes"][1], re.MULTILINE)
    known = (*range(8), cli_errors.UNWRITABLE, cli_errors.INTERRUPTED)
    assert [int(code) for code in codes] == list(known)


def test_help_of_a_command_is_its_own_and_of_nothing_is_a_usage_error() -> None:
    told = CliRunner().invoke(root, ["help", "escalation", "landed"])
    assert told.stdout == CliRunner().invoke(root, ["escalation", "landed", "--help"]).stdout
    wrong = CliRunner().invoke(root, ["help", "escalation", "lands"])
    assert wrong.exit_code == 2
    assert "exit-codes" in wrong.stderr


def test_what_the_topics_tell_to_type_exists() -> None:
    text = " ".join(text for _, text in TOPICS.values())
    for words in re.findall(r"`?outbox ((?:[a-z-]+ ?){1,2})", text):
        assert CliRunner().invoke(root, [*words.split(), "--help"]).exit_code == 0, words


def test_every_verb_that_changes_something_wants_a_reason_and_can_be_tried() -> None:
    changing = {
        ("intent", "cancel"),
        ("escalation", "ack"),
        ("escalation", "mute"),
        ("escalation", "landed"),
        ("escalation", "not-landed"),
        ("escalation", "resend"),
        ("escalation", "close"),
        ("vendor", "pause"),
        ("vendor", "resume"),
        ("webhook", "replay"),
    }
    found = dict(VERBS)
    for path in changing:
        options = {p.opts[0]: p for p in found[path].params}
        assert options["--reason"].required, path
        assert "--dry-run" in options, path


def test_every_verb_of_the_design_is_there() -> None:
    wanted = (
        "up demo worker beat web health consume doctor resolve intent-list intent-show "
        "intent-history intent-cancel escalation-list escalation-show escalation-ack "
        "escalation-landed escalation-not-landed escalation-resend escalation-mute vendor-list "
        "vendor-check vendor-pause vendor-resume webhook-list webhook-replay schema-upgrade "
        "schema-check schema-sql config-show help completion prune"
    )
    assert set(wanted.split()) <= {"-".join(path) for path, _ in VERBS}


@pytest.mark.parametrize(
    "path", [(), *(p for p, c in EVERY if isinstance(c, click.Group))], ids="-".join
)
def test_a_noun_alone_prints_its_help_and_is_a_usage_error(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(root, list(path))
    assert shown.exit_code == 2
    assert shown.stdout == ""
    assert "Usage:" in shown.stderr


def test_help_is_shown_without_loading_what_it_does_not_need() -> None:
    script = (
        "import sys; from workers.cli import root\n"
        "try: root.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'celery', 'stripe', 'alembic', 'rich', 'sqlalchemy', 'psycopg', 'outbox'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stderr == "[]\n"


def test_the_script_says_its_version() -> None:
    ran = subprocess.run(
        [sys.executable, SCRIPT, "--version"], capture_output=True, text=True, check=True, env={}
    )
    assert ran.stdout.startswith("outbox 0.")
    assert CliRunner().invoke(root, ["--json", "--version"]).stdout.startswith('{"schema": 1')
