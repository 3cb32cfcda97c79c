"""``outbox completion``: what a shell sources to complete commands, options, ids and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from workers.cli_output import show_json
from workers.cli_run import Verb, current

_NAME = "outbox"
_VARIABLE = "_OUTBOX_COMPLETE"
_SHELLS = ("bash", "zsh", "fish")


@click.command(
    "completion",
    cls=Verb,
    examples=(
        "source <(outbox completion bash)      # in ~/.bashrc, bash 4.4 or newer",
        "source <(outbox completion zsh)       # in ~/.zshrc, after compinit",
        "outbox completion fish > ~/.config/fish/completions/outbox.fish",
    ),
)
@click.argument("shell", metavar="SHELL", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print the script that makes a shell complete the commands of `outbox`.

    Ids of open questions and intents, vendors, accounts, tenants and tools are completed from the
    database of DATABASE_URL, in about a second; while it is away they are not, and nothing is
    said.
    """
    made = get_completion_class(shell)
    assert made is not None
    script = made(click.Group(_NAME), {}, _NAME, _VARIABLE).source()
    if current().json:
        show_json({"shell": shell, "script": script})
    else:
        click.echo(script, nl=False)


COMMANDS = (completion,)
