"""What one invocation of the command line is given, and the two kinds of its commands.

Nothing of the product is imported before a command runs: ``outbox --help`` answers at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import click

from workers.cli_span import NEXT

if TYPE_CHECKING:
    from outbox.settings import Settings
    from outbox.store.connection import Store
    from resolvers.directory import Directory

ARGUMENTS = {
    "INTENT": "An intent's id, or its first 6 digits or more.",
    "ESCALATION": "An escalation's id or its intent's, or the first 6 digits or more.",
    "ACCOUNT": "VENDOR/NAME, as in stripe/default.",
    "WEBHOOK": "The event's number on `outbox webhook list`.",
    "MODULE:FUNCTION": "What to call for each result, with (session, settlement).",
}


class Run:
    """Settings, store and directory of one invocation, each built when first asked for."""

    def __init__(self) -> None:
        self.json = False

    @cached_property
    def settings(self) -> Settings:
        """The environment's settings; raises ``SettingsError`` with every fault at once."""
        from outbox.settings import Settings

        return Settings.from_env()

    @cached_property
    def store(self) -> Store:
        """The ledger. Raises ``Unreachable`` at once where nothing answers."""
        from outbox.store.connection import Store, probe

        # The pool's own warnings would stand beside the one error that is told.
        logging.getLogger("psycopg").setLevel(logging.CRITICAL)
        probe(self.settings)
        return Store(self.settings, size=2)

    @cached_property
    def directory(self) -> Directory:
        """Adapters and accounts."""
        from resolvers.directory import Directory

        return Directory.of(self.settings)

    @property
    def actor(self) -> str:
        """Who types: ``OUTBOX_ACTOR``, else the system's user."""
        return self.settings.actor

    def close(self) -> None:
        """Drops connections."""
        for name in ("directory", "store"):
            if name in self.__dict__:
                self.__dict__[name].close()


def current() -> Run:
    """The run of the command that is being executed."""
    return cast(Run, click.get_current_context().find_object(Run))


def _set_json(context: click.Context, _: click.Parameter, given: bool) -> None:
    if given:
        run = context.find_object(Run)
        assert run is not None
        run.json = True


class Verb(click.Command):
    """A command. Every one has help, and examples in its epilog; and ``--json``, unless it tells
    nothing on stdout."""

    def __init__(
        self, *args: Any, examples: tuple[str, ...] = (), tells: bool = True, **kwargs: Any
    ) -> None:
        self.examples = examples
        super().__init__(*args, **kwargs)
        if not tells:
            return
        self.params.append(
            click.Option(
                ["--json"],
                is_flag=True,
                expose_value=False,
                callback=_set_json,
                help="One JSON object on stdout instead of text.",
            )
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The arguments by name, then the options."""
        given = [p for p in self.params if isinstance(p, click.Argument)]
        if given:
            with formatter.section("Arguments"):
                formatter.write_dl([(name := _named(p, ctx), ARGUMENTS[name]) for p in given])
        super().format_options(ctx, formatter)

    def format_epilog(
        self,
        ctx: click.Context,  # noqa: ARG002 - the signature is click's
        formatter: click.HelpFormatter,
    ) -> None:
        """Examples, each on a line that can be copied."""
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


def _named(argument: click.Parameter, context: click.Context) -> str:
    return argument.make_metavar(context).strip("[]")


class Noun(click.Group):
    """A group of verbs about one thing. Alone it prints its help and is a usage error."""

    command_class = Verb


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def changes(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every verb that changes something: why, and whether only to try."""
    for option in (
        click.option("--dry-run", is_flag=True, help="Check everything and change nothing."),
        click.option("--reason", required=True, help="Why, for the audit log."),
    ):
        function = option(function)
    return function


def confirmed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The option of every verb that can move money: it asks first, on a terminal."""
    return click.option(
        "--yes", is_flag=True, help="Do not ask. Required where stdin is no terminal."
    )(function)


def page(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every list that may be long."""
    for option in (
        click.option(
            "--after", type=NEXT, default=None, help="Go on from here: the last page's `next`."
        ),
        click.option(
            "--limit",
            type=click.IntRange(1, 10_000),
            default=50,
            show_default=True,
            help="At most so many rows.",
        ),
    ):
        function = option(function)
    return function
