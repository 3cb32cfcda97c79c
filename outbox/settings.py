"""Settings: the one place that reads the environment. Read once; all errors are shown at once."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from outbox.accounts import STRIPE_NAMES, AccountReader
from outbox.addresses import database_url, scheme_of
from outbox.codec import PLAIN, Codec, codec_of
from outbox.contract import Account
from outbox.contracts import CONTRACTS, register
from outbox.errors import Invalid, SettingsError
from outbox.inputs import retention_s
from outbox.policy import MOST_DEPTH, Policy

_PAGER_SCHEMES = (
    "pagerduty",
    "opsgenie",
    "jsm",
    "incidentio",
    "alertmanager",
    "webhook",
    "file",
    "apprise",
)
_REDIS_SCHEMES = ("redis", "rediss", "unix", "redis+socket")
_LEAST_TIMEOUT_S = 0.01
# A time-out beyond it waits for nothing that can still come.
_MOST_TIMEOUT_S = 86400.0
_MOST_BYTES = 1024**3
_NO_DEPTH = -1


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment said. ``repr`` shows no secret.

    ``sources`` tells for each setting where its value came from, for ``outbox config show``.
    """

    database_url: str = field(default="", repr=False)
    redis_url: str = field(default="", repr=False)
    host: str = "127.0.0.1"
    port: int = 8000
    environment: str = "production"
    actor: str = ""
    profile: str = "production"
    pagers: tuple[str, ...] | None = field(default=None, repr=False)
    pager_secret: str = field(default="", repr=False)
    vendor_files: str = ""
    accounts: Mapping[tuple[str, str], Account] = field(default_factory=dict)
    statement_timeout_s: float = 5.0
    lock_timeout_s: float = 2.0
    idle_in_transaction_timeout_s: float = 10.0
    redis_timeout_s: float = 0.25
    wait_s: float = 5.0
    retention_s: float | None = None
    webhook_max_bytes: int = 1024 * 1024
    max_tenant_depth: int | None = None
    max_lane_depth: int | None = None
    codec: Codec = field(default=PLAIN, repr=False, compare=False)
    policy: Policy = field(default_factory=Policy)
    sources: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Reads the environment, or the mapping. Raises ``SettingsError`` with all faults."""
        reader = _Reader(os.environ if env is None else env)
        profile = reader.choice("OUTBOX_PROFILE", ("production", "demo"), "production")
        settings = cls(
            database_url=reader.database_url(),
            redis_url=reader.redis_url(),
            host=reader.text("OUTBOX_HOST", "127.0.0.1"),
            port=int(reader.number("PORT", 8000, whole=True, most=65535)),
            environment=reader.text("OUTBOX_ENVIRONMENT", "production"),
            actor=reader.text("OUTBOX_ACTOR", "") or _system_user(),
            profile=profile,
            pagers=reader.pagers(),
            pager_secret=reader.text("OUTBOX_PAGER_SECRET", ""),
            vendor_files=reader.vendor_files(),
            accounts=reader.accounts(),
            statement_timeout_s=reader.timeout("OUTBOX_STATEMENT_TIMEOUT_S", 5.0),
            lock_timeout_s=reader.timeout("OUTBOX_LOCK_TIMEOUT_S", 2.0),
            idle_in_transaction_timeout_s=reader.timeout("OUTBOX_IDLE_TIMEOUT_S", 10.0),
            redis_timeout_s=reader.timeout("OUTBOX_REDIS_TIMEOUT_S", 0.25),
            wait_s=reader.number("OUTBOX_WAIT_S", 5.0, most=_MOST_TIMEOUT_S),
            retention_s=reader.retention(),
            webhook_max_bytes=int(
                reader.number("OUTBOX_WEBHOOK_MAX_BYTES", 1048576, whole=True, most=_MOST_BYTES)
            ),
            max_tenant_depth=reader.depth("OUTBOX_MAX_TENANT_DEPTH"),
            max_lane_depth=reader.depth("OUTBOX_MAX_LANE_DEPTH"),
            codec=reader.codec(),
            policy=reader.policy(Policy.demo() if profile == "demo" else Policy()),
        )
        reader.unknown_names()
        if reader.problems:
            raise SettingsError(reader.problems)
        return replace(settings, sources=reader.sources)

    def require_database(self) -> str:
        """The database's URL, or ``SettingsError`` where none is set."""
        if not self.database_url:
            raise SettingsError([("DATABASE_URL", "is not set; `outbox up` starts everything")])
        return self.database_url

    def account(self, vendor: str, name: str) -> Account | None:
        """Credentials and identity of an account by name, None where it is not configured."""
        return self.accounts.get((vendor, name))

    def live(self) -> bool:
        """Whether any configured credential is a live one."""
        return any(account.mode == "live" for account in self.accounts.values())

    def start_problems(self) -> Iterator[tuple[str, str]]:
        """What forbids a worker, beat or web process to start, beyond unreadable values."""
        if self.live() and self.pagers is None:
            yield (
                "OUTBOX_PAGERS",
                "is not set while a live credential is: say whom to page, or `none`",
            )
        if self.live() and self.profile == "demo":
            yield "OUTBOX_PROFILE", "demo settings are refused with a live credential"
            return
        live = {vendor for (vendor, _), account in self.accounts.items() if account.mode == "live"}
        for vendor in sorted(live & set(CONTRACTS)):
            for name, problem in self.policy.loosened(CONTRACTS[vendor]):
                yield f"OUTBOX_{name.upper()}", problem


