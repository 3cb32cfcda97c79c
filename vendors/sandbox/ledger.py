"""The vendor's durable memory: one SQLite file, one writer, one commit for all of a loop turn."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Json = dict[str, Any]

TABLES = """
create table if not exists meta (name text primary key, value);
create table if not exists accounts (name text primary key, settings text not null);
create table if not exists objects (
  seq integer primary key, id text not null unique, account text not null, kind text not null,
  created integer not null, at real not null, type text not null, body text not null);
create index if not exists objects_listed on objects (account, kind, created, seq);
create table if not exists keys (
  account text not null, key text not null, endpoint text not null, digest text not null,
  first_seen real not null, request_id text not null,
  status integer, headers text, body blob, primary key (account, key)) without rowid;
create table if not exists requests (
  seq integer primary key, id text not null unique, account text not null, method text not null,
  path text not null, operation text not null, key text, body_sha256 text, api_version text,
  at real not null, arrived_at real not null, attempt integer not null, origin text not null,
  fault text, status integer, replayed integer not null default 0, should_retry text,
  answered_at real);
create index if not exists requests_by_key on requests (account, key);
create table if not exists effects (
  seq integer primary key, account text not null, kind text not null, object_id text not null,
  amount integer, currency text, key text, outbox_id text, outbox_key text, outcome text not null,
  request_id text, at real not null, recorded_at real not null);
create trigger if not exists effects_are_never_changed before update on effects
  begin select raise(abort, 'effects are append-only'); end;
create table if not exists faults (
  seq integer primary key, account text not null, layer text not null, row text not null);
create table if not exists held (
  seq integer primary key, account text not null, kind text not null, due_at real not null,
  job text not null);
create table if not exists endpoints (
  id text primary key, account text not null, connect integer not null, url text not null,
  secrets text not null, enabled_events text not null, api_version text);
create table if not exists deliveries (
  seq integer primary key, account text not null, event_id text not null, event_type text not null,
  url text not null, secrets text not null, body blob not null, twist text,
  after_seq integer, due_at real not null, tries integer not null default 0,
  state text not null default 'waiting', status integer);
