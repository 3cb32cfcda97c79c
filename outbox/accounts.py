"""Accounts by name: credentials, mode, whose they are and webhook secrets, out of a TOML file or
Stripe's own names in the environment. The database never holds a secret."""

from __future__ import annotations

import math
import re
import tomllib
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outbox.addresses import scheme_of
from outbox.contract import Account, VendorContract
from outbox.contracts import CONTRACTS

STRIPE_NAMES = ("STRIPE_API_KEY", "STRIPE_WEBHOOK_SECRET", "STRIPE_ACCOUNT_ID", "STRIPE_API_BASE")
_STRIPE_FIELDS = {
    "webhook_secrets": "STRIPE_WEBHOOK_SECRET",
    "vendor_account": "STRIPE_ACCOUNT_ID",
    "base_url": "STRIPE_API_BASE",
}
_FILE = "OUTBOX_ACCOUNTS"
_TEXTS = ("credential", "credential_env", "mode", "vendor_account", "base_url")
_ALLOWED = frozenset({*_TEXTS, "webhook_secrets", "rate_per_s", "burst"})
_MOST_SECRETS = 2
_MOST_CHARS = 200  # of a name, as of every name of a scope
# Slower than a request a day is a pause, faster than this no limit at all.
_LEAST_PER_S, _MOST_PER_S = 1 / 86400, 100_000
_BURST_S = 0.1

Accounts = dict[tuple[str, str], Account]


