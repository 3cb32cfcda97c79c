"""What must be right before a worker, beat or web process starts; every fault is shown at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import packages_distributions

from outbox import schema
from outbox.errors import SettingsError
from outbox.settings import Settings
from outbox.store import checks, switches, vitals
from outbox.store.connection import Store, Transaction, probe
from resolvers.directory import Directory
from resolvers.identifying import identify

DISTRIBUTION = "outbox-resolve"
PACKAGES = ("outbox", "vendors", "resolvers", "workers")


def checked(settings: Settings) -> Settings:
    """The settings, each account with its vendor's own id as far as the vendors say it within the
    time of one connect. Raises ``SettingsError`` with every reason not to start, ``Unreachable``
    where the database does not answer. Remembers what each account's name stands for."""
    problems = [*settings.start_problems(), *foreign_packages()]
    if not settings.database_url:
        problems.append(("DATABASE_URL", "is not set; `outbox up` starts everything"))
        raise SettingsError(problems)
    probe(settings)
    store = Store(settings, size=1)
    try:
        with store.transaction() as tx:
            problems += _of_database(tx, settings)
            if not problems:
                for (vendor, _), account in sorted(settings.accounts.items()):
                    switches.freeze_account(tx, vendor, account)
        if not problems:
            directory = Directory.of(settings, read_s=settings.policy.connect_s)
            for vendor, account, problem in identify(store, directory, settings.policy.connect_s):
                problems.append((f"account {vendor}/{account.name}", problem))
            settings = replace(settings, accounts=directory.accounts)
            directory.close()
    finally:
        store.close()
    if problems:
        raise SettingsError(problems)
    return settings


def foreign_packages() -> Iterator[tuple[str, str]]:
    """Another installed distribution that claims one of our generic names would be imported in
    place of ours, or half of each."""
    owners = packages_distributions()
    for name in PACKAGES:
        others = sorted({o for o in owners.get(name, []) if o.lower() != DISTRIBUTION})
        if others:
            yield (
                f"package {name}",
                f"is also claimed by {', '.join(others)}: install {DISTRIBUTION} into a virtual "
                "environment of its own and start it by its script",
            )


def _of_database(tx: Transaction, settings: Settings) -> Iterator[tuple[str, str]]:
    problem = schema.advice(vitals.revision(tx))
    if problem is not None:
        yield "DATABASE_URL", f"the schema {problem}"
        return
    if settings.live() and checks.clock_is_settable(tx):
        yield "DATABASE_URL", "a test's clock is installed, refused with a live credential"
    for (vendor, name), account in sorted(settings.accounts.items()):
        problem = switches.account_problem(tx, vendor, account)
        if problem is not None:
            yield f"account {vendor}/{name}", problem
