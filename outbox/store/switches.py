"""Switches (pauses, breakers, freezes), the accounts' frozen identity, and heartbeats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, LiteralString

from psycopg.types.json import Jsonb

from outbox.contract import Account
from outbox.intent import gate_prefix
from outbox.store import escalations
from outbox.store.connection import Transaction
from outbox.store.moves import log

# Heartbeats of that age are of processes that may still send.
ALIVE_S = 120.0


def holder_of(vendor: str, account: str) -> str:
    """The name of a vendor's account as the holder of rows."""
    return f"vendor:{vendor}/{account}"


def pause(tx: Transaction, vendor: str, account: str, *, kind: str, reason: str, by: str) -> bool:
    """Closes the gates of one (vendor, account) and opens the holder's escalation.

    False when it was closed already.
    """
    holder = holder_of(vendor, account)
    made = tx.one(
        "INSERT INTO outbox.switches (holder, kind, gate_prefix, reason, set_by, set_at) "
        "VALUES (%(holder)s, %(kind)s, %(prefix)s, %(reason)s, %(by)s, outbox.clock()) "
        "ON CONFLICT (holder) DO UPDATE SET kind = EXCLUDED.kind, reason = EXCLUDED.reason, "
        "set_by = EXCLUDED.set_by, set_at = EXCLUDED.set_at, probe_at = NULL, probe_after_s = NULL "
        "WHERE outbox.switches.kind = 'breaker' RETURNING (xmax = 0) AS fresh",
        {
            "holder": holder,
            "kind": kind,
            "prefix": gate_prefix(vendor, account),
            "reason": reason,
            "by": by,
        },
    )
    if made is None:
        return False
    log(tx, kind="paused", actor=by, holder=holder, reason=reason)
    if made["fresh"]:
        _begin_episode(tx, holder, by=by)
    escalations.open_for_holder(
        tx, holder, ["paused"], {"vendor": vendor, "account": account, "why": reason}
    )
    return True


def trip_breaker(
    tx: Transaction, vendor: str, account: str, *, reason: str, probe_s: float
) -> bool:
    """Opens the breaker of one (vendor, account): nothing is claimed until a probe passes."""
    holder = holder_of(vendor, account)
    made = tx.one(
        "INSERT INTO outbox.switches (holder, kind, gate_prefix, reason, set_by, set_at, probe_at, "
        "probe_after_s) VALUES (%(holder)s, 'breaker', %(prefix)s, %(reason)s, 'sender', "
        "outbox.clock(), outbox.clock() + %(probe_s)s * INTERVAL '1 second', %(probe_s)s) "
        "ON CONFLICT DO NOTHING RETURNING holder",
        {
            "holder": holder,
            "prefix": gate_prefix(vendor, account),
            "reason": reason,
            "probe_s": probe_s,
        },
    )
    if made is not None:
        log(tx, kind="breaker_opened", actor="sender", holder=holder, reason=reason)
        _begin_episode(tx, holder, by="sender")
    return made is not None


def _begin_episode(tx: Transaction, holder: str, *, by: str) -> None:
    """A switch that has just closed is a new question: one that was left open by mistake would
    hide it, for a known question pages nobody again."""
    escalations.close_holder(tx, holder, by=by, verdict="closed again")


def hold(tx: Transaction, holder: str) -> dict[str, Any] | None:
    """The holder's switch, which nobody opens before the end of this transaction; None where it
    is open. Another transaction that is opening it is waited for."""
    return tx.one(
        "SELECT kind, reason FROM outbox.switches WHERE holder = %(holder)s FOR SHARE",
        {"holder": holder},
    )


def slow_breaker(tx: Transaction, vendor: str, account: str, *, max_s: float) -> None:
    """The probe failed: the next one is twice as far away, up to ``max_s``."""
    tx.run(
        "UPDATE outbox.switches SET probe_after_s = LEAST(probe_after_s * 2, %(max_s)s), "
        "probe_at = outbox.clock() + LEAST(probe_after_s * 2, %(max_s)s) * INTERVAL '1 second' "
        "WHERE holder = %(holder)s AND kind = 'breaker'",
        {"holder": holder_of(vendor, account), "max_s": max_s},
    )


def give_probe_back(tx: Transaction, vendor: str, account: str) -> None:
    """The probe told nothing of the vendor: another row may probe at once."""
    tx.run(
        "UPDATE outbox.switches SET probe_at = outbox.clock() "
        "WHERE holder = %(holder)s AND kind = 'breaker'",
        {"holder": holder_of(vendor, account)},
    )


