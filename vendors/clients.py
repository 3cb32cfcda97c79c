"""One client for each account of a process, and whose credential it holds."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from outbox.contract import Account
from vendors.reads import Unread


class Closes(Protocol):
    """What holds pooled connections."""

    def close(self) -> None: ...


T = TypeVar("T", bound=Closes)


@dataclass(slots=True)
class Client(Generic[T]):
    """One account's client. ``identity`` is the vendor's id of the account once it was asked for,
    by one thread for all (``asking``)."""

    credential: str = field(repr=False)
    base_url: str
    transport: T = field(repr=False)
    identity: str = ""
    may_not_ask: bool = False
    asking: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def check_owner(self, account: Account, ask: Callable[[], str]) -> None:
        """Raises ``Unread`` where the credential is of another account: a key that one account
        knows is new to the other, and the other's lists are complete and prove nothing."""
        if not account.vendor_account or self.may_not_ask:
            return
        try:
            identity = self.identified(ask)
        except Unread as unread:
            if unread.reason != "http_403":
                raise
            # A credential without the right to read its account: nothing speaks against it.
            self.may_not_ask = True
            return
        if identity != account.vendor_account:
            raise Unread("credential_of_other_account", pause=True)

    def identified(self, ask: Callable[[], str]) -> str:
        """Whose the credential is; ``ask`` raises where the vendor does not say."""
        if self.identity:
            return self.identity
        with self.asking:
            if not self.identity:
                self.identity = ask()
        return self.identity


class Clients(Generic[T]):
    """Safe to use from many threads; after a fork each process makes its own clients (a pooled
    socket shared by two processes mixes up their answers)."""

    def __init__(self, transport_of: Callable[[Account], T]) -> None:
        self._transport_of = transport_of
        self._lock = threading.Lock()
        self._clients: dict[str, Client[T]] = {}
        self._pid = os.getpid()

    def of(self, account: Account) -> Client[T]:
        """The account's client, a new one where its credential or address has changed."""
        if os.getpid() != self._pid:
            # A fork copied the pooled sockets, and perhaps a lock that nobody here will release.
            self._pid, self._lock, self._clients = os.getpid(), threading.Lock(), {}
        with self._lock:
            known = self._clients.get(account.name)
            if known is None or (known.credential, known.base_url) != (
                account.credential,
                account.base_url,
            ):
                transport = self._transport_of(account)
                known = Client(account.credential, account.base_url, transport)
                self._clients[account.name] = known
            return known

    def close(self) -> None:
        """Drops pooled connections; clients are made anew when needed."""
        with self._lock:
            clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            client.transport.close()
