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
    "TOPIC": "A topic of `outbox help`, or a command: `outbox help escalation show`.",
    "SHELL": "bash, zsh or fish.",
}
_OF_THE_LEDGER = frozenset({"INTENT", "ESCALATION", "ACCOUNT", "WEBHOOK"})
# They read nothing but this release.
_LOCAL = frozenset({"sql", "help", "completion", "demo"})


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
    """A command. Every one has help, examples and its exit codes in its epilog; and ``--json``,
    unless it tells nothing on stdout. ``finds`` is what exit code 3 means here, ``refuses`` what 4
    does where no person's ``--reason`` is asked for."""

    def __init__(
        self,
        *args: Any,
        examples: tuple[str, ...] = (),
        tells: bool = True,
        finds: str = "",
        refuses: str = "",
        **kwargs: Any,
    ) -> None:
        self.examples = examples
        self.refuses = refuses
        self.finds = finds
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

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Examples, each on a line that can be copied, and what the exit code says."""
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), said) for code, said in self.exit_codes(ctx)])

    def exit_codes(self, ctx: click.Context) -> list[tuple[int, str]]:
        """The codes that this command may end with, and what each says; `outbox help exit-codes`
        has the ones that any command may."""
        options = {p.opts[0] for p in self.params}
        named = [_named(p, ctx) for p in self.params if isinstance(p, click.Argument)]
        codes = {0: "done", 2: "usage, or a wrong setting"}
        if self.finds:
            codes[3] = self.finds
        if "--reason" in options or self.refuses:
            codes[4] = self.refuses or "refused by policy; nothing was changed"
        if any(name in _OF_THE_LEDGER for name in named):
            codes[5] = f"there is no such {named[0].lower()}"
        if "--json" in options and not self.is_local:
            codes[6] = "the database or the vendor is unreachable"
        if "--yes" in options:
            codes[7] = "declined at the prompt; nothing was changed"
        return sorted(codes.items())

    @property
    def is_local(self) -> bool:
        """Whether it asks no backend."""
        return self.name in _LOCAL


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
        click.option("--reason", required=True, help="Why, in one line, for the audit log."),
    ):
        function = option(function)
    return function


def confirmed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The option of every verb that can move money: it asks first, on a terminal."""
    return click.option(
        "--yes", is_flag=True, help="Do not ask. Required where stdin is no terminal."
    )(function)


def page_of(place: click.ParamType[Any]) -> Decorator:
    """The options of every list that may be long; ``place`` is what its ``next`` is."""

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in (
            click.option(
                "--after", type=place, default=None, help="Go on from here: the last page's `next`."
            ),
            click.option(
                "--limit",
                type=click.IntRange(1, 10_000),
                default=50,
                help="At most so many rows.",
            ),
        ):
            function = option(function)
        return function

    return decorated


page = page_of(NEXT)
