"""The webhook sender: signs at each try, repeats on anything but a 2xx, follows no redirect."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from urllib.parse import urlsplit

from vendors.sandbox.json_webhooks import signed
from vendors.sandbox.ledger import Json, Ledger, Row

AT_ONCE = 32


def signature(secrets: list[str], body: bytes, timestamp: int) -> str:
    """`t=<unix>,v1=<hex>[,v1=<hex>]`: HMAC-SHA256 over `<t>.<body>`, one per secret."""
    signed = b"%d." % timestamp + body
    marks = [hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest() for secret in secrets]
    return ",".join([f"t={timestamp}", *(f"v1={mark}" for mark in marks)])


async def post(url: str, body: bytes, headers: dict[str, str], timeout_s: float) -> int | None:
    """The status answered; None where there was none in time."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
            try:
                path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
                lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
                head = (
                    f"POST {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nUser-Agent: Stripe/1.0\r\n"
                    f"Content-Type: application/json; charset=utf-8\r\n"
                    f"Content-Length: {len(body)}\r\n{lines}Connection: close\r\n\r\n"
                )
                writer.write(head.encode() + body)
                line = await reader.readline()
                return int(line.split()[1])
            finally:
                writer.close()
    except (OSError, TimeoutError, IndexError, ValueError):
        return None


class Sender:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._wake = asyncio.Event()
        self._tried = asyncio.Condition()
        self._under_way: dict[int, asyncio.Task[None]] = {}

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            for row in self._due():
                # What is delivered must be durable: a receiver may never know more than the ledger.
                self._ledger.commit()
                task = asyncio.create_task(self._deliver(row))
                self._under_way[row["seq"]] = task
            try:
                await asyncio.wait_for(self._wake.wait(), self._wait_s())
            except TimeoutError:
                continue

    async def stop(self) -> None:
        """Gives up what is being delivered: the next run delivers it again."""
        under_way = list(self._under_way.values())
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    def _due(self) -> list[Row]:
        free = AT_ONCE - len(self._under_way)
        rows = self._ledger.all(
            "select * from deliveries d where state = 'waiting' and due_at <= ?"
            " and (after_seq is null or exists"
            " (select 1 from deliveries p where p.seq = d.after_seq"
            " and (p.tries > 0 or p.state <> 'waiting'))) order by due_at, seq limit ?",
            self._ledger.wall_s(), AT_ONCE,
        )  # fmt: skip
        return [row for row in rows if row["seq"] not in self._under_way][:free]

    def _wait_s(self) -> float | None:
        """Until the next delivery falls due; what is due already waits for another to finish."""
        row = self._ledger.one(
            "select min(due_at) as due_at from deliveries where state = 'waiting' and due_at > ?",
            self._ledger.wall_s(),
        )
        return (
            None
            if row is None or row["due_at"] is None
            else row["due_at"] - self._ledger.wall_s() + 0.001
        )

    async def _deliver(self, row: Row) -> None:
        try:
            settings = self._ledger.account(row["account"])
            twist: Json = json.loads(row["twist"] or "{}")
            first = twist.get("first_tries")
            if first is not None and row["tries"] >= first:
                twist = {"face": twist.get("face", "")}
            headers = self._headers(row, twist)
            status = await post(row["url"], row["body"], headers, settings.webhook_timeout_s)
            tries = row["tries"] + 1
            if status is not None and 200 <= status < 300:
                state, due_at = "done", row["due_at"]
            elif tries > len(settings.webhook_retry_s):
                state, due_at = "given_up", row["due_at"]
            else:
                state, due_at = (
                    "waiting",
                    self._ledger.wall_s() + settings.webhook_retry_s[tries - 1],
                )
            self._ledger.run(
                "update deliveries set tries = ?, state = ?, due_at = ?, status = ? where seq = ?",
                tries, state, due_at, status, row["seq"],
            )  # fmt: skip
            self._ledger.commit()
        finally:
            self._under_way.pop(row["seq"], None)
            self.wake()
        async with self._tried:
            self._tried.notify_all()

    def _headers(self, row: Row, twist: Json) -> dict[str, str]:
        secrets: list[str] = json.loads(row["secrets"])
        if twist.get("wrong_secret"):
            secrets = [secret + "-wrong" for secret in secrets]
        if twist.get("two_signatures"):
            secrets = [secrets[0] + "-rotated", *secrets]
        now = self._ledger.now(row["account"]) + twist.get("skew_s", 0.0)
        if twist.get("face"):
            return signed(twist["face"], secrets, row["event_id"], row["body"], int(now))
        return {"Stripe-Signature": signature(secrets, row["body"], int(now))}

    async def delivered(self, event_ids: list[str], limit_s: float) -> None:
        """Returns when no delivery of these events is waiting any more, or after `limit_s`."""
        sql = (
            "select 1 from deliveries where state = 'waiting'"
            " and event_id in (select value from json_each(?)) limit 1"
        )
        names = json.dumps(event_ids)
        try:
            async with asyncio.timeout(limit_s), self._tried:
                await self._tried.wait_for(lambda: self._ledger.one(sql, names) is None)
        except TimeoutError:
            return

    async def settled(self, account: str | None, limit_s: float) -> bool:
        """True once nothing of this account is waiting to be delivered."""
        sql = (
            "select 1 from deliveries"
            " where state = 'waiting' and (? is null or account = ?) limit 1"
        )
        try:
            async with asyncio.timeout(limit_s), self._tried:
                await self._tried.wait_for(lambda: self._ledger.one(sql, account, account) is None)
        except TimeoutError:
            return False
        return True
