"""Whose credentials the accounts' are. A key that one vendor account knows is new to another, so
a credential that was exchanged would make a second effect: each row is frozen to the vendor
account that its first claim was for, and that must be known before it.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from outbox.contract import Account
from outbox.outcomes import Unreadable
from outbox.store import switches
from outbox.store.connection import Store
from resolvers.directory import Directory

# So many credentials are asked about at once.
_THREADS = 16
_NOT_ASKED = Unreadable("its vendor has not answered yet")


def identify(
    store: Store, directory: Directory, limit_s: float
) -> Iterator[tuple[str, Account, str]]:
    """Asks the vendor of every account of which nobody has said whose it is, all side by side and
    for ``limit_s`` at the most, and remembers the answers. Yields (vendor, account, problem) for a
    name that has unsettled rows of another.

    While a vendor does not answer, the account is whose it was the last time, which the adapter
    checks before its first call; one that was never known is left for the next time. Refused
    credentials pause their account. Raises ``Unreachable``.
    """
    unknown = [
        (vendor, account)
        for (vendor, _), account in sorted(directory.accounts.items())
        if not account.vendor_account and directory.vendor(vendor) is not None
    ]
    for (vendor, account), said in zip(unknown, _asked(directory, unknown, limit_s), strict=True):
        with store.transaction() as tx:
            if isinstance(said, Unreadable):
                if said.pause:
                    why = f"the credential may not say whose account it is: {said.reason}"
                    switches.pause(tx, vendor, account.name, kind="pause", reason=why, by="worker")
                owner = switches.remembered_owner(tx, vendor, account)
            else:
                owner = said
            known = replace(account, vendor_account=owner)
            problem = switches.account_problem(tx, vendor, known)
            if owner and problem is None:
                switches.freeze_account(tx, vendor, known)
        if problem is not None:
            yield vendor, known, problem
        elif owner:
            directory.learn(vendor, known)


def _asked(
    directory: Directory, accounts: Sequence[tuple[str, Account]], limit_s: float
) -> list[str | Unreadable]:
    """Each vendor's word. The threads of those that hang are left to their own time-outs."""
    answers: list[str | Unreadable] = [_NOT_ASKED] * len(accounts)
    left: queue.SimpleQueue[int] = queue.SimpleQueue()
    done = threading.Semaphore(0)
    for number in range(len(accounts)):
        left.put(number)

    def ask() -> None:
        while True:
            try:
                number = left.get_nowait()
            except queue.Empty:
                return
            vendor, account = accounts[number]
            adapter = directory.vendor(vendor)
            assert adapter is not None
            try:
                answers[number] = adapter.whoami(account)
            except Exception as error:
                answers[number] = Unreadable(f"the adapter failed: {type(error).__name__}")
            finally:
                done.release()

    give_up = time.monotonic() + limit_s
    for number in range(min(_THREADS, len(accounts))):
        threading.Thread(target=ask, name=f"outbox-whose-{number}", daemon=True).start()
    for _ in accounts:
        if not done.acquire(timeout=max(give_up - time.monotonic(), 0.0)):
            break
    while not left.empty():  # nobody waits for these any more
        with contextlib.suppress(queue.Empty):
            left.get_nowait()
    return list(answers)
