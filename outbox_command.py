"""The first step of the script ``outbox``: our own four packages, whatever PYTHONPATH says.

Their names are generic. An application's folder on PYTHONPATH with a ``workers/`` of its own would
be imported in their place; this file's name is no application's, and the four lie beside it.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import NoReturn

PACKAGES = ("outbox", "vendors", "resolvers", "workers")
_HERE = Path(__file__).resolve().parent
_USAGE = 2


def main() -> NoReturn:
    """Runs one command line and exits with its code; 2 where a package is not ours."""
    for name in PACKAGES:
        _load(name)
    try:
        from workers import cli
    except ImportError as error:
        package = str(error.name).partition(".")[0]
        if package not in PACKAGES:
            raise
        _give_up(package)
    cli.main()


def _load(name: str) -> None:
    spec = PathFinder.find_spec(name, [str(_HERE)])
    if spec is None or spec.loader is None:
        _give_up(name)
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def _give_up(name: str) -> NoReturn:
    """Another distribution was installed over it, for instance."""
    print(
        f"outbox: the package {name} in {_HERE} is not outbox-resolve's: install outbox-resolve "
        "into a virtual environment of its own, and start it by its script",
        file=sys.stderr,
    )
    sys.exit(_USAGE)
