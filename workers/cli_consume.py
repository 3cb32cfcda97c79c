"""``outbox consume``: the loop for applications that have none of their own."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import click

from workers.cli_errors import CheckFound
from workers.cli_output import say, show_item
from workers.cli_run import Verb, current

_IDLE_S = 1.0
_AWAY_MAX_S = 60.0


@click.command(
    "consume",
    cls=Verb,
    finds="with --once: some of it failed",
    examples=(
        "outbox consume shop.billing:apply --consumer billing",
        "outbox consume shop.billing:apply --consumer billing --once",
    ),
)
@click.argument("handler", metavar="MODULE:FUNCTION")
@click.option("--consumer", required=True, help="Who consumes: each has every result once.")
@click.option("--once", is_flag=True, help="Consume what is there and exit; 3 if any of it failed.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=100, help="At most so many a transaction."
)
def consume(handler: str, *, consumer: str, once: bool, limit: int) -> None:
    """Call MODULE:FUNCTION(session, settlement) for each result, in one transaction with it.

    The function writes through the session and must not commit. What it raises undoes its own
    result only, which comes again: after a second, then later each time, at last every ten
    minutes. --once tries what failed before too.
    """
    from outbox.consuming import Consumer

    run = current()
    loop = Consumer(run.settings, consumer, _function(handler), limit=limit)
    try:
        if once:
            done, failed = _all(loop)
            show_item(run, {"consumed": done, "failed": failed})
            if failed:
                raise CheckFound
        else:
            _forever(loop)
    finally:
        loop.close()


def _all(loop: Any) -> tuple[int, int]:
    seen = loop.once(hurry=True)
    done, failed = seen.done, len(seen.failed)
    _complain(seen.failed)
    while seen.full:
        seen = loop.once()
        done, failed = done + seen.done, failed + len(seen.failed)
        _complain(seen.failed)
    return done, failed


def _forever(loop: Any) -> None:
    from outbox.errors import Unreachable

    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    wait_s = 0.0
    say("consume: ready")
    while not ended.wait(wait_s):
        try:
            seen = loop.once()
        except Unreachable as error:
            say(f"consume: {error}")
            wait_s = min(max(wait_s, _IDLE_S) * 2, _AWAY_MAX_S)
            continue
        _complain(seen.failed)
        wait_s = 0.0 if seen.done or seen.full else _IDLE_S


def _complain(failed: tuple[Any, ...]) -> None:
    for one in failed:
        say(f"consume: settlement {one.settlement_id} of intent {one.intent_id}: {one.error}")


def _function(text: str) -> Callable[..., Any]:
    from outbox.consuming import is_plain

    module_name, colon, name = text.partition(":")
    if not (module_name and colon and name):
        raise _refused("must be MODULE:FUNCTION")
    # At the end: the application's folder must not hide one of our own packages.
    sys.path.append(os.getcwd())
    try:
        found = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise _refused(f"{module_name} cannot be imported: {error}") from error
        raise _refused(f"there is no module {module_name}") from None
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {error}"
        raise _refused(f"{module_name} cannot be imported: {what}") from error
    function = getattr(found, name, None)
    if not callable(function):
        raise _refused(f"{module_name} has no function {name}")
    if not is_plain(function):
        raise _refused(f"{name} is async or a generator: a call would run nothing of it")
    return function  # type: ignore[no-any-return]


def _refused(problem: str) -> click.BadParameter:
    return click.BadParameter(problem, param_hint="MODULE:FUNCTION")


COMMANDS = (consume,)
