"""Every command says what it does, with examples; and says it at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from tests.cli.desk import SCRIPT
from workers.cli import root
from workers.cli_run import ARGUMENTS, Verb


def commands(
    group: click.Group = root, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


EVERY = list(commands())
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
        "schema-check schema-sql config-show"
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
