"""Command lines of every command: the tree is walked, and each parameter given what is right, what
is odd, or nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import click

from tests.properties.picks import Picks

Path = tuple[str, ...]
ODD = [
    "", " ", "\x00", "a\x00b", "\ud800", "\udcff", "\u00e9", "e\u0301", "\u202eabc", "9" * 5000,
    "1e999", "-1", "0", "nan", "inf", "-inf", "\u0663\u0664", "1_000", "0x10", "%s", "%(id)s",
    "'; DROP TABLE x; --", "{}", "{0}", "\\", "/", "//", "a/b/c", "stripe/", "/default", "..", "\n",
    "a\nb", "\r", "\x1b[31m", "\x07", "\U0001f600", "A" * 300, "-", "=", "--", "-h", "--nothing",
    "9999-99-99", "0s", "99999999d", "0.0000001s", "1h30m1h", "9" * 18, "9" * 19, "-" * 20,
    "00000000", "ffffffff", "0000000000000000000000000000000000", "g" * 8, "a.b", ".a:b", "a:b:c",
    "tests:nothing", "\u2028", "\ufeff", "\u0130", "null", "true", "[]", '{"a":1}', "*", "~", "$x",
]  # fmt: skip
# They start processes that go on for long or until they are told to end: theirs is only what they
# refuse.
PROCESSES = frozenset({"up", "demo", "drill", "worker", "beat", "web"})


def leaves(command: click.Command, path: Path = ()) -> Iterator[tuple[Path, click.Command]]:
    """Every command that is no group, by its words."""
    if isinstance(command, click.Group):
        for name, inner in sorted(command.commands.items()):
            yield from leaves(inner, (*path, name))
    else:
        yield path, command


@dataclass(frozen=True)
class Known:
    """What is in the ledger, by the parameter that could name it, and texts that many take."""

    by_name: Mapping[str, Sequence[str]]
    texts: Sequence[str]

    def value(self, picks: Picks, parameter: click.Parameter) -> str:
        """A word for one parameter: more often right than not."""
        if picks.of([True, True, True, False]):
            if isinstance(parameter.type, click.Choice):
                return str(picks.of(list(parameter.type.choices)))
            named = self.by_name.get(parameter.name or "")
            return picks.of(list(named or self.texts))
        return picks.of([*ODD, *self.texts])


def command_line(
    picks: Picks, tree: Sequence[tuple[Path, click.Command]], known: Known
) -> list[str]:
    """The words behind ``outbox``."""
    path, command = picks.of(tree)
    chunks = [list(part) for part in _chunks(picks, command, known)]
    if path[0] in PROCESSES:
        chunks.append([picks.of(["stray", *ODD[8:20]]), "stray"])
    elif picks.of([False, False, False, True]):
        chunks.append([picks.of(ODD)])
    for at in range(len(chunks) - 1, 0, -1):
        other = picks.of(range(at + 1))
        chunks[at], chunks[other] = chunks[other], chunks[at]
    words = [word for chunk in chunks for word in chunk]
    if "consume" in path and not words.count("--once"):
        words.insert(0, "--once")
    if "--json" in words and "--watch" in words:
        words = [word for word in words if word != "--watch"]  # it would tell changes for ever
    elif "--watch" not in words and picks.flag():
        return ["--json", *path, *words]
    return [*path, *words]


def _chunks(picks: Picks, command: click.Command, known: Known) -> Iterator[list[str]]:
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            count = picks.of([1, 1, 1, 0, 2]) if parameter.nargs == 1 else picks.of(range(4))
            for _ in range(count):
                yield [known.value(picks, parameter)]
            continue
        assert isinstance(parameter, click.Option)
        often = [True] * 4 + [False] if parameter.required else [True, False]
        for _ in range(picks.of([1, 1, 1, 2]) if picks.of(often) else 0):
            name = picks.of(parameter.opts)
            if parameter.is_flag:
                yield [name]
            elif picks.of([True, True, False]):
                yield [name, known.value(picks, parameter)]
            else:
                yield [f"{name}={known.value(picks, parameter)}"]
