"""From a tool, a scope and arguments to a row that is complete before any SQL runs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any
from urllib.parse import quote
from uuid import UUID

from outbox.arguments import arguments_of, money_of
from outbox.codec import PLAIN_NAME, Codec, seal_text
from outbox.errors import Invalid
from outbox.fingerprint import (
    RULES,
    Limits,
    canonical,
    fingerprint,
    intent_id,
    intent_id_text,
    intent_key,
    joined,
    members,
    parse_json,
    within,
    written_version,
)
from outbox.policy import Policy
from outbox.request import frozen
from outbox.tool import Scope, WriteTool

_GATE_PART_CHARS = 200
_LANE_TENANT_CHARS = 32


@dataclass(frozen=True, slots=True)
class Recorded:
    """What one intent is recorded as under one version of the fingerprint."""

    fingerprint: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Draft:
    """A complete, validated intent that has not met the database yet. ``columns`` are the row,
    ``args`` the arguments in the clear; ``ever`` is what it may be recorded as already, by the
    oldest fingerprint version that is known first."""

    key: bytes
    tool: WriteTool
    scope: Scope
    identity: str = field(repr=False)
    guard: str = field(repr=False)
    args: str = field(repr=False)
    notes: tuple[str, ...]
    ever: tuple[Recorded, ...]
    columns: Mapping[str, Any] = field(repr=False)

    @property
    def id(self) -> UUID:
        """The id that its row has, or will have."""
        return intent_id(self.key)


def gate_prefix(*parts: str) -> str:
    """What every gate of a vendor and account begins with; parts are percent-encoded, so that no
    name can reach into its neighbour, and long ones hashed: an index entry is limited, and one that
    is too long would abort the caller's transaction."""
    return "".join(_gate_part(part) + "/" for part in parts)


def _gate_part(part: str) -> str:
    quoted = quote(part, safe="")
    # No quoted text holds an equals sign.
    if len(quoted) <= _GATE_PART_CHARS:
        return quoted
    return "=" + hashlib.sha256(part.encode()).hexdigest()


@lru_cache(maxsize=4096)
def gate_of(vendor: str, account: str, tool: str, tenant: str) -> str:
    """The claim's gate: the unit that a pause, a breaker or a freeze closes."""
    return gate_prefix(vendor, account, tool, tenant)


def draft(
    tool: WriteTool,
    scope: Scope,
    args: Mapping[str, Any] | str | bytes,
    *,
    occurrence: int = 0,
    supersedes: UUID | None = None,
    tool_call_id: str | None = None,
    traceparent: str | None = None,
    policy: Policy = Policy(),  # noqa: B008 - frozen
    limits: Limits = Limits(),  # noqa: B008 - frozen
) -> Draft:
    """Validates, strips, canonicalises and freezes. Raises ``Invalid`` naming the field."""
    _check(tool, scope, occurrence)
    arguments, notes = arguments_of(tool, args, limits)
    # Each value is written once; what is made of the same values is made of that.
    written = members(arguments)
    amount, currency = money = money_of(tool, arguments)
    identity = joined([written[n] for n in written if not tool.identity or n in tool.identity])
    ever = _recorded(tool, scope, arguments, identity, occurrence, supersedes)
    key = ever[written_version()].key
    digits = key.hex()
    marks = {"outbox_id": intent_id_text(digits), "outbox_key": digits}
    request = frozen(tool, scope, arguments, written, money, marks, limits)
    guard = joined([written[n] for n in written if n in tool.guard])
    texts = {
        "identity": within(identity, "args", limits),
        "guard": within(guard, "args", limits),
        "args": within(joined(written.values()), "args", limits),
    }
    columns: dict[str, Any] = {
        **_said(tool, scope),
        **texts,
        "id": marks["outbox_id"],
        "occurrence": occurrence,
        "supersedes": str(supersedes) if supersedes else None,
        "key": key,
        "fingerprint": ever[written_version()].fingerprint,
        "request": request,
        "request_sha256": hashlib.sha256(request.encode()).digest(),
        "amount_minor": amount,
        "currency": currency,
        "lane": _lane(tool, scope, arguments),
        "ttl_s": policy.ttl_s(tool.contract, tool.ttl_s),
        "tool_call_id": _short(tool_call_id, "tool_call_id"),
        "traceparent": _short(traceparent, "traceparent"),
        "note": "; ".join(notes) or None,
    }
    return Draft(
        key=key,
        tool=tool,
        scope=scope,
        **texts,
        notes=tuple(notes),
        ever=tuple(ever.values()),
        columns=columns,
    )