class _Reader:
    """Collects values, where they came from, and every problem."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = env
        self.problems: list[tuple[str, str]] = []
        self.sources: dict[str, str] = {}
        self.known: set[str] = set()

    def text(self, name: str, default: str) -> str:
        self.known.add(name)
        value = self.env.get(name)
        self.sources[name] = "default" if value is None else "environment"
        if value is not None and not value.strip().isprintable():
            # It would be shown to other operators, or break a line of somebody's log.
            self.problems.append((name, "must be printable text on one line"))
            return default
        return default if value is None else value.strip()

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        value = self.text(name, default)
        if value not in allowed:
            self.problems.append((name, f"must be one of {', '.join(allowed)}"))
            return default
        return value

    def number(
        self, name: str, default: float, *, whole: bool = False, most: float | None = None
    ) -> float:
        value = self.text(name, "")
        if value == "":
            if name in self.env:
                self.problems.append((name, "is empty; leave it out for the default"))
            return default
        try:
            parsed = int(value) if whole else float(value)
        except ValueError:
            self.problems.append((name, "must be a whole number" if whole else "must be a number"))
            return default
        if not 0 <= parsed < float("inf"):
            self.problems.append((name, "must not be negative or infinite"))
            return default
        if most is not None and parsed > most:
            self.problems.append((name, f"must be at most {most:.0f}"))
            return default
        return parsed

    def depth(self, name: str) -> int | None:
        """How many intents may wait; None: any number."""
        value = int(self.number(name, _NO_DEPTH, whole=True, most=MOST_DEPTH))
        if value == 0:
            self.problems.append((name, "must be at least 1; leave it out for no limit"))
        return value if value > 0 else None

    def timeout(self, name: str, default: float) -> float:
        value = self.number(name, default, most=_MOST_TIMEOUT_S)
        if value < _LEAST_TIMEOUT_S:
            # To Postgres 0 ms means for ever.
            self.problems.append((name, f"must be at least {_LEAST_TIMEOUT_S} s"))
            return default
        return value

    def retention(self) -> float | None:
        value = self.text("OUTBOX_RETENTION", "")
        if "OUTBOX_RETENTION" not in self.env:
            return None
        try:
            return retention_s(value)
        except ValueError as error:
            self.problems.append(("OUTBOX_RETENTION", str(error)))
            return None

    def database_url(self) -> str:
        raw = self.text("DATABASE_URL", "")
        if not raw:
            return ""
        try:
            return database_url(raw)
        except Invalid as error:
            self.problems.append(("DATABASE_URL", error.problem))
            return ""

    def redis_url(self) -> str:
        raw = self.text("REDIS_URL", "")
        if raw and scheme_of(raw) not in _REDIS_SCHEMES:
            self.problems.append(("REDIS_URL", f"must begin with {', '.join(_REDIS_SCHEMES)}"))
            return ""
        return raw

    def pagers(self) -> tuple[str, ...] | None:
        raw = self.text("OUTBOX_PAGERS", "")
        if not raw:
            return None
        if raw == "none":
            return ()
        named = tuple(part for part in re.split(r"[,\s]+", raw) if part)
        for part in named:
            scheme, _, rest = part.partition(":")
            if scheme not in _PAGER_SCHEMES or not rest:
                kinds = ", ".join(f"{known}:" for known in _PAGER_SCHEMES)
                self.problems.append(
                    ("OUTBOX_PAGERS", f"must be `none` or a list of targets, each one of {kinds}")
                )
        return named

    def codec(self) -> Codec:
        factory, keys = self.text("OUTBOX_CODEC", ""), self.text("OUTBOX_CODEC_KEYS", "")
        try:
            return codec_of(factory, keys)
        except Invalid as error:
            self.problems.append((error.field, error.problem))
            return PLAIN

    def policy(self, base: Policy) -> Policy:
        changes: dict[str, Any] = {}
        for item in fields(Policy):
            name = f"OUTBOX_{item.name.upper()}"
            if name not in self.env:
                self.sources[name] = "default"
                self.known.add(name)
                continue
            current = getattr(base, item.name)
            if isinstance(current, tuple):
                changes[item.name] = self._numbers(name, current)
            else:
                whole = isinstance(current, int)
                changes[item.name] = self.number(name, current or 0, whole=whole)
        policy = replace(base, **changes)
        self.problems.extend((f"OUTBOX_{n.upper()}", p) for n, p in policy.problems())
        return policy

    def _numbers(self, name: str, default: tuple[float, ...]) -> tuple[float, ...]:
        try:
            values = tuple(float(part) for part in self.text(name, "").split(","))
        except ValueError:
            values = ()
        if not values or any(not 0 <= v < float("inf") for v in values):
            self.problems.append((name, "must be numbers of seconds separated by commas"))
            return default
        return values

    def vendor_files(self) -> str:
        """Makes the vendors known that files describe; the accounts are checked against them."""
        said = self.text("OUTBOX_VENDORS", "")
        if not said:
            return said
        # Imported here: most programs have no such file, and start sooner without.
        from outbox.contracts.recipes import read_recipes

        contracts, problems = read_recipes(said)
        self.problems.extend(("OUTBOX_VENDORS", problem) for problem in problems)
        for contract in contracts:
            try:
                register(contract)
            except Invalid as error:
                self.problems.append(("OUTBOX_VENDORS", error.problem))
        return said

    def accounts(self) -> dict[tuple[str, str], Account]:
        names = ("OUTBOX_ACCOUNTS", *STRIPE_NAMES)
        said = {name: value for name in names if (value := self.text(name, ""))}
        reader = AccountReader(self.env)
        found = reader.read(said)
        self.problems.extend(reader.problems)
        self.known.update(reader.borrowed)
        return found

    def unknown_names(self) -> None:
        """A misspelled setting must not silently mean the default."""
        for name in sorted(self.env):
            if name.startswith("OUTBOX_") and name not in self.known:
                self.problems.append((name, "is not a setting; `outbox config show` lists them"))


def _system_user() -> str:
    """Who runs this process, by the system's own word: names in the environment can be borrowed."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user without an entry
        return f"uid:{os.getuid()}"


def process_environment() -> dict[str, str]:
    """This process's environment, for the child processes that it starts."""
    return dict(os.environ)