def close_breaker(tx: Transaction, vendor: str, account: str) -> bool:
    """The probe passed: the gates open again."""
    return _remove(tx, holder_of(vendor, account), "breaker", by="sender", reason="probe passed")


def resume(tx: Transaction, vendor: str, account: str, *, by: str, reason: str) -> bool:
    """A person opens the gates again, whatever closed them. False when they were open."""
    return _remove(tx, holder_of(vendor, account), None, by=by, reason=reason)


def _remove(tx: Transaction, holder: str, kind: str | None, *, by: str, reason: str) -> bool:
    removed = tx.one(
        "DELETE FROM outbox.switches WHERE holder = %(holder)s "
        "AND (%(kind)s::text IS NULL OR kind = %(kind)s) RETURNING kind",
        {"holder": holder, "kind": kind},
    )
    if removed is None:
        return False
    log(tx, kind="resumed", actor=by, holder=holder, reason=reason)
    escalations.close_holder(tx, holder, by=by, verdict="resumed")
    return True


def is_closed(tx: Transaction, gate: str) -> bool:
    """Whether a pause, a freeze or a breaker (one due for its probe included) holds this gate."""
    row = tx.one(
        "SELECT EXISTS (SELECT FROM outbox.switches WHERE kind <> 'clock' "
        "AND starts_with(%(gate)s, gate_prefix)) AS y",
        {"gate": gate},
    )
    return bool(row and row["y"])


def clock_is_doubted(tx: Transaction) -> bool:
    """Whether a clock step or a new timeline suspends re-sends until ``doctor --accept``."""
    row = tx.one("SELECT EXISTS (SELECT FROM outbox.switches WHERE kind = 'clock') AS y")
    return bool(row and row["y"])


CLOCK_HOLDER = "clock"
# Of the log that is being written: the control file names a promoted history only when its first
# checkpoint ends, which may be minutes later.
TIMELINE: LiteralString = "('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int"


def doubt_clock(tx: Transaction, reason: str) -> bool:
    """Suspends re-sends, and sends to vendors without keys: windows and leases cannot be trusted
    after the clock was set or another history of the database was promoted."""
    made = tx.one(
        "INSERT INTO outbox.switches (holder, kind, gate_prefix, reason, set_by, set_at) "
        "VALUES (%(holder)s, 'clock', '', %(reason)s, 'heartbeat', outbox.clock()) "
        "ON CONFLICT DO NOTHING RETURNING holder",
        {"holder": CLOCK_HOLDER, "reason": reason},
    )
    if made is None:
        return False
    log(tx, kind="clock_doubted", actor="heartbeat", holder=CLOCK_HOLDER, reason=reason)
    _begin_episode(tx, CLOCK_HOLDER, by="heartbeat")
    escalations.open_for_holder(tx, CLOCK_HOLDER, ["clock"], {"why": reason})
    return True


def accept_clock(tx: Transaction, *, by: str, reason: str) -> bool:
    """A person has looked: re-sends may go on. False when nothing was suspended."""
    return _remove(tx, CLOCK_HOLDER, "clock", by=by, reason=reason)


def database_time(tx: Transaction) -> tuple[float, int]:
    """The database's clock in epoch seconds, and the timeline of its history."""
    row = tx.one(f"SELECT EXTRACT(EPOCH FROM outbox.clock())::float8 AS at, {TIMELINE} AS timeline")
    assert row is not None
    return float(row["at"]), int(row["timeline"])


def timeline_changed(tx: Transaction, timeline: int) -> bool:
    """Compares the database's timeline with the one remembered, and remembers it."""
    row = tx.one("SELECT detail FROM outbox.heartbeats WHERE role = 'timeline' LIMIT 1")
    known = row["detail"].get("timeline") if row else None
    if known != timeline:
        beat(tx, "timeline", "database", {"timeline": timeline})
    return known is not None and known != timeline


def listed(tx: Transaction) -> list[dict[str, Any]]:
    """Every closed switch."""
    return tx.all("SELECT * FROM outbox.switches ORDER BY holder")


