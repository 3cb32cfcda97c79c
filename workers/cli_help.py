"""``outbox help``: topics that hold for every command, and any command's own help."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from workers.cli_output import show_json
from workers.cli_run import Verb, current
from workers.cli_topics import TOPICS


def _offered(context: click.Context, _: click.Parameter, typed: str) -> list[CompletionItem[str]]:
    root = context.find_root().command
    names = [*TOPICS, *(root.commands if isinstance(root, click.Group) else ())]
    return [CompletionItem(name) for name in names if name.startswith(typed)]


@click.command(
    "help",
    cls=Verb,
    examples=(
        "outbox help",
        "outbox help exit-codes",
        "outbox help escalation landed",
    ),
)
@click.argument("topic", metavar="TOPIC", nargs=-1, shell_complete=_offered)
@click.pass_context
def help_(context: click.Context, topic: tuple[str, ...]) -> None:
    """Explain a topic or a command. Without TOPIC: list the topics."""
    if not topic:
        _list()
    elif len(topic) == 1 and topic[0] in TOPICS:
        _tell(topic[0], TOPICS[topic[0]][1])
    else:
        _tell(" ".join(topic), _command_help(context, topic))


def _list() -> None:
    if current().json:
        show_json({"topics": {name: about for name, (about, _) in TOPICS.items()}})
        return
    width = max(len(name) for name in TOPICS)
    click.echo("Topics of `outbox help TOPIC`; a command is one too:\n")
    for name, (about, _) in TOPICS.items():
        click.echo(f"  {name:<{width}}  {about}")


def _tell(name: str, text: str) -> None:
    if current().json:
        show_json({"topic": name, "text": text})
    else:
        click.echo(text)


def _command_help(context: click.Context, path: tuple[str, ...]) -> str:
    root = context.find_root()
    inner, command = root, root.command
    for name in path:
        found = command.commands.get(name) if isinstance(command, click.Group) else None
        if found is None:
            raise click.UsageError(
                f"there is no topic and no command {' '.join(path)!r}; "
                f"topics are {', '.join(TOPICS)}"
            )
        inner = click.Context(found, info_name=name, parent=inner)
        command = found
    return command.get_help(inner)


COMMANDS = (help_,)
