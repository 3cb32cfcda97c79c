"""The row of an intent as Python sees it, and the plain reads of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from hashlib import sha256
from typing import Any, Literal, LiteralString, cast
from uuid import UUID

from outbox.codec import PLAIN, Codec, Sealed, open_text
from outbox.contract import Account, Call, Cutoff, KeySlot, Unlimited
from outbox.contracts import CONTRACTS
from outbox.errors import Ambiguous, Invalid, NotFound
from outbox.states import Status
from outbox.store.connection import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """One row of ``outbox.intents``; times are aware datetimes by the database's clock.

    ``args``, ``request`` and ``receipt`` are as they are kept, which may be sealed; ``plain_text``
    opens them. A settled row may have been emptied of them.
    """

    id: UUID
    seq: int
    version: int
    tenant: str
    vendor: str
    account: str
    mode: str | None
    vendor_account: str | None
    tool: str
    operation: str
    side_effect: str
    run_id: str
    epoch: str
    occurrence: int
    once_per: str
    supersedes: UUID | None
    key: bytes
    fingerprint: bytes
    fingerprint_version: int
    identity: str = field(repr=False)
    guard: str = field(repr=False)
    args: str | None = field(repr=False)
    request: str | None = field(repr=False)
    request_sha256: bytes
    api_version: str
    amount_minor: int | None
    currency: str | None
    lane: str | None
    on_doubt: str
    resend_when_absent: bool
    gate: str
    status: str
    doubt: int
    veto: str | None
    business_status: str | None
    business_word: str | None
    business_vendor_time: int
    ttl_s: float
    due_at: datetime
    ttl_at: datetime
    window_ends_at: datetime | None
    escalate_at: datetime | None
    verify_at: datetime | None
    first_sent_at: datetime | None
    last_sent_at: datetime | None
    last_lease_end: datetime | None
    attempts: int
    not_sent_count: int
    crashes: int
    resends: int
    looks: int
    absent_looks: int
    absent_first_at: datetime | None
    absent_last_at: datetime | None
    lease_token: UUID | None
    lease_no: int
    lease_until: datetime | None
    lease_owner: str | None
    resolver_token: UUID | None
    resolver_until: datetime | None
    receipt_id: str | None
    receipt: str | None = field(repr=False)
    failure_code: str | None
    settled_by: str | None
    settled_at: datetime | None
    contradicted_at: datetime | None
    told_at: datetime | None
    created_at: datetime
    tool_call_id: str | None
    traceparent: str | None
    note: str | None
    args_codec: str = PLAIN.writes
    request_codec: str = PLAIN.writes
    receipt_codec: str = PLAIN.writes
    # Where the request is sealed or emptied: the path it went to, which names the vendor's object.
    request_path: str | None = None
    # The last try failed here, before any byte left.
    local_failure: bool = False
    # By what the vendor knows the frozen request again, by ``carried``.
    carries: str = ""
    codec: Codec = field(default=PLAIN, repr=False, compare=False)

    @property
    def state(self) -> Status:
        """The status as the state table names it."""
        return Status(self.status)

    def is_of(self, account: Account) -> bool:
        """Whether the account is the one that the row was first claimed for, as far as both are
        known."""
        owners = {self.vendor_account, account.vendor_account} - {None, ""}
        return self.mode in (None, account.mode) and len(owners) < 2

    def plain_text(self, column: Literal["args", "request", "receipt"]) -> str | None:
        """What was kept in the column; None where nothing is. Raises ``Sealed``, and for a request
        that opens to something else than was hashed."""
        kept: str | None = getattr(self, column)
        name: str = getattr(self, f"{column}_codec")
        if kept is None or name == PLAIN.writes:
            return kept
        where = f"intents.{column}"
        text = open_text(self.codec, name, kept, where, str(self.id))
        if column == "request" and sha256(text.encode()).digest() != bytes(self.request_sha256):
            raise Sealed(where, name, known=True)
        return text

    def call(self, account: Account, cutoff: Cutoff | None = None) -> Call:
        """The frozen request as an adapter takes it; of an emptied one only what names the vendor's
        object, to read that. Where nobody said whose the account is, it must be the one that the
        row was first claimed for. Raises ``Sealed``."""
        frozen: Mapping[str, Any] = json.loads(self.plain_text("request") or "{}")
        return self._call(frozen, account, cutoff, KeySlot.of(frozen.get("key")))

    def call_to_read(self, account: Account, cutoff: Cutoff | None = None) -> Call:
        """The same for a look, which needs the key, its slot and the path and not the request:
        where that cannot be opened or read, the call is not ``whole``. Raises as ``call`` where the
        object that it was to change is not known."""
        try:
            return self.call(account, cutoff)
        except (Sealed, ValueError, TypeError, AttributeError, RecursionError):
            slot = KeySlot.of_text(self.carries)
            found = replace(self._call({}, account, cutoff, slot), whole=False)
            if not found.path or "{" in found.path:
                raise
            return found

    def _call(
        self,
        frozen: Mapping[str, Any],
        account: Account,
        cutoff: Cutoff | None,
        key_slot: KeySlot | None,
    ) -> Call:
        if not account.vendor_account:
            account = replace(account, vendor_account=self.vendor_account or "")
        return Call(
            intent_id=self.id,
            key=bytes(self.key),
            operation=self.operation,
            method=frozen.get("method", ""),
            path=frozen.get("path") or self.path_without_request(),
            api_version=self.api_version,
            params=frozen.get("params", {}),
            account=account,
            amount_minor=self.amount_minor,
            currency=self.currency,
            recorded_epoch_s=int(self.created_at.timestamp()),
            key_slot=key_slot,
            cutoff=cutoff or Unlimited(),
        )

    def path_without_request(self) -> str:
        """The path of a request that is not there (or cannot be opened): what was noted when it
        was sealed or emptied, else by the contract, with the receipt as the object that it names.
        """
        if self.request_path is not None:
            return self.request_path
        contract = CONTRACTS.get(self.vendor)
        spec = contract.operations.get(self.operation) if contract else None
        if spec is None:
            return ""
        return re.sub(r"{\w+}", lambda m: self.receipt_id or m[0], spec.path)


COLUMN_NAMES = tuple(f.name for f in fields(Intent) if f.name != "codec")


def _filler(name: str) -> Callable[[Intent, Any], None]:
    """Sets a field as it is made. A frozen class sets each by a call that looks it up first: in all
    that was a sixth of what a claimed row costs here."""
    return cast(Callable[[Intent, Any], None], getattr(Intent, name).__set__)


_FILLERS = tuple((name, _filler(name)) for name in COLUMN_NAMES)
_FILL_CODEC = _filler("codec")
COLUMNS = ", ".join(COLUMN_NAMES)
COLUMNS_OF_I = ", ".join(f"i.{name}" for name in COLUMN_NAMES)

_PREFIX_MIN = 6


def as_intent(row: Mapping[str, Any], codec: Codec) -> Intent:
    """A row with (at least) the columns of ``COLUMNS``. Nothing is opened before it is asked for:
    a row whose key is missing can still be told of, escalated and ruled on."""
    made = object.__new__(Intent)
    for name, fill in _FILLERS:
        fill(made, row[name])
    _FILL_CODEC(made, codec)
    return made


def read(tx: Transaction, intent_id: UUID) -> Intent | None:
    """The row by id."""
    row = tx.one(f"SELECT {COLUMNS} FROM outbox.intents WHERE id = %(id)s", {"id": intent_id})
    return as_intent(row, tx.codec) if row else None


def lock(tx: Transaction, intent_id: UUID) -> Intent | None:
    """The row by id, locked until the transaction ends."""
    row = tx.one(
        f"SELECT {COLUMNS} FROM outbox.intents WHERE id = %(id)s FOR UPDATE", {"id": intent_id}
    )
    return as_intent(row, tx.codec) if row else None


def now(tx: Transaction) -> datetime:
    """The database's clock, which alone decides leases, TTLs and windows."""
    row = tx.one("SELECT outbox.clock() AS now")
    assert row is not None
    return cast(datetime, row["now"])


