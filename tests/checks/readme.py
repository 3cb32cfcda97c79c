"""Runs every ```console block of README.md as written: python tests/checks/readme.py [CHECKOUT]

All blocks share one shell, in order: a `cd` or a variable holds from block to block. A line that
starts with `$ ` is a command (a trailing backslash continues it on lines that start with `> `);
every command must succeed. The other lines are output, compared only in blocks whose fence says
```console checked: each must appear in that block's output, in order, where `...` stands for
anything. Commands still running in the background at the end are stopped.

CHECKOUT is a fresh copy of the working tree; HOME is an empty folder.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

_FENCE = re.compile(r"^```console(?P<checked> checked)?\s*\n(?P<body>.*?)^```\s*$", re.M | re.S)
_LIMIT_S = 1800
_STOP_JOBS = "trap 'status=$?; kill $(jobs -p) 2>/dev/null || true; wait; exit $status' EXIT"
_OUTER_MAKE = {"MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS"}


@dataclass
class Block:
    """One fenced block: its commands, and what they should say where that is checked."""

    commands: list[str] = field(default_factory=list)
    output: list[str] = field(default_factory=list)
    checked: bool = False


def blocks(text: str) -> list[Block]:
    found = []
    for match in _FENCE.finditer(text):
        block = Block(checked=match["checked"] is not None)
        for line in match["body"].splitlines():
            if line.startswith("$ "):
                block.commands.append(line[2:])
            elif line.startswith("> ") and block.commands and block.commands[-1].endswith("\\"):
                block.commands[-1] += "\n" + line[2:]
            elif line.strip():
                block.output.append(line)
        found.append(block)
    return found


def missing(block: Block, said: str) -> str | None:
    """The first expected line that the output lacks, counted on from the line before it."""
    rest = said.splitlines()
    for expected in block.output:
        pattern = re.compile(".*".join(map(re.escape, expected.strip().split("..."))))
        while rest:
            if pattern.fullmatch(rest.pop(0).strip()):
                break
        else:
            return expected
    return None


def script_of(found: list[Block], marker: str) -> str:
    """One script, so that a `cd` lasts; a marker line announces each command."""
    lines = ["set -eo pipefail", _STOP_JOBS]
    for number, block in enumerate(found):
        for command in block.commands:
            lines += [f"echo {marker} {number}", command]
    return "\n".join(lines) + "\n"


def run(found: list[Block], checkout: Path, scratch: Path) -> int:
    """Runs all blocks and repeats what they say; 0 when all succeeded and said what they should."""
    marker = f"::readme-{os.getpid()}::"
    script = scratch / "readme.sh"
    script.write_text(script_of(found, marker))
    home = scratch / "home"
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if name not in _OUTER_MAKE}
    process = subprocess.Popen(
        ["bash", script],
        cwd=checkout,
        env=environment | {"HOME": str(home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    deadline = threading.Timer(_LIMIT_S, os.killpg, (process.pid, signal.SIGKILL))
    deadline.start()
    assert process.stdout is not None
    said: dict[int, list[str]] = {}
    commands = iter([command for block in found for command in block.commands])
    number, latest = 0, "(before the first command)"
    for line in process.stdout:
        # Output that lacks its last newline has the marker behind it.
        text, announced, index = line.partition(marker)
        said.setdefault(number, []).append(text)
        print(text, end="", flush=True)
        if announced:
            number, latest = int(index), next(commands)
            print(f"$ {latest}", flush=True)
    status = process.wait()
    deadline.cancel()
    if status != 0:
        print(f"README: exit status {status} from: {latest}", file=sys.stderr)
        return 1
    for number, block in enumerate(found):
        lacking = missing(block, "".join(said.get(number, []))) if block.checked else None
        if lacking is not None:
            print(f"README: {block.commands[-1]!r} did not say: {lacking}", file=sys.stderr)
            return 1
    return 0


def main() -> int:
    checkout = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    found = blocks((checkout / "README.md").read_text())
    if not any(block.commands for block in found):
        print("README: no console block with a command", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="outbox-readme-") as scratch:
        return run(found, checkout, Path(scratch))


if __name__ == "__main__":
    sys.exit(main())
