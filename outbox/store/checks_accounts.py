"""The reads of ``outbox doctor`` about whom the accounts' names stand for. No write."""

from __future__ import annotations

from typing import Any

from outbox.contract import Account
from outbox.store.checks import SAMPLES
from outbox.store.connection import Transaction
from outbox.store.invariants import NEWEST

# What was sent longer ago is history, and nobody mends it by ending a process.
LATELY_H = 24


def frozen_otherwise(tx: Transaction, vendor: str, account: Account) -> tuple[int, list[str]]:
    """Unsettled intents that were first claimed for another mode, or another account, than the
    name stands for here."""
    row = tx.one(
        f"SELECT count(*) AS n, (array_agg(id::text ORDER BY id))[1:{SAMPLES}] AS ids "
        "FROM outbox.intents WHERE settled_at IS NULL AND vendor = %(vendor)s "
        "AND account = %(account)s AND (mode <> %(mode)s OR (%(owner)s <> '' "
        "AND vendor_account <> %(owner)s))",
        {
            "vendor": vendor,
            "account": account.name,
            "mode": account.mode,
            "owner": account.vendor_account,
        },
    )
    assert row is not None
    return int(row["n"]), list(row["ids"] or ())


def sent_otherwise(tx: Transaction) -> list[dict[str, Any]]:
    """By name: what was sent for another mode or account after a process had started for the one
    that the name stands for since, of the newest settled intents of a day. Of one that was changed
    in good order there is nothing: its process ended before."""
    return tx.all(
        "SELECT i.vendor, i.account, i.mode, i.vendor_account, a.mode AS now_mode, "
        "a.vendor_account AS now_owner, a.seen_at, count(*) AS n, "
        f"(array_agg(i.id::text ORDER BY i.id))[1:{SAMPLES}] AS ids "
        "FROM (SELECT id, vendor, account, mode, vendor_account, last_sent_at FROM outbox.intents "
        "WHERE settled_at > outbox.clock() - %(lately_h)s * INTERVAL '1 hour' "
        # As the index has it: nothing else is in the order of when it was settled.
        "AND (args IS NOT NULL OR request IS NOT NULL OR receipt IS NOT NULL) "
        f"ORDER BY settled_at DESC LIMIT {NEWEST}) i "
        "JOIN outbox.accounts a ON a.vendor = i.vendor AND a.account = i.account "
        "WHERE i.last_sent_at > a.seen_at AND (i.mode <> a.mode "
        "OR (a.vendor_account <> '' AND i.vendor_account <> a.vendor_account)) "
        "GROUP BY 1, 2, 3, 4, 5, 6, 7 ORDER BY 1, 2, 3, 4",
        {"lately_h": LATELY_H},
    )