def expand(tx: Transaction, field_name: str, prefix: str, *, table: str = "intents") -> UUID:
    """The one id that begins with ``prefix`` (at least 6 hex digits; dashes are ignored).

    Raises ``Invalid`` for what is no id, ``NotFound``, or ``Ambiguous`` with the candidates.
    """
    digits = prefix.replace("-", "").lower()
    if not digits or any(c not in "0123456789abcdef" for c in digits) or len(digits) > 32:
        raise Invalid(field_name, f"{prefix!r} is not an id: hex digits and dashes are expected")
    if len(digits) < _PREFIX_MIN:
        raise Invalid(field_name, f"give at least {_PREFIX_MIN} digits of the id")
    low, high = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
    source: LiteralString = "outbox.escalations" if table == "escalations" else "outbox.intents"
    sql = f"SELECT id FROM {source} WHERE id BETWEEN %(low)s AND %(high)s ORDER BY id LIMIT 6"
    rows = tx.all(sql, {"low": low, "high": high})
    if not rows:
        raise NotFound(field_name, f"no {table[:-1]} has the id {prefix}")
    if len(rows) > 1:
        candidates = tuple(str(row["id"]) for row in rows)
        raise Ambiguous(field_name, f"{prefix} names more than one {table[:-1]}", candidates)
    return cast(UUID, rows[0]["id"])
