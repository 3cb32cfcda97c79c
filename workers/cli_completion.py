"""``outbox completion``: what a shell sources to complete commands, options, ids and names."""

from __future__ import annotations

import click
from click.shell_completion import (
    BashComplete,
    FishComplete,
    add_completion_class,
    get_completion_class,
)

from workers.cli_output import show_json
from workers.cli_run import Verb, current

_NAME = "outbox"
_VARIABLE = "_OUTBOX_COMPLETE"
_SHELLS = ("bash", "zsh", "fish")

# Click's script hands each value to bash as it is: bash would expand a tenant called `*`, and run
# one called `$(...)` with the line. Inside a quotation that somebody has begun, a value that needs
# quoting of its own is not offered.
_BASH = r"""
%(complete_func)s() {
    local IFS=$'\n'
    local line kind value quoted plain='^[A-Za-z0-9_./:@+=,-]+$'
    COMPREPLY=()
    while IFS= read -r line; do
        kind=${line%%%%,*} value=${line#*,}
        case $kind in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain)
                printf -v quoted '%%q' "$value"
                case ${COMP_WORDS[COMP_CWORD]} in
                    [\"\']*) [[ $value =~ $plain ]] && COMPREPLY+=("$value") ;;
                    *) COMPREPLY+=("$quoted") ;;
                esac
                ;;
        esac
    done < <(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD \
        %(complete_var)s=bash_complete "$1")
    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
""".lstrip()


@add_completion_class
class Bash(BashComplete):
    """Bash, with each value quoted as it is inserted."""

    name = "bash"
    source_template = _BASH


@add_completion_class
class Fish(FishComplete):
    """Fish, which quotes by itself; a value may hold a comma."""

    name = "fish"
    source_template = FishComplete.source_template.replace('split ","', 'split -m 1 ","')


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
