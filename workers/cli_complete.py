"""What a shell may offer for an argument: asked of the ledger in about a second, or nothing.

A completion runs in the middle of what somebody types. So it never writes to the terminal, never
waits for a database that is away, and never fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

_LIMIT_S = 1.0
_MOST = 50

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem[str]]]


def offer(what: str) -> Completer:
    """Completes with what the ledger has of it: intent, escalation, vendor, account, tenant or
    tool; ids come with a word about each where the shell shows one."""

    def complete(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem[str]]:
        try:
            return [
                CompletionItem(value, help=about or None)
                for value, about in _found(what, typed)
                # The shells' scripts take a line a value, and nobody reads what is not shown.
                if value and value.isprintable()
            ]
        except Exception:
            return []

    return complete


def _found(what: str, typed: str) -> list[tuple[str, str]]:
    from dataclasses import replace

    from outbox.contracts import CONTRACTS
    from outbox.errors import SettingsError, Unreachable
    from outbox.settings import Settings
    from outbox.store import listing
    from outbox.store.connection import Store, probe

    logging.getLogger("psycopg").setLevel(logging.CRITICAL)
    settings = replace(Settings.from_env(), statement_timeout_s=_LIMIT_S)
    known = {"vendor": list(CONTRACTS), "account": ["/".join(p) for p in settings.accounts]}
    found = {name: "" for name in sorted(known.get(what, ())) if name.startswith(typed)}
    try:
        probe(settings, limit_s=1)
        store = Store(settings, size=1)
        try:
            with store.transaction(patience_s=_LIMIT_S) as tx:
                found |= dict(listing.suggestions(tx, what, typed, _MOST))
        finally:
            store.close()
    except (SettingsError, Unreachable):
        pass  # what this release and the settings know by themselves is still offered
    return list(found.items())
