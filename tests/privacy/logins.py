"""Logins of the database for the tests: each is made for one test and dropped after it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from psycopg.rows import dict_row

from outbox import Outbox
from outbox.store.connection import Store
from tests.statements import fetched
from tests.store.book import Book

_numbers = itertools.count()


@dataclass
class Login:
    """One login over the book's ledger, with the agent's own parts over it."""

    name: str
    url: str
    outbox: Outbox = field(repr=False)
    store: Store = field(repr=False)

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url, row_factory=dict_row)

    def sql(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        with self.connect() as connection:
            return fetched(connection.execute(statement.encode(), values or None))


class Logins:
    def __init__(self, book: Book) -> None:
        self.book = book
        self.made: list[Login] = []

    def make(self, *roles: str, tenant: str | None = "", name: str = "") -> Login:
        """A login that is a member of these roles, mapped to ``tenant`` (None: every one; empty:
        not mapped)."""
        name = name or f"login_{os.getpid()}_{next(_numbers)}"
        self.book.sql(f"CREATE ROLE {name} LOGIN IN ROLE {', '.join(roles)}")
        if tenant != "":
            self.book.sql(
                "INSERT INTO outbox.agent_tenants VALUES (%(login)s, %(tenant)s)",
                {"login": name, "tenant": tenant},
            )
        settings = replace(
            self.book.settings,
            database_url=self.book.settings.database_url.replace("//postgres@", f"//{name}@"),
            wait_s=0.0,
        )
        assert name in settings.database_url
        url = settings.database_url.replace("+psycopg", "")
        login = Login(name, url, Outbox(settings), Store(settings))
        self.made.append(login)
        return login


@contextmanager
def open_logins(book: Book) -> Iterator[Logins]:
    logins = Logins(book)
    try:
        yield logins
    finally:
        for login in logins.made:
            login.outbox.close()
            login.store.close()
            book.sql(f"DROP OWNED BY {login.name}")
            book.sql(f"DROP ROLE {login.name}")
