"""From what was raised to an exit code and one error on stderr.

0 done, 1 a bug of ours, 2 usage, 3 a check found something, 4 refused by policy, 5 not found,
6 a backend is unreachable, 7 declined at the prompt; 74 stdout cannot be written (sysexits).
"""

from __future__ import annotations

import errno
import io
import sys
import traceback
from dataclasses import dataclass, field
from typing import Any

import click

from workers.cli_output import json_line, say

DONE, BUG, USAGE, FOUND, DENIED, NOT_FOUND, UNREACHABLE, DECLINED = range(8)
UNWRITABLE = 74
INTERRUPTED = 130

# Where the output goes is full, broken or not open at all.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})
# The schema is missing or older than this release: undefined function, table, column, schema.
_NO_SCHEMA = frozenset({"42883", "42P01", "42703", "3F000"})
# Privileges that the role lacks, and a standby.
_FORBIDDEN = frozenset({"42501", "25006"})


class Declined(Exception):
    """The person said no at the prompt; nothing was changed."""


class CheckFound(Exception):
    """A check found something; its findings are on stdout already."""


@dataclass(frozen=True, slots=True)
class Told:
    """One error as it is shown: ``body`` goes under ``error`` in JSON."""

    exit_code: int
    body: dict[str, Any]
    lines: tuple[str, ...] = field(default=())


def told_of(error: BaseException) -> Told:
    """The exit code and the words for anything that a command can raise."""
    if isinstance(error, Declined):
        return _told(DECLINED, "declined", "declined; nothing was changed")
    if isinstance(error, click.UsageError):
        return _usage(error)
    if isinstance(error, click.ClickException):
        return _told(USAGE, "usage", error.format_message())
    if isinstance(error, OSError) and (
        error.errno in _FULL or isinstance(error, io.UnsupportedOperation)
    ):
        return _told(UNWRITABLE, "unwritable", f"cannot write: {error.strerror or 'closed'}")
    from outbox import errors

    if isinstance(error, errors.SettingsError):
        lines = tuple(f"{name}: {problem}" for name, problem in error.problems)
        body = {
            "code": "settings",
            "message": f"{len(lines)} settings are wrong" if len(lines) > 1 else lines[0],
            "field": error.problems[0][0],
            "candidates": [],
            "problems": [{"field": n, "message": p} for n, p in error.problems],
        }
        return Told(USAGE, body, lines)
    if isinstance(error, errors.NotFound):
        found = isinstance(error, errors.Ambiguous)
        code, exit_code = ("ambiguous", USAGE) if found else ("not_found", NOT_FOUND)
        told = _told(exit_code, code, error.problem, error.field, error.candidates)
        return Told(told.exit_code, told.body, (error.problem, *error.candidates))
    if isinstance(error, errors.Invalid):
        return _told(USAGE, "invalid", f"{error.field}: {error.problem}", error.field)
    if isinstance(error, errors.Denied):
        return _told(DENIED, error.code, error.problem)
    if isinstance(error, errors.Unreachable):
        return _told(UNREACHABLE, "unreachable", str(error))
    if isinstance(error, errors.OutboxError):
        return _told(DENIED, type(error).__name__, str(error))
    if _is_of_servers(error):
        return _told(UNREACHABLE, "servers", str(error))
    database: Any = getattr(error, "orig", error)  # SQLAlchemy wraps the driver's own
    state = getattr(database, "sqlstate", None)
    if state in _NO_SCHEMA:
        said = "the schema is missing or older than this release: `outbox schema upgrade`"
        return _told(USAGE, "schema", said, "DATABASE_URL")
    if state in _FORBIDDEN:
        # These two name a table or a kind of statement; other messages can quote a row.
        words = database.diag.message_primary or type(database).__name__
        said = f"the database refuses this to the role of DATABASE_URL: {words}"
        return _told(DENIED, "forbidden", said, "DATABASE_URL")
    return _told(BUG, "bug", f"a bug in outbox-resolve: {type(error).__name__}")


def _is_of_servers(error: BaseException) -> bool:
    """Embedded servers and the sandbox say themselves why they do not come up."""
    from vendors.sandbox.client import SandboxRefused
    from workers.server_programs import ServersError

    return isinstance(error, ServersError | SandboxRefused)


def _usage(error: click.UsageError) -> Told:
    hint = ""
    if error.ctx is not None:
        hint = f"Try `{error.ctx.command_path} --help`."
    parameter = getattr(error, "param", None)
    told = _told(
        USAGE, "usage", error.format_message(), parameter.opts[0] if parameter is not None else None
    )
    return Told(told.exit_code, told.body, tuple(s for s in (error.format_message(), hint) if s))


def _told(
    exit_code: int,
    code: str,
    message: str,
    field_name: str | None = None,
    candidates: tuple[str, ...] = (),
) -> Told:
    body = {
        "code": code,
        "message": message,
        "field": field_name,
        "candidates": list(candidates),
    }
    return Told(exit_code, body, (message,))


def show(error: BaseException, *, as_json: bool) -> int:
    """Writes the error to stderr and returns the exit code."""
    if isinstance(error, CheckFound):
        return FOUND
    told = told_of(error)
    if as_json:
        click.echo(json_line({"error": told.body}), err=True)
    else:
        for number, line in enumerate(told.lines):
            say(f"outbox: {line}" if number == 0 else f"  {line}")
        if told.exit_code == BUG:
            print("".join(traceback.format_tb(error.__traceback__)), end="", file=sys.stderr)
    return told.exit_code