create index if not exists deliveries_due on deliveries (due_at) where state = 'waiting';
"""


@dataclass(slots=True)
class Account:
    """What may be set for one account; lags are in seconds of the vendor's clock.

    `requests_per_s` limits this account (429); `conflict_type` is the error type of a 409;
    `livemode` overrides what the API key's prefix says;
    `any_customer` accepts `cus_...` ids that were never created.
    """

    clock_offset_s: float = 0.0
    honours_keys: bool = True
    key_window_s: float = 24 * 3600.0
    livemode: bool | None = None
    any_customer: bool = False
    events_lag_s: float = 0.0
    search_lag_s: float = 60.0
    list_lag_s: float = 0.0
    search_enabled: bool = True
    api_version: str = "2026-10-28.endive"
    conflict_type: str = "idempotency_error"
    requests_per_s: float | None = None
    webhook_retry_s: list[float] = field(default_factory=lambda: [0.2, 0.5, 1.0, 2.0, 5.0])
    webhook_timeout_s: float = 5.0

    def changed(self, settings: Json) -> Account:
        """A copy with `settings` applied; ValueError names one that is unknown or ill-typed."""
        known = {f.name: f for f in fields(self)}
        merged = asdict(self)
        for name, value in settings.items():
            if name not in known:
                raise ValueError(f"{name}: no such account setting; there are {', '.join(known)}")
            wanted = type(merged[name])
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if name == "requests_per_s":
                good = value is None or (number and value > 0)
            elif name == "livemode":
                good = value is None or isinstance(value, bool)
            elif wanted is float:
                good = number
            elif wanted is list:
                good = isinstance(value, list) and all(isinstance(s, int | float) for s in value)
            else:
                good = isinstance(value, wanted)
            if not good:
                raise ValueError(f"{name}: cannot be {value!r}")
            merged[name] = value
        return Account(**merged)


def wall_s() -> float:
    """Unix seconds of this machine: a vendor has a clock of its own, and no outbox reads it."""
    return time.time()  # noqa: TID251


class Ledger:
    """All SQL lives here and in the modules' own statements through `all`, `one` and `run`. `wall`
    gives the unix seconds that everything here goes by; the accounts' clocks are set against it."""

    def __init__(self, path: str, seed: int, wall: Callable[[], float] = wall_s) -> None:
        self.wall_s = wall
        # It holds what customers are called; SQLite's own files beside it take its mode.
        Path(path).touch(mode=0o600)
        Path(path).chmod(0o600)
        self._db = sqlite3.connect(path, timeout=0.5, isolation_level=None)
        self._db.row_factory = sqlite3.Row
        # Exclusive: a second sandbox on the same file would break every promise the ledger makes.
        self._db.execute("pragma locking_mode=exclusive")
        self._db.execute("pragma journal_mode=wal")
        self._db.execute("pragma synchronous=normal")
        self._db.execute("pragma cache_size=-32000")
        self._db.executescript(TABLES)
        self._accounts: dict[str, Account] = {}
        self._open = False
        boots = (self.one("select value from meta where name = 'boots'") or {"value": 0})["value"]
        self.run("insert or replace into meta values ('boots', ?)", boots + 1)
        self.commit()
        self._id_root = f"{seed}:{boots}:"
        self._ids = 0

    # ---- statements

    def run(self, sql: str, *values: Any) -> int:
        """Executes inside the open group transaction; returns the last row id."""
        if not self._open:
            self._db.execute("begin immediate")
            self._open = True
        return self._db.execute(sql, values).lastrowid or 0

    def all(self, sql: str, *values: Any) -> list[Row]:
        return [dict(row) for row in self._db.execute(sql, values)]

    def one(self, sql: str, *values: Any) -> Row | None:
        row = self._db.execute(sql, values).fetchone()
        return None if row is None else dict(row)

    def commit(self) -> None:
        if self._open:
            self._db.execute("commit")
            self._open = False

    def savepoint(self) -> None:
        self.run("savepoint operation")

    def release(self) -> None:
        self.run("release operation")

    def undo(self) -> None:
        self.run("rollback to operation")
        self.run("release operation")

    def close(self) -> None:
        self.commit()
        self._db.close()

    # ---- accounts and time

    def account(self, name: str) -> Account:
        found = self._accounts.get(name)
        if found is None:
            row = self.one("select settings from accounts where name = ?", name)
            found = Account(**json.loads(row["settings"])) if row else Account()
            if row is None:
                self.set_account(name, found)
            self._accounts[name] = found
        return found

    def set_account(self, name: str, account: Account) -> None:
        self.run("insert or replace into accounts values (?, ?)", name, json.dumps(asdict(account)))
        self._accounts[name] = account

    def now(self, account: str) -> float:
        """The vendor's clock for this account, in unix seconds."""
        return self.wall_s() + self.account(account).clock_offset_s

    def new_id(self, prefix: str) -> str:
        """Unique for ever in this file; the same for the same seed, boot and order of calls."""
        self._ids += 1
        digest = hashlib.blake2b(f"{self._id_root}{self._ids}".encode(), digest_size=12)
        return prefix + digest.hexdigest()

    # ---- objects

    def insert(self, account: str, kind: str, obj: Json, at: float, type: str = "") -> None:
        self.run(
            "insert into objects (id, account, kind, created, at, type, body)"
            " values (?,?,?,?,?,?,?)",
            obj["id"], account, kind, obj.get("created", int(at)), at, type, dumps(obj),
        )  # fmt: skip

    def save(self, obj: Json) -> None:
        self.run("update objects set body = ? where id = ?", dumps(obj), obj["id"])

    def load(self, account: str, kind: str, object_id: str) -> Json | None:
        row = self.one(
            "select body from objects where id = ? and account = ? and kind = ?",
            object_id, account, kind,
        )  # fmt: skip
        return None if row is None else json.loads(row["body"])

    def reset(self, account: str) -> None:
        """Forgets everything about one account, its settings and faults too."""
        for table in (
            "objects", "keys", "requests", "effects", "faults", "held", "endpoints", "deliveries",
        ):  # fmt: skip
            self.run(f"delete from {table} where account = ?", account)  # noqa: S608
        self.run("delete from accounts where name = ?", account)
        self._accounts.pop(account, None)


def dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
