"""``--watch``: the same again and again, on the whole terminal; or, as JSON, one object per change.

Reading goes on while the database is away, and says so. ``q`` and Ctrl-C end it with exit code 0.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import click

from workers.cli_errors import CheckFound
from workers.cli_output import json_line, plain, say
from workers.cli_run import Run
from workers.cli_span import SPAN

T = TypeVar("T")

_LEAST_S = 0.2
# What grows by itself is no change: ages, and seconds in a sentence.
_AGES = frozenset({"age", "window_left", "ttl_left", "open"})
_SECONDS = re.compile(r"\b\d+ (s|dead)\b")


def watched(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of what can be watched."""
    for option in (
        click.option(
            "--every",
            "every_s",
            type=SPAN,
            default="2s",
            help="With --watch: the time between two looks, at least 0.2s.",
        ),
        click.option(
            "--watch",
            is_flag=True,
            help="Show it again and again until q or Ctrl-C; with --json one object per change.",
        ),
    ):
        function = option(function)
    return function


def show_or_watch(
    run: Run,
    read: Callable[[], T],
    show: Callable[[T], None],
    items: Callable[[T], Sequence[Mapping[str, Any]] | Mapping[str, Any]],
    *,
    watch: bool,
    every_s: float,
) -> None:
    """Shows once what ``read`` returns; or watches it. ``items`` is its data: one object, or a
    list of objects with ids, each of which is told by itself when it comes, changes or leaves."""
    if every_s < _LEAST_S:
        raise click.BadParameter("must be at least 0.2s", param_hint="--every")
    if not watch:
        show(read())
        return
    if run.json:
        _lines(read, items, every_s)
    elif not sys.stdout.isatty():
        raise click.UsageError("--watch needs a terminal; with --json it tells each change a line")
    else:
        with _restored():
            _screen(read, show, every_s)


def _lines(
    read: Callable[[], T],
    items: Callable[[T], Sequence[Mapping[str, Any]] | Mapping[str, Any]],
    every_s: float,
) -> None:
    before: dict[Any, Any] = {}
    with contextlib.suppress(KeyboardInterrupt):
        found: T | None = read()
        away = ""
        while True:
            if found is not None:
                now = _by_id(items(found))
                for line in _changes(before, now):
                    click.echo(json_line(line))
                before = now
            sys.stdout.flush()
            select.select([], [], [], every_s)
            found, away = _again(read, away, say_it=True)


def _by_id(found: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> dict[Any, Any]:
    if isinstance(found, Mapping):
        return {None: plain(found)}
    return {str(item["id"]): plain(item) for item in found}


def _changes(before: Mapping[Any, Any], now: Mapping[Any, Any]) -> Iterator[dict[str, Any]]:
    for name, item in now.items():
        if name is None:
            if name not in before or _still(before[name]) != _still(item):
                yield item
        elif name not in before:
            yield {"change": "added", "item": item}
        elif _still(before[name]) != _still(item):
            yield {"change": "changed", "item": item}
    for name, item in before.items():
        if name not in now:
            yield {"change": "removed", "item": item}


def _still(value: Any) -> Any:
    """A value without what grows by itself."""
    if isinstance(value, Mapping):
        return {
            name: _still(part)
            for name, part in value.items()
            if not name.endswith("_s") and name not in _AGES and name != "gauges"
        }
    if isinstance(value, list):
        return [_still(part) for part in value]
    return _SECONDS.sub("", value) if isinstance(value, str) else value


def _again(read: Callable[[], T], away: str, *, say_it: bool) -> tuple[T | None, str]:
    """One more reading; None and why while the database is away."""
    from outbox.errors import Unreachable

    try:
        return read(), ""
    except Unreachable as error:
        if say_it and not away:
            say(f"outbox: {error}; trying again")
        return None, str(error)


def _screen(read: Callable[[], T], show: Callable[[T], None], every_s: float) -> None:
    found: T | None = read()
    away = ""
    text = ""
    with _frames() as paint:
        while True:
            if found is not None:
                text = _painted(show, found)
            head = f"every {every_s:g} s; q or Ctrl-C ends" + (
                f"; {away}, trying again" * bool(away)
            )
            paint(f"{head}\n\n{text}")
            if _is_told_to_end(every_s):
                return
            found, away = _again(read, away, say_it=False)


@contextlib.contextmanager
def _frames() -> Iterator[Callable[[str], None]]:
    """What shows a frame: in place of the one before; below it, where it is another one, on a
    terminal that can only be written to."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_dumb_terminal:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            yield lambda frame: live.update(Text.from_ansi(_cropped(frame)), refresh=True)
        return
    before = [""]

    def below(frame: str) -> None:
        if frame != before[0]:
            before[0] = frame
            click.echo(f"{click.unstyle(frame)}\n")

    yield below


class _Page(io.StringIO):
    """Takes what is shown as a terminal would."""

    def isatty(self) -> bool:
        """It ends on one."""
        return True


def _painted(show: Callable[[T], None], found: T) -> str:
    page = _Page()
    told = contextlib.redirect_stdout(page), contextlib.redirect_stderr(page)
    with told[0], told[1], contextlib.suppress(CheckFound):
        show(found)
    return page.getvalue()


def _cropped(text: str) -> str:
    room = max(shutil.get_terminal_size().lines - 1, 3)
    lines = text.splitlines()
    if len(lines) <= room:
        return text
    return "\n".join([*lines[: room - 1], f"({len(lines) - room + 1} more lines)"])


@contextlib.contextmanager
def _restored() -> Iterator[None]:
    """Keys one by one and not shown; afterwards the terminal as it was, however this ends."""

    def end(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        if not sys.stdin.isatty():
            with contextlib.suppress(KeyboardInterrupt):
                yield
            return
        mode = termios.tcgetattr(sys.stdin)
        try:
            # What was typed before is a key too: it is not thrown away.
            tty.setcbreak(sys.stdin, termios.TCSADRAIN)
            with contextlib.suppress(KeyboardInterrupt):
                yield
        finally:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, mode)
    finally:
        signal.signal(signal.SIGTERM, before)


def _is_told_to_end(every_s: float) -> bool:
    """Waits for the next look, or until somebody types q."""
    keys = [sys.stdin] if sys.stdin.isatty() else []
    ready, _, _ = select.select(keys, [], [], every_s)
    typed = os.read(sys.stdin.fileno(), 64) if ready else b" "
    return typed == b"" or b"q" in typed.lower()