def account_problem(tx: Transaction, vendor: str, account: Account) -> str | None:
    """Whether a name's mode or vendor account changed while it still has unsettled rows, or while
    a process runs that sends for another under it. A vendor account that nobody has said yet is no
    change."""
    seen = tx.one(
        "SELECT mode, vendor_account FROM outbox.accounts "
        "WHERE vendor = %(vendor)s AND account = %(account)s",
        {"vendor": vendor, "account": account.name},
    )
    owners = {seen["vendor_account"], account.vendor_account} - {""} if seen else set()
    if seen is None or (seen["mode"] == account.mode and len(owners) < 2):
        return _beside(tx, vendor, account)
    unsettled = tx.one(
        "SELECT count(*) AS n FROM outbox.intents WHERE vendor = %(vendor)s "
        "AND account = %(account)s AND settled_at IS NULL AND mode IS NOT NULL",
        {"vendor": vendor, "account": account.name},
    )
    if not unsettled or not unsettled["n"]:
        return _beside(tx, vendor, account)
    was = seen["mode"] if seen["mode"] != account.mode else seen["vendor_account"]
    return (
        f"was {was} and has {unsettled['n']} unsettled intents from then; "
        "give the new credentials another name"
    )


def _beside(tx: Transaction, vendor: str, account: Account) -> str | None:
    """Two processes that send for two accounts under one name would share its writes out between
    them by chance, and nothing that is settled would show it."""
    other = tx.one(
        "SELECT instance, said ->> 0 AS mode, said ->> 1 AS owner FROM ("
        "SELECT instance, at, detail -> 'owners' -> %(name)s AS said FROM outbox.heartbeats "
        "WHERE at > outbox.clock() - %(alive_s)s * INTERVAL '1 second') h "
        "WHERE said ->> 0 <> %(mode)s OR (%(owner)s <> '' AND said ->> 1 <> %(owner)s) "
        "ORDER BY at DESC LIMIT 1",
        {
            "name": f"{vendor}/{account.name}",
            "mode": account.mode,
            "owner": account.vendor_account,
            "alive_s": ALIVE_S,
        },
    )
    if other is None:
        return None
    return (
        f"{other['instance']} sends for {other['owner']} ({other['mode']}) under this name: give "
        f"one of the two credentials another name, or end that process and wait {ALIVE_S:g} s"
    )


def remembered_owner(tx: Transaction, vendor: str, account: Account) -> str:
    """The vendor account that the name stood for the last time it was known; empty if never."""
    seen = tx.one(
        "SELECT vendor_account FROM outbox.accounts "
        "WHERE vendor = %(vendor)s AND account = %(account)s AND mode = %(mode)s",
        {"vendor": vendor, "account": account.name, "mode": account.mode},
    )
    return str(seen["vendor_account"]) if seen else ""


def freeze_account(tx: Transaction, vendor: str, account: Account) -> None:
    """Remembers what the name stands for now; what nobody says now is what it was before."""
    tx.run(
        "INSERT INTO outbox.accounts (vendor, account, mode, vendor_account, seen_at) "
        "VALUES (%(vendor)s, %(account)s, %(mode)s, %(vendor_account)s, outbox.clock()) "
        "ON CONFLICT (vendor, account) DO UPDATE SET mode = EXCLUDED.mode, "
        "vendor_account = CASE WHEN EXCLUDED.vendor_account = '' "
        "AND EXCLUDED.mode = outbox.accounts.mode THEN outbox.accounts.vendor_account "
        "ELSE EXCLUDED.vendor_account END, seen_at = EXCLUDED.seen_at",
        {
            "vendor": vendor,
            "account": account.name,
            "mode": account.mode,
            "vendor_account": account.vendor_account,
        },
    )


def anything_due(tx: Transaction) -> bool:
    """Whether any row waits for the sender now, by the partial indexes alone."""
    row = tx.one(
        "SELECT EXISTS (SELECT FROM outbox.intents WHERE status IN ('pending', 'retryable') "
        "AND settled_at IS NULL AND due_at <= outbox.clock()) AS y"
    )
    return bool(row and row["y"])


def beat(
    tx: Transaction, role: str, instance: str, detail: Mapping[str, Any] | None = None
) -> None:
    """Records that a role is alive and has just done its work."""
    tx.run(
        "INSERT INTO outbox.heartbeats (role, instance, at, detail) "
        "VALUES (%(role)s, %(instance)s, outbox.clock(), %(detail)s) "
        "ON CONFLICT (role, instance) DO UPDATE SET at = EXCLUDED.at, detail = EXCLUDED.detail",
        {"role": role, "instance": instance, "detail": Jsonb(dict(detail or {}))},
    )


def beat_ages_s(tx: Transaction) -> dict[str, float]:
    """For each role, the seconds since any instance last beat."""
    rows = tx.all(
        "SELECT role, EXTRACT(EPOCH FROM outbox.clock() - max(at))::float8 AS age_s "
        "FROM outbox.heartbeats GROUP BY role"
    )
    return {row["role"]: float(row["age_s"]) for row in rows}
