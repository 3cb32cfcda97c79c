"""What the distribution claims: its packages and their generic names."""

from __future__ import annotations

import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMES = ("outbox", "vendors", "resolvers", "workers")


def test_every_package_of_the_checkout_is_listed_for_the_wheel() -> None:
    written = {
        ".".join(folder.parent.relative_to(ROOT).parts)
        for name in NAMES
        for folder in (ROOT / name).rglob("*.py")
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = project["tool"]["setuptools"]["packages"]
    assert written == {name for name in listed if not name.startswith("outbox._migrations")}


def test_every_package_of_the_checkout_is_marked_as_typed() -> None:
    assert all((ROOT / name / "py.typed").is_file() for name in NAMES)


def test_no_other_installed_distribution_claims_one_of_our_names() -> None:
    owners = packages_distributions()
    assert [(name, *set(owners[name])) for name in NAMES] == [
        (name, "outbox-resolve") for name in NAMES
    ]