def _check(tool: WriteTool, scope: Scope, occurrence: Any) -> None:
    if (
        isinstance(occurrence, bool)
        or not isinstance(occurrence, int)
        or not 0 <= occurrence < 2**31
    ):
        raise Invalid("occurrence", "must be an integer from 0")
    if tool.once_per == "epoch" and not scope.epoch:
        raise Invalid("scope.epoch", f"{tool.name} is once per epoch, so an epoch must be given")


def _recorded(
    tool: WriteTool,
    scope: Scope,
    arguments: Mapping[str, Any],
    text: bytes,
    occurrence: int,
    supersedes: UUID | None,
) -> dict[int, Recorded]:
    """By fingerprint version, the oldest first. ``text`` is the canonical text of the identity."""
    identity = {n: arguments[n] for n in tool.identity} if tool.identity else arguments
    found = {}
    for version in sorted(RULES):
        print_ = fingerprint(identity, version, text=text)
        key = intent_key(
            tenant=scope.tenant,
            vendor=tool.vendor,
            account=scope.account,
            tool=tool.name,
            once_per=tool.once_per,
            run_id=scope.run_id,
            epoch=scope.epoch,
            print_=print_,
            occurrence=occurrence,
            supersedes=supersedes,
        )
        found[version] = Recorded(print_, key)
    return found


def _said(tool: WriteTool, scope: Scope) -> dict[str, Any]:
    """The columns that are what the tool and the scope say, whatever the arguments are; nothing is
    sealed yet."""
    return {
        "tenant": scope.tenant,
        "vendor": tool.vendor,
        "account": scope.account,
        "tool": tool.name,
        "operation": tool.operation,
        "side_effect": tool.side_effect,
        "run_id": scope.run_id,
        "epoch": scope.epoch,
        "once_per": tool.once_per,
        "fingerprint_version": written_version(),
        "api_version": tool.contract.api_version,
        "on_doubt": tool.on_doubt,
        "resend_when_absent": tool.resend_when_absent,
        "gate": gate_of(tool.vendor, scope.account, tool.name, scope.tenant),
        "carries": tool.carries,
        "args_codec": PLAIN_NAME,
        "request_codec": PLAIN_NAME,
        "request_path": None,
    }


def sealed(made: Draft, codec: Codec) -> Draft:
    """The same intent as it is kept: its arguments and its request under the codec.

    Raises ``Invalid`` for a tool without an identity: then every argument makes the key, and is
    kept in the clear.
    """
    if codec.writes == PLAIN_NAME:
        return made
    if not made.tool.identity:
        raise Invalid(
            "tool.identity",
            f"{made.tool.name} declares none, so all its arguments would be kept in the clear",
        )
    columns = dict(made.columns)
    # Should the key be lost for good, looks and verdicts still know which object is meant.
    columns["request_path"] = parse_json(columns["request"])["path"]
    for name in ("args", "request"):
        columns[name], columns[f"{name}_codec"] = seal_text(
            codec, columns[name], f"intents.{name}", columns["id"]
        )
    return replace(made, columns=columns)


def _lane(tool: WriteTool, scope: Scope, arguments: Mapping[str, Any]) -> str | None:
    if not tool.lane:
        return None
    values = [arguments[name] for name in tool.lane]
    parts = [scope.tenant, tool.vendor, scope.account, list(tool.lane), values]
    # By its account first: the claim skips all lanes of one that is closed at once. Then by its
    # tenant: the schema lets no row into a lane of another one.
    digest = hashlib.sha256(canonical(parts, "args.lane").encode()).hexdigest()
    tenant = hashlib.sha256(scope.tenant.encode()).hexdigest()[:_LANE_TENANT_CHARS]
    return f"{gate_prefix(tool.vendor, scope.account)}{tenant}/{digest}"


def _short(value: str | None, path: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > 200 or not value.isprintable():
        raise Invalid(path, "must be printable text of at most 200 characters")
    return value
