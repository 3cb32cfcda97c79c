"""Settings: the one place that reads the environment. Read once; all errors are shown at once."""

from __future__ import annotations

import os
import pwd
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from outbox.addresses import database_url, scheme_of
from outbox.contract import Account
from outbox.contracts import CONTRACTS
from outbox.errors import Invalid, SettingsError
from outbox.policy import Policy

_PAGER_SCHEMES = ("pagerduty", "webhook", "file")
_REDIS_SCHEMES = ("redis", "rediss", "unix", "redis+socket")
_LEAST_TIMEOUT_S = 0.01


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
    accounts: Mapping[tuple[str, str], Account] = field(default_factory=dict)
    statement_timeout_s: float = 5.0
    lock_timeout_s: float = 2.0
    idle_in_transaction_timeout_s: float = 10.0
    redis_timeout_s: float = 0.25
    wait_s: float = 5.0
    webhook_max_bytes: int = 1024 * 1024
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
            port=int(reader.number("PORT", 8000, whole=True)),
            environment=reader.text("OUTBOX_ENVIRONMENT", "production"),
            actor=reader.text("OUTBOX_ACTOR", "") or _system_user(),
            profile=profile,
            pagers=reader.pagers(),
            pager_secret=reader.text("OUTBOX_PAGER_SECRET", ""),
            accounts=reader.accounts(),
            statement_timeout_s=reader.timeout("OUTBOX_STATEMENT_TIMEOUT_S", 5.0),
            lock_timeout_s=reader.timeout("OUTBOX_LOCK_TIMEOUT_S", 2.0),
            idle_in_transaction_timeout_s=reader.timeout("OUTBOX_IDLE_TIMEOUT_S", 10.0),
            redis_timeout_s=reader.timeout("OUTBOX_REDIS_TIMEOUT_S", 0.25),
            wait_s=reader.number("OUTBOX_WAIT_S", 5.0),
            webhook_max_bytes=int(reader.number("OUTBOX_WEBHOOK_MAX_BYTES", 1048576, whole=True)),
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

    def number(self, name: str, default: float, *, whole: bool = False) -> float:
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
        return parsed

    def timeout(self, name: str, default: float) -> float:
        value = self.number(name, default)
        if value < _LEAST_TIMEOUT_S:
            # To Postgres 0 ms means for ever.
            self.problems.append((name, f"must be at least {_LEAST_TIMEOUT_S} s"))
            return default
        return value

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
                self.problems.append(
                    (
                        "OUTBOX_PAGERS",
                        "must be `none` or a list of pagerduty:KEY, webhook:URL, file:PATH",
                    )
                )
        return named

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

    def accounts(self) -> dict[tuple[str, str], Account]:
        path = self.text("OUTBOX_ACCOUNTS", "")
        found: dict[tuple[str, str], Account] = {}
        if path:
            found.update(self._account_file(Path(path)))
        key = self.text("STRIPE_API_KEY", "")
        secrets = self.text("STRIPE_WEBHOOK_SECRET", "")
        vendor_account = self.text("STRIPE_ACCOUNT_ID", "")
        base = self.text("STRIPE_API_BASE", "")
        if key:
            self._add(
                found,
                "STRIPE_API_KEY",
                "stripe",
                "default",
                {
                    "credential": key,
                    "vendor_account": vendor_account,
                    "webhook_secrets": [s for s in re.split(r"[,\s]+", secrets) if s],
                    "base_url": base,
                },
            )
        return found

    def _account_file(self, path: Path) -> dict[tuple[str, str], Account]:
        found: dict[tuple[str, str], Account] = {}
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            self.problems.append(("OUTBOX_ACCOUNTS", f"cannot read {path}"))
            return found
        except tomllib.TOMLDecodeError as error:
            # The parser's message holds a position and no value of the file.
            self.problems.append(("OUTBOX_ACCOUNTS", f"{path} is not TOML: {error}"))
            return found
        for vendor, accounts in document.items():
            if not isinstance(accounts, dict):
                self.problems.append(("OUTBOX_ACCOUNTS", f"[{vendor}.NAME] tables are expected"))
                continue
            for name, table in accounts.items():
                where = f"OUTBOX_ACCOUNTS [{vendor}.{name}]"
                if not isinstance(table, dict):
                    self.problems.append((where, "must be a table"))
                else:
                    self._add(found, where, vendor, name, table)
        return found

    def _add(
        self,
        found: dict[tuple[str, str], Account],
        where: str,
        vendor: str,
        name: str,
        table: Mapping[str, Any],
    ) -> None:
        allowed = {
            "credential",
            "credential_env",
            "mode",
            "vendor_account",
            "webhook_secrets",
            "base_url",
        }
        for extra in sorted(set(table) - allowed):
            self.problems.append(
                (where, f"has no setting {extra}; it has {', '.join(sorted(allowed))}")
            )
        credential = str(table.get("credential", ""))
        if table.get("credential_env"):
            credential = self.env.get(str(table["credential_env"]), "")
            self.known.add(str(table["credential_env"]))
        if vendor not in CONTRACTS:
            known = ", ".join(sorted(CONTRACTS))
            self.problems.append((where, f"{vendor} is not a vendor we know; known are {known}"))
        secrets = table.get("webhook_secrets", [])
        if not credential:
            self.problems.append((where, "credential is missing"))
        if not (isinstance(secrets, list) and all(isinstance(s, str) and s for s in secrets)):
            self.problems.append((where, "webhook_secrets must be a list of text"))
            secrets = []
        if len(secrets) > 2:
            self.problems.append((where, "webhook_secrets: two at the most, while rotating"))
        seen = mode_of_credential(credential)
        mode = str(table.get("mode", seen or "live"))
        if mode not in ("live", "test"):
            self.problems.append((where, "mode must be live or test"))
        elif seen and seen != mode:
            self.problems.append((where, f"mode is {mode} but the credential is a {seen} one"))
        base_url = str(table.get("base_url", ""))
        if base_url and scheme_of(base_url) not in ("http", "https"):
            self.problems.append((where, "base_url must be an http or https address"))
        found[vendor, name] = Account(
            name=name,
            mode=mode,
            vendor_account=str(table.get("vendor_account", "")),
            credential=credential,
            webhook_secrets=tuple(secrets),
            base_url=base_url,
        )

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


def mode_of_credential(credential: str) -> str | None:
    """``live`` or ``test`` by the prefix that Stripe gives its keys; None where it says nothing."""
    match = re.match(r"(?:sk|rk)_(live|test)_", credential)
    return match.group(1) if match else None


def process_environment() -> dict[str, str]:
    """This process's environment, for the child processes that it starts."""
    return dict(os.environ)
