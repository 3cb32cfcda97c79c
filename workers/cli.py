"""The command line ``outbox``: noun, then verb.

Exit codes: 0 done, 1 a bug, 2 usage, 3 a check found something, 4 refused by policy, 5 not found,
6 a backend is unreachable, 7 declined at the prompt; 74 stdout cannot be written.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click
from click.utils import PacifyFlushWrapper

from workers import (
    cli_completion,
    cli_config,
    cli_consume,
    cli_doctor,
    cli_drill,
    cli_errors,
    cli_escalation,
    cli_health,
    cli_help,
    cli_intent,
    cli_processes,
    cli_prune,
    cli_redact,
    cli_resolve,
    cli_schema,
    cli_vendor,
    cli_webhook,
)
from workers.cli_run import Run

_EPILOG = """\b
Exit codes:
  0  done                            4  refused by policy
  1  a bug of ours                   5  not found
  2  usage, or a wrong setting       6  a backend is unreachable
  3  a check found something         7  declined at the prompt
                                    74  the output could not be written

`outbox help` lists what is explained once for every command.
"""


class Root(click.Group):
    """The root: turns whatever a command raises into one error and its exit code."""

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        """Runs one command line and exits with its code."""
        given = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        sys.exit(self._run(given, prog_name or "outbox", extra))

    def _run(self, args: list[str], prog_name: str, extra: dict[str, Any]) -> int:
        _open_streams()
        try:
            if not all(_is_text(arg) for arg in args):
                raise click.UsageError("an argument is not UTF-8 text")
            code = super().main(args, prog_name, **extra)
            sys.stdout.flush()
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            return cli_errors.USAGE
        except click.Abort:
            return cli_errors.INTERRUPTED
        except SystemExit:
            # So click ends where the reader has had enough (`| head`), which is no error.
            if not isinstance(sys.stdout, PacifyFlushWrapper):
                raise
            return cli_errors.DONE
        except Exception as error:
            code = cli_errors.show(error, as_json="--json" in args)
            if code == cli_errors.UNWRITABLE:
                # The interpreter's last flush must not complain once more.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code if isinstance(code, int) else cli_errors.DONE


def _open_streams() -> None:
    """A closed stdout fails when it is written, and a closed stderr swallows what it is told."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - for the process's life
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - the same
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal's encoding lacks is no reason to say nothing at all.
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _is_text(arg: str) -> bool:
    try:
        arg.encode()
    except UnicodeEncodeError:
        return False
    return True


@click.group(
    cls=Root,
    epilog=_EPILOG,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text, for every command.")
@click.option("--version", is_flag=True, help="Show the version and exit.")
@click.pass_context
def root(context: click.Context, *, as_json: bool, version: bool) -> int | None:
    """Writes of software agents, each done once: see what is in doubt, and rule on it."""
    run = context.obj = Run()
    run.json = as_json
    context.call_on_close(run.close)
    if version:
        _show_version(run)
        context.exit(0)
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        return cli_errors.USAGE
    return None


def _show_version(run: Run) -> None:
    from importlib.metadata import version

    from workers.cli_output import show_json

    found = version("outbox-resolve")
    if run.json:
        show_json({"version": found})
    else:
        click.echo(f"outbox {found}")


for _commands in (
    cli_processes,
    cli_health,
    cli_intent,
    cli_redact,
    cli_escalation,
    cli_vendor,
    cli_resolve,
    cli_webhook,
    cli_prune,
    cli_consume,
    cli_doctor,
    cli_drill,
    cli_schema,
    cli_config,
    cli_completion,
    cli_help,
):
    for _command in _commands.COMMANDS:
        root.add_command(_command)


def main() -> NoReturn:
    """The console script."""
    root.main()
