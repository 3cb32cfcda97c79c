"""Whose credentials the accounts' are. A key that one vendor account knows is new to another, so
a credential that was exchanged would make a second effect: each row is frozen to the vendor
account that its first claim was for, and that must be known before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from outbox.contract import Account
from outbox.outcomes import Unreadable
from outbox.store import switches
from outbox.store.connection import Store
from resolvers.directory import Directory


def identify(store: Store, directory: Directory) -> Iterator[tuple[str, Account, str]]:
    """Asks the vendor of every account of which nobody has said whose it is, and remembers the
    answer. Yields (vendor, account, problem) for a name that has unsettled rows of another.

    While a vendor does not answer, the account is whose it was the last time, which the adapter
    checks before its first call; one that was never known is left for the next time. Refused
    credentials pause their account. Raises ``Unreachable``.
    """
    for (vendor, name), account in sorted(directory.accounts.items()):
        adapter = directory.vendor(vendor)
        if account.vendor_account or adapter is None:
            continue
        seen = adapter.whoami(account)
        with store.transaction() as tx:
            if isinstance(seen, Unreadable):
                if seen.pause:
                    why = f"the credential may not say whose account it is: {seen.reason}"
                    switches.pause(tx, vendor, name, kind="pause", reason=why, by="worker")
                seen = switches.remembered_owner(tx, vendor, account)
            known = replace(account, vendor_account=seen)
            problem = switches.account_problem(tx, vendor, known)
            if seen and problem is None:
                switches.freeze_account(tx, vendor, known)
        if problem is not None:
            yield vendor, known, problem
        elif seen:
            directory.learn(vendor, known)