class AccountReader:
    """Collects accounts, and every problem as (where, what). ``borrowed`` are the names in the
    environment that the file takes a credential from."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = env
        self.problems: list[tuple[str, str]] = []
        self.borrowed: set[str] = set()

    def read(self, said: Mapping[str, str]) -> Accounts:
        """Accounts by (vendor, name), of the file that ``OUTBOX_ACCOUNTS`` names and of Stripe's
        names, which make the account ``default``."""
        found = self._file(Path(said[_FILE])) if _FILE in said else {}
        if "STRIPE_API_KEY" in said:
            secrets = re.split(r"[,\s]+", said.get("STRIPE_WEBHOOK_SECRET", ""))
            table = {
                "credential": said["STRIPE_API_KEY"],
                "vendor_account": said.get("STRIPE_ACCOUNT_ID", ""),
                "webhook_secrets": [secret for secret in secrets if secret],
                "base_url": said.get("STRIPE_API_BASE", ""),
            }
            if ("stripe", "default") in found:
                self._say(
                    "STRIPE_API_KEY", f"is set, and so is [stripe.default] of {_FILE}: keep one"
                )
            before = len(self.problems)
            found["stripe", "default"] = self._account("STRIPE_API_KEY", "stripe", "default", table)
            # Told by the name under which it was said.
            self.problems[before:] = [
                (next((n for f, n in _STRIPE_FIELDS.items() if what.startswith(f)), where), what)
                for where, what in self.problems[before:]
            ]
        return found

    def _file(self, path: Path) -> Accounts:
        found: Accounts = {}
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            self.problems.append((_FILE, f"cannot read {path}"))
            return found
        except tomllib.TOMLDecodeError as error:
            # The parser's message holds a position and no value of the file.
            self.problems.append((_FILE, f"{path} is not TOML: {error}"))
            return found
        for vendor, accounts in document.items():
            if not isinstance(accounts, dict):
                self.problems.append((_FILE, f"[{_plain(vendor)}.NAME] tables are expected"))
                continue
            for name, table in accounts.items():
                where = f"{_FILE} [{_plain(vendor)}.{_plain(name)}]"
                if not _is_name(name):
                    self._say(
                        where, f"its name must be printable text of 1 to {_MOST_CHARS} characters"
                    )
                elif isinstance(table, dict):
                    found[vendor, name] = self._account(where, vendor, name, table)
                else:
                    self.problems.append((where, "must be a table"))
        return found

    def _account(self, where: str, vendor: str, name: str, table: Mapping[str, Any]) -> Account:
        contract = CONTRACTS.get(vendor)
        if contract is None:
            known = ", ".join(sorted(CONTRACTS))
            self._say(where, f"{_plain(vendor)} is not a vendor we know; known are {known}")
        said = self._texts(where, table)
        credential = self._credential(where, said, contract)
        base_url = said.get("base_url", "")
        schemes = contract.schemes if contract else ("http", "https")
        if base_url and scheme_of(base_url) not in schemes:
            self._say(where, f"base_url must be an address with {' or '.join(schemes)}")
        if not base_url and contract is not None and contract.needs_address:
            self._say(where, f"base_url is missing: {schemes[0]}://HOST:PORT")
        if contract is not None and not contract.tells_owner and not said.get("vendor_account"):
            self._say(where, f"vendor_account is missing: {vendor} cannot be asked whose it is")
        return Account(
            name=name,
            mode=self._mode(where, said.get("mode", ""), credential),
            vendor_account=said.get("vendor_account", ""),
            credential=credential,
            webhook_secrets=self._secrets(where, table.get("webhook_secrets", [])),
            base_url=base_url,
            **self._rate(where, table),
        )

    def _rate(self, where: str, table: Mapping[str, Any]) -> dict[str, Any]:
        """The account's limit; without a burst, what comes in a tenth of a second."""
        rate, burst = table.get("rate_per_s"), table.get("burst")
        if rate is None:
            if burst is not None:
                self._say(where, "burst without rate_per_s: nothing is limited")
            return {}
        if not _is_number(rate) or not _LEAST_PER_S <= rate <= _MOST_PER_S:
            self._say(
                where, f"rate_per_s must be a number from {_LEAST_PER_S:.2g} to {_MOST_PER_S}"
            )
            return {}
        if burst is None:
            burst = max(1, math.ceil(rate * _BURST_S))
        elif isinstance(burst, bool) or not isinstance(burst, int) or not 1 <= burst <= _MOST_PER_S:
            self._say(where, f"burst must be a whole number from 1 to {_MOST_PER_S}")
            return {}
        return {"rate_per_s": float(rate), "burst": burst}

    def _texts(self, where: str, table: Mapping[str, Any]) -> dict[str, str]:
        for extra in sorted(set(table) - _ALLOWED):
            self._say(where, f"has no setting {extra}; it has {', '.join(sorted(_ALLOWED))}")
        texts = {name: table[name] for name in _TEXTS if name in table}
        for name in [name for name, value in texts.items() if not isinstance(value, str)]:
            self._say(where, f"{name} must be text")
            del texts[name]
        for name, value in texts.items():
            self._check_text(where, name, value)
        return texts

    def _check_text(self, where: str, name: str, value: str) -> None:
        # The value is not shown: it may be a secret.
        if not value.isprintable() or value != value.strip():
            self._say(where, f"{name} holds a line break, a control character or a blank at an end")
        elif name == "vendor_account" and " " in value:
            self._say(where, f"{name} holds a blank")

    def _credential(
        self, where: str, said: Mapping[str, str], contract: VendorContract | None
    ) -> str:
        credential = said.get("credential", "")
        if named := said.get("credential_env"):
            self.borrowed.add(named)
            credential = self.env.get(named, "")
            self._check_text(where, named, credential)
        if not credential and (contract is None or contract.needs_credential):
            self._say(where, "credential is missing")
        elif contract is not None and contract.vendor == "stripe" and not _is_token(credential):
            self._say(where, "credential holds a blank or a letter that no key of Stripe's has")
        return credential

    def _mode(self, where: str, said: str, credential: str) -> str:
        seen = mode_of_credential(credential)
        mode = said or seen or "live"
        if mode not in ("live", "test"):
            self._say(where, "mode must be live or test")
        elif seen and seen != mode:
            self._say(where, f"mode is {mode} but the credential is a {seen} one")
        return mode

    def _secrets(self, where: str, secrets: Any) -> tuple[str, ...]:
        if not (isinstance(secrets, list) and all(isinstance(s, str) and s for s in secrets)):
            self._say(where, "webhook_secrets must be a list of text")
            return ()
        for secret in secrets:
            self._check_text(where, "webhook_secrets", secret)
        if len(secrets) > _MOST_SECRETS:
            self._say(where, "webhook_secrets: two at the most, while rotating")
        return tuple(secrets)

    def _say(self, where: str, problem: str) -> None:
        self.problems.append((where, problem))


def _is_name(name: str) -> bool:
    return (
        1 <= len(name) <= _MOST_CHARS
        and name.isprintable()
        and unicodedata.is_normalized("NFC", name)
    )


def _is_token(credential: str) -> bool:
    return credential.isascii() and " " not in credential.strip()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(name: str) -> str:
    """A name of the file's, as it may be shown."""
    return name if _is_name(name) else ascii(name[:40])


def mode_of_credential(credential: str) -> str | None:
    """``live`` or ``test`` by the prefix that Stripe gives its keys; None where it says nothing."""
    match = re.match(r"(?:sk|rk)_(live|test)_", credential)
    return match.group(1) if match else None
